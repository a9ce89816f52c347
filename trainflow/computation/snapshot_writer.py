"""Copy the training state into shared memory, from where the node's Keeper takes it.

What is on a GPU is copied while training goes on; a snapshot is whole some time after `write`.

Process: every rank that snapshots.  Thread: training, after a commit.  Blocks: for the copy of what
is in the host's memory.
Fails: never the step; without room, or of a state that can't be kept, the snapshot is left out, and
says why.
"""

import contextlib
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trainflow.checkpointing.sharing import Share, bytes_needed
from trainflow.checkpointing.snapshot import TensorRecord
from trainflow.checkpointing.snapshot_slots import CopyState, Slot, SlotState
from trainflow.clock import SYSTEM_CLOCK
from trainflow.computation.device_staging import DeviceStaging, Transfer
from trainflow.computation.state_tree import FlatState, flatten_state
from trainflow.epochs import WHOLE, ShardId, Version
from trainflow.errors import StateError

_LOOK_EVERY_S = 0.02
_OPTIMIZERS = "/optimizers/"  # what forward doesn't change


@dataclass(frozen=True)
class _Staged:
    """A snapshot that is being written; its slot tells no version before it is whole."""

    slot: Slot
    version: Version
    for_storage: bool


class SnapshotWriter:
    """One worker's slots.

    Four are enough that every state can be taken: the newest, the one that is written, one on its
    way to storage, and one on its way to another node. Of shards it takes six: the newest two, the
    one that is written, what other nodes have of all ranks, and what is on its way there or to
    storage. Memory is touched only as they are needed.

    Args:
        directory: where the slots lie; shared memory.
        worker_id: names them.
        num_slots: how many there are.
        num_kept: how many of the newest ones aren't written over: of shards two, since another rank
            may have come one step less far when it dies.
        shares_only: what is for storage is for nothing else: only this rank's share of it is
            copied, and forgotten once it is there.
        make_staging: brings what is on a GPU to the host.

    Attributes:
        trouble: why the last one that was left out was; empty if none was.
    """

    def __init__(
        self,
        directory: Path,
        worker_id: str,
        num_slots: int = 4,
        *,
        num_kept: int = 1,
        shares_only: bool = False,
        make_staging: Callable[[torch.device], DeviceStaging] = DeviceStaging,
    ):
        self.trouble = ""
        self._shares_only = shares_only
        self._make_staging = make_staging
        self._staging: DeviceStaging | None = None
        self._staged: _Staged | None = None
        self._paths = [directory / f"{worker_id}.{k}.snapshot" for k in range(num_slots)]
        self._slots: list[Slot] = []
        self._newest: deque[Slot] = deque(maxlen=num_kept)
        self._kept: frozenset[Version] = frozenset()

    @property
    def is_busy(self) -> bool:
        """Whether a snapshot is still on its way to storage."""
        is_staged = self._staged is not None and self._staged.for_storage
        return is_staged or any(slot.state is SlotState.READY for slot in self._slots)

    def write(
        self,
        tree: dict[str, Any],
        version: Version,
        share: Share | None,
        *,
        shard: ShardId = WHOLE,
        patience_s: float = 0,
        kept: frozenset[Version] = frozenset(),
    ) -> bool:
        """Copy ``tree``; False if it was left out, and `trouble` says why.

        Args:
            tree: of the whole state; its tensors are only read.
            version: of the state.
            share: which part of it this node is to bring to storage; None: it stays in memory.
            shard: which of the equal parts of sharded state ``tree`` has.
            patience_s: how long to wait for a slot that is still in use.
            kept: versions that must not be written over.
        """
        self._kept = kept
        try:
            self._finish_staging()
            return self._write(flatten_state(tree), version, share, shard, patience_s)
        except (StateError, RuntimeError) as error:
            # Of a type that it took on after the run had begun; or the device has no more room.
            return self._leave_out(str(error))

    def _write(
        self,
        flat: FlatState,
        version: Version,
        share: Share | None,
        shard: ShardId,
        patience_s: float,
    ) -> bool:
        tensors = [tensor.detach().contiguous() for tensor in flat.tensors.values()]
        records = [
            TensorRecord(path, _dtype_name(t), tuple(t.shape), t.nbytes, flat.places.get(path))
            for path, t in zip(flat.tensors, tensors, strict=True)
        ]
        partial_of = share if self._shares_only else None
        purpose = None
        if share is not None:
            partial = {} if partial_of is None else {"is_partial": True}
            purpose = {"share": [share.index, share.count], **partial}
        try:
            slot = self._take_one(shard, patience_s)
            views = None
            if slot is not None:
                views = slot.begin(version, flat.skeleton, records, purpose, shard)
        except OSError as error:
            num_bytes = sum(record.num_bytes for record in records)
            return self._leave_out(
                f"got {error.strerror} in {self._paths[0].parent}, expected room for "
                f"{len(self._paths)} snapshots of {num_bytes} bytes; enlarge /dev/shm "
                "(--shm-size of a container), or set snapshot.every_steps to null"
            )
        if slot is None or views is None:
            return self._leave_out(
                "got every slot in use, expected a free one: storage, or the way to other nodes, "
                "is slow"
            )
        transfers = [
            Transfer(tensor, view, is_lasting=path.startswith(_OPTIMIZERS))
            for path, tensor, view in zip(flat.tensors, tensors, views, strict=True)
        ]
        needed = None if partial_of is None else bytes_needed(records, partial_of)
        self._fill(_Staged(slot, version, share is not None), transfers, needed)
        if patience_s:  # the last one: nobody comes back for it
            self._finish_staging()
        return True

    def before_overwrite(self) -> None:
        """Have what training computes from here on wait for what is being copied."""
        if self._staging is not None:
            self._staging.before_overwrite()

    def _fill(
        self,
        snapshot: _Staged,
        transfers: Sequence[Transfer],
        needed: Iterable[tuple[int, int, int]] | None,
    ) -> None:
        """Copy what the host has; have the rest copied, and the slot completed then."""
        elsewhere = [each for each in transfers if each.tensor.device.type != "cpu"]
        if needed is None:
            needed = ((k, 0, each.tensor.nbytes) for k, each in enumerate(transfers))
        for index, start, stop in needed:
            if transfers[index].tensor.device.type == "cpu":
                _copy(transfers[index], start, stop)
        complete = partial(snapshot.slot.complete, for_storage=snapshot.for_storage)
        if not elsewhere:
            complete()
            self._newest.append(snapshot.slot)
            return
        if self._staging is None:
            self._staging = self._make_staging(elsewhere[0].tensor.device)
        self._staging.begin(elsewhere, complete)
        self._staged = snapshot

    def _finish_staging(self) -> None:
        """Wait for what is being copied.

        Raises:
            RuntimeError: it failed; the slot is written over.
        """
        if self._staging is None or self._staged is None:
            return
        slot, self._staged = self._staged.slot, None
        self._staging.wait()
        self._newest.append(slot)

    def settle(self) -> None:
        """Wait for what is being copied; if that fails, its slot is written over later."""
        with contextlib.suppress(RuntimeError):
            self._finish_staging()

    def holds(self, version: Version, shard: ShardId) -> bool:
        """Whether this shard of a version is here whole."""
        return any((slot.version, slot.shard) == (version, shard) for slot in self._slots)

    def copy_state_of(self, version: Version, shard: ShardId) -> CopyState | None:
        """Tell how it stands with copies of a shard on other nodes; None if it isn't here."""
        slot = self._find(version, shard)
        return None if slot is None else slot.copy_state

    def want_copy(self, version: Version, shard: ShardId, kept: Version | None = None) -> None:
        """Have the Keeper bring a shard to other nodes, which keep ``kept``, once it is here."""
        slot = self._find(version, shard)
        if slot is not None:
            slot.want_copy(kept)

    def _find(self, version: Version, shard: ShardId) -> Slot | None:
        """Return the slot with a shard of a version, or what is to become it."""
        staged = self._staged
        if staged is not None and (staged.version, staged.slot.shard) == (version, shard):
            return staged.slot
        found = (slot for slot in self._slots if (slot.version, slot.shard) == (version, shard))
        return next(found, None)

    def forget_after(self, step: int) -> None:
        """Steps after this one are void: what was copied of them is no state of the run."""
        self.settle()
        for slot in self._slots:
            version = slot.version
            if version is not None and version.step > step and slot.take() and slot in self._newest:
                self._newest.remove(slot)

    def discard(self) -> None:
        """Give the memory back: this rank copies no more. What is on its way to storage stays."""
        self.settle()
        self._slots = [slot for slot in self._slots if not slot.discard()]
        self._newest.clear()

    def _leave_out(self, trouble: str) -> bool:
        self.trouble = trouble
        return False

    def _take_one(self, shard: ShardId, patience_s: float) -> Slot | None:
        """Take any slot but the newest ones; that one too if there is no other.

        Of what is kept, the last to go are shards of which the same version is there cut anew.
        """
        there = {slot.path: slot for slot in self._slots if slot.is_there}
        if len(there) < len(self._paths):
            self._slots = [there.get(path) or Slot(path) for path in self._paths]
        alone = len(self._slots) == 1
        give_up_at_s = SYSTEM_CLOCK.monotonic_s() + patience_s
        while True:
            older = [slot for slot in self._slots if alone or slot not in self._newest]
            free = [slot for slot in older if alone or slot.version not in self._kept]
            outdated = [slot for slot in older if self._is_cut_anew(slot, shard)]
            for slot in free + outdated:
                if slot.take():
                    return slot
            if SYSTEM_CLOCK.monotonic_s() >= give_up_at_s:
                return None
            SYSTEM_CLOCK.sleep(_LOOK_EVERY_S)

    def _is_cut_anew(self, slot: Slot, shard: ShardId) -> bool:
        version = slot.version
        return slot.shard != shard and version is not None and self.holds(version, shard)


def _copy(what: Transfer, start: int, stop: int) -> None:
    if stop > start:
        landing = torch.frombuffer(what.view[start:stop], dtype=torch.uint8)
        landing.copy_(what.tensor.view(-1).view(torch.uint8)[start:stop])


def _dtype_name(tensor: Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
