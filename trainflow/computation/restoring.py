"""Take the training state from a checkpoint, or from a snapshot in the memory of nodes.

Process: rank 0 of an epoch whose base no rank holds, and the others are healed from it; of sharded
state each rank that lacks it.
Thread: training, parked between steps; others fetch.  Blocks: until all is read.
Fails: `CheckpointError`, `UnreachableMemoryError` if only nobody answers; the live state is then no
whole one.
"""

import logging
import threading
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from trainflow.checkpointing.bounded_calls import (
    PEER_CALLS,
    STORE_CALLS,
    BoundedCalls,
    patience_s,
)
from trainflow.checkpointing.boxes import Box, whole
from trainflow.checkpointing.manifest import Chunk, Manifest
from trainflow.checkpointing.part_reader import Fetch, Part, read_parts
from trainflow.checkpointing.peer_memory import LostMemoryError, PeerMemory
from trainflow.checkpointing.peer_shards import PeerShards
from trainflow.checkpointing.snapshot import Snapshot
from trainflow.checkpointing.store import CheckpointStore
from trainflow.clock import SYSTEM_CLOCK, Clock
from trainflow.computation.own_memory import OwnMemory
from trainflow.computation.reports import CheckpointUnusable
from trainflow.computation.state_boxes import StateBoxes
from trainflow.computation.state_tree import flatten_state, unflatten_state
from trainflow.computation.training_state import TrainingState
from trainflow.epochs import WHOLE, HeldShards, HeldState, ShardId, WhereKept
from trainflow.errors import CheckpointError, CheckpointMisfitError, StateError, StoreError

logger = logging.getLogger(__name__)

_NUM_THREADS = 4
_PAUSES_S = (1.0, 2.0, 4.0, 8.0, 16.0)
# What a state makes raise that is not this model's, also in torch's own loading.
_MISFITS = (StateError, LookupError, TypeError, ValueError, AttributeError, RuntimeError)


def restore(
    state: TrainingState,
    stored: WhereKept,
    *,
    shard: ShardId = WHOLE,
    after_each: Callable[[], None],
    own_memory: OwnMemory | None = None,
    clock: Clock = SYSTEM_CLOCK,
) -> None:
    """Load a state that was kept into the live state; what travels is verified before it counts.

    A store that doesn't answer is asked again for a while, and so are Keepers.

    Args:
        state: of the same training function that was saved, at whatever step.
        stored: which checkpoint, or snapshots.
        shard: which part of sharded state this rank holds.
        after_each: called after each chunk, from several threads, while one is waited for, and
            around each pause.
        own_memory: where to look first.
        clock: waits for what doesn't answer.

    Raises:
        CheckpointMisfitError: it is whole, and of another training function.
        UnreachableMemoryError: no Keeper answers that may have it.
        CheckpointError: it is damaged or missing.
    """
    if own_memory is not None:
        if _restore_from_here(state, stored, shard, after_each, own_memory):
            return None
        elsewhere = own_memory.elsewhere(stored, shard)
        if elsewhere != stored and _restore_if_there(state, elsewhere, shard, after_each, clock):
            return None
    for pause_s in _PAUSES_S:
        try:
            return _restore_once(state, stored, shard, after_each, clock)
        except StoreError as error:
            logger.warning("%s; asked again in %.0f s", error, pause_s)
            after_each()  # that it has given up is progress
            clock.sleep(pause_s)
            after_each()
    return _restore_once(state, stored, shard, after_each, clock)


def unusable(stored: WhereKept, error: CheckpointError) -> CheckpointUnusable:
    """Return what the coordinator is to know of a restore that failed."""
    if not isinstance(error, LostMemoryError):
        return CheckpointUnusable(stored, str(error))
    if isinstance(stored, HeldShards) and error.held is not None:  # the others may be whole
        stored = HeldShards(stored.version, (error.held,))
    return CheckpointUnusable(stored, str(error), error.sources)


def _restore_once(
    state: TrainingState,
    stored: WhereKept,
    shard: ShardId,
    after_each: Callable[[], None],
    clock: Clock,
) -> None:
    with _open(stored, shard, after_each, clock) as source:
        state.begin_overwrite()
        _load(state, source, after_each, stored)


def _restore_if_there(
    state: TrainingState,
    stored: WhereKept,
    shard: ShardId,
    after_each: Callable[[], None],
    clock: Clock,
) -> bool:
    """Load it from the memory of other nodes; False if none of them has it."""
    try:
        _restore_once(state, stored, shard, after_each, clock)
    except LostMemoryError as error:
        logger.warning("%s; this node's Keeper is asked too", error)
        return False
    return True


