"""Take the training state from a checkpoint.

Process: rank 0 of an epoch that begins from storage; the others are healed from it.
Thread: training, parked between steps; a pool fetches.  Blocks: until all is read.
Fails: `CheckpointError`; the live state is then no whole one.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from trainflow.checkpointing.boxes import whole
from trainflow.checkpointing.manifest import Chunk, Manifest
from trainflow.checkpointing.part_reader import Part, read_parts
from trainflow.checkpointing.store import CheckpointStore
from trainflow.computation.state_tree import flatten_state, unflatten_state
from trainflow.computation.training_state import TrainingState
from trainflow.epochs import INITIAL_EPOCH, StoredState, Version
from trainflow.errors import CheckpointError, StateError

_NUM_THREADS = 8


def restore(state: TrainingState, stored: StoredState, *, after_each: Callable[[], None]) -> None:
    """Load a checkpoint into the live state; each byte is verified before it counts.

    Args:
        state: of the same training function that was saved, at whatever step.
        stored: which checkpoint.
        after_each: called after each chunk, from several threads.

    Raises:
        CheckpointError: the checkpoint is damaged, missing, or of another training function.
    """
    store = CheckpointStore(stored.url)
    manifest = store.read_manifest(stored.step)
    state.version = None  # from here on live tensors are overwritten
    live = flatten_state(state.tree()).tensors
    tensors = [_landing_place(manifest, path, live.get(path)) for path in manifest.tensors]
    wanted = {
        path: Part(whole(entry.shape), tensor.view(-1).view(torch.uint8).numpy())
        for (path, entry), tensor in zip(manifest.tensors.items(), tensors, strict=True)
    }

    def fetch(chunk: Chunk) -> bytes:
        data = store.read_chunk(chunk)
        after_each()
        return data

    read_parts(manifest, wanted, fetch, _NUM_THREADS)
    try:
        tree = unflatten_state(manifest.skeleton, tensors)
        state.load_tree(tree, Version(stored.step, INITIAL_EPOCH))
    except StateError as error:
        raise CheckpointError(
            f"checkpoint of step {stored.step} in {stored.url} is of another training function: "
            f"{error}"
        ) from error


def _landing_place(manifest: Manifest, path: str, live: Tensor | None) -> Tensor:
    """Return the live tensor if the stored one can be read straight into it, else fresh memory."""
    entry = manifest.tensors[path]
    dtype: torch.dtype = getattr(torch, entry.dtype)
    fits = live is not None and live.dtype == dtype and tuple(live.shape) == entry.shape
    if live is not None and fits and live.device.type == "cpu" and live.is_contiguous():
        return live
    return torch.empty(entry.shape, dtype=dtype)
