"""TrainFlow's side of the checkpoint benchmark: snapshots, and reading them back from storage.

Process: every rank.  Thread: training.  The Keepers are `benchmarks.checkpoint_keeper`.
"""

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor

from benchmarks.checkpoint_state import Tree, as_bytes, tensors_of
from trainflow.checkpointing.boxes import whole
from trainflow.checkpointing.collector import collect
from trainflow.checkpointing.part_reader import Part, read_parts
from trainflow.checkpointing.sharing import Share
from trainflow.checkpointing.store import CheckpointStore
from trainflow.clock import SYSTEM_CLOCK
from trainflow.computation.snapshot_writer import SnapshotWriter
from trainflow.epochs import INITIAL_EPOCH, Version

_SAVED_WITHIN_S = 120.0
_LOOK_EVERY_S = 0.02
_NUM_READERS = 4  # as in trainflow.computation.restoring


class TrainFlow:
    """A snapshot into shared memory; the Keepers bring a share of each rank's to storage."""

    name = "trainflow"

    def __init__(self, writer: SnapshotWriter, url: str, share: Share | None):
        """Make a saver.

        Args:
            writer: of this rank's snapshots.
            url: of the store.
            share: what this rank's node brings to it; None: snapshots stay in memory.
        """
        self._writer = writer
        self._store = CheckpointStore(url)
        self._share = share

    def save(self, tree: Tree, step: int) -> None:
        """See `Saver`."""
        if not self._writer.write(tree, Version(step, INITIAL_EPOCH), self._share):
            raise RuntimeError(f"step {step}: got no snapshot: {self._writer.trouble}")

    def guard(self) -> AbstractContextManager[Any]:
        """See `Saver`."""
        return nullcontext()

    def wait(self, step: int) -> None:
        """See `Saver`."""
        give_up_at_s = SYSTEM_CLOCK.monotonic_s() + _SAVED_WITHIN_S
        while step not in self._store.committed_steps():
            if SYSTEM_CLOCK.monotonic_s() > give_up_at_s:
                raise RuntimeError(f"step {step} was not committed within {_SAVED_WITHIN_S:.0f} s")
            SYSTEM_CLOCK.sleep(_LOOK_EVERY_S)

    def remove(self, step: int) -> None:
        """See `Saver`."""
        collect(self._store, [step])

    def load(self, step: int, into: Tree) -> Tree | None:
        """See `Saver`."""
        read_checkpoint(self._store, step, tensors_of(into))
        return into

    def close(self) -> None:
        """See `Saver`."""


def read_checkpoint(store: CheckpointStore, step: int, tensors: Mapping[str, Tensor]) -> None:
    """Read a checkpoint straight into tensors, as a restore does; each byte is verified."""
    manifest = store.read_manifest(step)
    wanted = {
        path: Part(whole(tensor.shape), as_bytes(tensor).numpy())
        for path, tensor in tensors.items()
    }
    read_parts(manifest, wanted, store.read_into, _NUM_READERS)
