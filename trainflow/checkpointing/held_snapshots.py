"""The snapshots in one node's memory: of its own workers, alive or dead, and other nodes' copies.

Process: keeper.  Threads: any.  Blocks: never; a description costs one pass over the snapshot.
"""

import logging
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from trainflow.checkpointing.boxes import whole
from trainflow.checkpointing.chunks import cut
from trainflow.checkpointing.manifest import Manifest, Shard, TensorEntry
from trainflow.checkpointing.snapshot_slots import Slot, SlotState, Snapshot
from trainflow.epochs import Version
from trainflow.errors import StateError

logger = logging.getLogger(__name__)

_SUFFIX = ".snapshot"
_COPY = "copy-"
_NUM_COPIES = 2  # of another node's: one is whole while the next arrives


class HeldSnapshots:
    """A folder of slots."""

    def __init__(self, folder: Path):
        self._folder = folder
        self._lock = threading.Lock()
        self._slots: dict[Path, Slot] = {}

    def newest(self) -> Version | None:
        """Return the newest state that is here whole; None if there is none."""
        return max((version for _, version in self._whole()), default=None)

    def find_ready(self) -> list[tuple[Slot, Snapshot]]:
        """Return the snapshots that are to go to storage, the oldest first."""
        ready = [(slot, v) for slot, v in self._whole() if slot.state is SlotState.READY]
        ready.sort(key=lambda each: each[1])
        snapshots = [(slot, _read(slot)) for slot, _ in ready]
        return [(slot, snapshot) for slot, snapshot in snapshots if snapshot is not None]

    @contextmanager
    def reading(self, version: Version) -> Generator[Snapshot]:
        """Yield a snapshot of this state; meanwhile nobody writes over it.

        Raises:
            StateError: there is none here.
        """
        for slot in [slot for slot, held in self._whole() if held == version]:
            with slot.reading():
                snapshot = _read(slot)
                if snapshot is not None and snapshot.version == version:
                    yield snapshot
                    return
        newest = self.newest()
        raise StateError(f"got no snapshot of {version}, expected one; the newest is of {newest}")

    def describe(self, version: Version, job_id: str) -> Manifest:
        """Return a manifest of the snapshot: what is in it, under the hashes of its bytes.

        Raises:
            StateError: there is none here.
        """
        with self.reading(version) as snapshot:
            tensors = {
                record.path: TensorEntry(
                    record.dtype,
                    record.shape,
                    (Shard(whole(record.shape), tuple(chunk for chunk, _ in cut(payload))),),
                )
                for record, payload in zip(snapshot.tensors, snapshot.payloads, strict=True)
            }
            return Manifest(
                job_id=job_id,
                step=version.step,
                attempt=str(version.epoch),
                created_at_s=0.0,
                world_size=1,
                fingerprint="",
                config={},
                skeleton=snapshot.skeleton,
                tensors=tensors,
            )

    def take_copy_slot(self, origin: str) -> Slot:
        """Return a slot for a copy from another node: never the one with its newest copy.

        Raises:
            OSError: no room for its first page.
            StateError: it is being read.
        """
        slots = [
            self._open(self._folder / f"{_COPY}{origin}.{k}{_SUFFIX}", create=True)
            for k in range(_NUM_COPIES)
        ]
        oldest = min(slots, key=lambda slot: (slot.version is not None, slot.version))
        if not oldest.take():
            raise StateError(f"{oldest.path}: got a slot in use, expected one to write to")
        return oldest

    def tidy(self, recoverable: Version | None) -> None:
        """Remove what dead workers and lost nodes have left and nobody can need.

        Args:
            recoverable: what is older than this state is not needed; None: nothing is known.
        """
        for slot in self._all():
            version, is_copy = slot.version, slot.path.name.startswith(_COPY)
            if slot.state is SlotState.READY or _is_alive(slot.path):
                continue
            outdated = version is not None and recoverable is not None and version < recoverable
            if outdated or (version is None and not is_copy):
                self._remove(slot)

    def _whole(self) -> list[tuple[Slot, Version]]:
        found = [(slot, slot.version) for slot in self._all()]
        return [(slot, version) for slot, version in found if version is not None]

    def _all(self) -> list[Slot]:
        paths = sorted(self._folder.glob(f"*{_SUFFIX}"))
        with self._lock:
            for gone in self._slots.keys() - set(paths):
                self._slots.pop(gone).close()
        slots: list[Slot] = []
        for path in paths:
            try:
                slots.append(self._open(path, create=False))
            except (OSError, StateError) as error:
                logger.warning("%s is left out: %s", path, error)
        return slots

    def _open(self, path: Path, *, create: bool) -> Slot:
        with self._lock:
            if path not in self._slots:
                self._slots[path] = Slot(path, create=create)
            return self._slots[path]

    def _remove(self, slot: Slot) -> None:
        slot.path.unlink(missing_ok=True)
        with self._lock:
            if self._slots.pop(slot.path, None) is not None:
                slot.close()


def _read(slot: Slot) -> Snapshot | None:
    try:
        return slot.read()
    except StateError:
        logger.exception("a snapshot is damaged and left out")
        slot.free()
        return None


def _is_alive(path: Path) -> bool:
    """Whether the worker of a slot has a stamp: the first thing it makes, the last it loses."""
    owner = path.name.removesuffix(_SUFFIX).rpartition(".")[0]
    return (path.parent / f"{owner}.stamp").exists()