def _restore_from_here(
    state: TrainingState,
    stored: WhereKept,
    shard: ShardId,
    after_each: Callable[[], None],
    own_memory: OwnMemory,
) -> bool:
    """Load it from this node's own memory; False if it isn't there, or no good."""
    try:
        with own_memory.reading(stored, shard) as snapshot:
            if snapshot is not None:
                state.begin_overwrite()
                _load_from_here(state, snapshot, after_each, stored)
            return snapshot is not None
    except Exception as error:  # noqa: BLE001  not swallowed: what isn't damage comes again elsewhere
        # No hash vouches for it, so that a misfit may be damage; others may have it whole.
        logger.warning("%s is read elsewhere than in this node's memory: %s", stored, error)
        return False


def _load_from_here(
    state: TrainingState, snapshot: Snapshot, after_each: Callable[[], None], stored: WhereKept
) -> None:
    with _loading(stored):
        live = flatten_state(state.tree()).tensors
    tensors: list[Tensor] = []
    for record, payload in zip(snapshot.tensors, snapshot.payloads, strict=True):
        place = _landing_place(record.dtype, record.shape, live.get(record.path))
        if record.num_bytes:
            there = torch.frombuffer(payload, dtype=torch.uint8)
            place.view(-1).view(torch.uint8).copy_(there)
        tensors.append(place)
        after_each()
    with _loading(stored):
        state.load_tree(unflatten_state(snapshot.skeleton, tensors), stored.version)


@contextmanager
def _loading(stored: WhereKept) -> Generator[None]:
    """Raise CheckpointMisfitError where the model and the state don't fit. Read nothing inside."""
    try:
        yield
    except _MISFITS as error:
        raise CheckpointMisfitError(
            f"{stored} is whole, and can't be loaded here ({type(error).__name__}: {error}); "
            "change the training function back to what was saved, or begin anew with "
            "checkpoint.resume = never and another checkpoint.url"
        ) from error


@dataclass(frozen=True)
class _Source:
    """What a state is made of, what fetches a part of it, how long that may take, and where.

    Attributes:
        is_own: its tensors are those that this rank holds, not those of all ranks.
    """

    manifest: Manifest
    fetch: Fetch
    within_s: Callable[[int], float]
    calls: BoundedCalls
    is_own: bool = False


def _load(
    state: TrainingState,
    source: _Source,
    after_each: Callable[[], None],
    stored: WhereKept,
) -> None:
    def fetch_and_tell(chunk: Chunk, view: memoryview) -> None:
        source.fetch(chunk, view)
        after_each()

    manifest = source.manifest
    with _loading(stored):
        live = flatten_state(state.tree()).tensors
    entries = manifest.tensors
    boxes = _find_boxes(state, source)
    tensors = [
        _landing_place(entries[path].dtype, box.shape, live.get(path))
        for path, box in boxes.items()
    ]
    wanted = {
        path: Part(box, tensor.view(-1).view(torch.uint8).numpy())
        for (path, box), tensor in zip(boxes.items(), tensors, strict=True)
    }
    read_parts(manifest, wanted, fetch_and_tell, _NUM_THREADS, source.within_s, source.calls)
    with _loading(stored):
        state.load_tree(unflatten_state(manifest.skeleton, tensors), stored.version)


def _find_boxes(state: TrainingState, source: _Source) -> dict[str, Box]:
    """Return which part of each tensor in the source is this rank's, by path."""
    entries = source.manifest.tensors
    if source.is_own:
        return {path: whole(entry.shape) for path, entry in entries.items()}
    boxes = StateBoxes(state.models)
    return {path: boxes.box_of(path, entry.shape) for path, entry in entries.items()}


@contextmanager
def _open(
    stored: WhereKept, shard: ShardId, while_waiting: Callable[[], None], clock: Clock
) -> Generator[_Source]:
    if isinstance(stored, HeldShards):
        own = [each for each in stored.shards if each.shard == shard]
        with closing(PeerShards(own or stored.shards, while_waiting, clock)) as memory:
            manifest = memory.read_manifest(is_own=bool(own))
            yield _Source(manifest, memory.read_into, _its_own_bounds, PEER_CALLS, bool(own))
    elif isinstance(stored, HeldState):
        with closing(PeerMemory(stored, while_waiting, clock)) as memory:
            manifest = memory.read_manifest()
            yield _Source(manifest, memory.read_into, _its_own_bounds, PEER_CALLS)
    else:
        store = CheckpointStore(stored.url)
        manifest = store.read_manifest(stored.step)
        yield _Source(manifest, store.read_into, patience_s, STORE_CALLS)


def _its_own_bounds(_num_bytes: int) -> float:
    """Tell how long Keepers are waited for: they are asked again, each time with a deadline."""
    return threading.TIMEOUT_MAX


def _landing_place(dtype_name: str, shape: tuple[int, ...], live: Tensor | None) -> Tensor:
    """Return the live tensor if the stored one can be read straight into it, else fresh memory."""
    dtype: torch.dtype = getattr(torch, dtype_name)
    fits = live is not None and live.dtype == dtype and tuple(live.shape) == shape
    if live is not None and fits and live.device.type == "cpu" and live.is_contiguous():
        return live
    return torch.empty(shape, dtype=dtype)
