"""Copy the training state into shared memory, from where the node's Keeper takes it.

Process: every rank that snapshots.  Thread: training, after a commit.  Blocks: for the copy.
Fails: never the step; without room the snapshot is left out, and counted.
"""

import logging
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainflow.checkpointing.sharing import Share
from trainflow.checkpointing.snapshot_slots import Slot, SlotState, TensorRecord
from trainflow.clock import SYSTEM_CLOCK
from trainflow.computation.state_tree import flatten_state
from trainflow.epochs import Version

logger = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.02


class SnapshotWriter:
    """One worker's slots.

    Attributes:
        num_skipped: snapshots left out because every slot was still in use, or for want of memory.
        taken_at_s: CLOCK_MONOTONIC of the last snapshot; before the first, of this writer's making.
    """

    def __init__(self, directory: Path, worker_id: str, num_slots: int = 2):
        self.num_skipped = 0
        self.taken_at_s = SYSTEM_CLOCK.monotonic_s()
        self._paths = [directory / f"{worker_id}.{k}.snapshot" for k in range(num_slots)]
        self._slots: list[Slot] = []

    def write(
        self, tree: dict[str, Any], version: Version, share: Share, *, patience_s: float = 0.0
    ) -> bool:
        """Copy ``tree``; False if there was no room for it.

        Args:
            tree: of the whole state; its tensors are only read.
            version: of the state.
            share: which part of it this node is to bring to storage.
            patience_s: how long to wait for a slot that is still in use.
        """
        flat = flatten_state(tree)
        tensors = [tensor.detach().contiguous() for tensor in flat.tensors.values()]
        records = [
            TensorRecord(path, _dtype_name(t), tuple(t.shape), t.nbytes)
            for path, t in zip(flat.tensors, tensors, strict=True)
        ]
        purpose = {"share": [share.index, share.count]}
        try:
            slot = self._find_free(patience_s)
            views = None if slot is None else slot.begin(version, flat.skeleton, records, purpose)
        except OSError as error:
            logger.warning("no room for a snapshot of step %d: %s", version.step, error)
            slot = views = None
        if slot is None or views is None:
            self.num_skipped += 1
            return False
        for tensor, view in zip(tensors, views, strict=True):
            _copy(tensor, view)
        slot.complete()
        self.taken_at_s = SYSTEM_CLOCK.monotonic_s()
        return True

    def _find_free(self, patience_s: float) -> Slot | None:
        if not self._slots:
            self._slots = [Slot(path) for path in self._paths]
        give_up_at_s = SYSTEM_CLOCK.monotonic_s() + patience_s
        while True:
            free = next((slot for slot in self._slots if slot.state is SlotState.FREE), None)
            if free is not None or SYSTEM_CLOCK.monotonic_s() >= give_up_at_s:
                return free
            SYSTEM_CLOCK.sleep(_LOOK_EVERY_S)


def _copy(tensor: Tensor, view: memoryview) -> None:
    if tensor.nbytes:
        landing = torch.frombuffer(view, dtype=torch.uint8)
        landing.copy_(tensor.view(-1).view(torch.uint8))


def _dtype_name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
