"""Bring the snapshots of a node's workers to storage, beside everything else.

Process: keeper.  Thread: one of its own; a pool uploads.  Blocks: on the store; none waits.
Fails: never the run. A share that the store doesn't take within its time is given up and reported.
"""

import logging
import threading
from pathlib import Path
from typing import Protocol

from trainflow.checkpointing.sharing import Share, ShareReport
from trainflow.checkpointing.snapshot_slots import Slot, SlotState, Snapshot
from trainflow.checkpointing.store import CheckpointStore
from trainflow.checkpointing.uploader import upload_share
from trainflow.clock import Clock
from trainflow.coordination.messages import ShareFailed, UploadAnswer
from trainflow.epochs import Version
from trainflow.errors import CheckpointError, StateError

logger = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.1
_ASK_AGAIN_AFTER_S = 0.5
_FIRST_RETRY_AFTER_S = 0.5
_RETRY_AT_MOST_AFTER_S = 10.0


class UploadDesk(Protocol):
    """The coordinator, as far as uploads go; None from either where it can't be reached."""

    def ask(self, version: Version) -> UploadAnswer | None:
        """Ask to upload a share of a version."""
        ...

    def tell(self, report: ShareReport | ShareFailed, permit: str) -> bool | None:
        """Report what became of it; False if the permit is void: begin again."""
        ...


class SnapshotService:
    """Uploads what is ready in a folder of slots, the oldest first."""

    def __init__(
        self, folder: Path, url: str, desk: UploadDesk, clock: Clock, *, give_up_after_s: float
    ):
        """Make a service; `run` does the work.

        Args:
            folder: where the node's workers put their snapshots.
            url: of the store.
            desk: gives permits, takes reports.
            clock: measures and waits.
            give_up_after_s: how long one share is tried.
        """
        self._folder = folder
        self._url = url
        self._desk = desk
        self._clock = clock
        self._give_up_after_s = give_up_after_s
        self._slots: dict[Path, Slot] = {}
        self._stopped = threading.Event()

    def run(self) -> None:
        """Look after the folder until `stop`."""
        while not self._stopped.is_set():
            try:
                worked = self.work_once()
            except Exception:
                logger.exception("a snapshot in %s could not be handled", self._folder)
                worked = False
            if not worked:
                self._clock.sleep(_LOOK_EVERY_S)

    def stop(self) -> None:
        """End `run` after what it is doing."""
        self._stopped.set()

    def work_once(self) -> bool:
        """Bring the oldest ready snapshot to the store; False if there is none."""
        ready = self._find_ready()
        if not ready:
            return False
        slot, snapshot = min(ready, key=lambda each: each[1].version)
        index, count = snapshot.purpose["share"]
        while not self._bring(snapshot, Share(index, count)):
            self._clock.sleep(_ASK_AGAIN_AFTER_S)
        slot.free()
        return True

    def _bring(self, snapshot: Snapshot, share: Share) -> bool:
        """Ask, upload, report; False if that is to be done again."""
        answer = self._desk.ask(snapshot.version)
        if answer is not None and not answer.wanted:
            return True
        if answer is None or answer.permit is None:
            return self._stopped.is_set()
        report = self._upload(snapshot, share)
        while True:
            taken = self._desk.tell(report, answer.permit)
            if taken is not None or self._stopped.is_set():
                return taken is not False
            self._clock.sleep(_ASK_AGAIN_AFTER_S)

    def _find_ready(self) -> list[tuple[Slot, Snapshot]]:
        ready: list[tuple[Slot, Snapshot]] = []
        paths = set(self._folder.glob("*.snapshot"))
        for gone in self._slots.keys() - paths:
            del self._slots[gone]
        for path in paths:
            slot = self._slots.setdefault(path, Slot(path))
            snapshot = self._read(slot)
            if snapshot is not None:
                ready.append((slot, snapshot))
            elif not _is_alive(path):
                path.unlink(missing_ok=True)  # of a worker that is gone, and nothing to bring
        return ready

    def _read(self, slot: Slot) -> Snapshot | None:
        try:
            return slot.read() if slot.state is SlotState.READY else None
        except StateError:
            logger.exception("a snapshot is damaged and left out")
            slot.free()
            return None

    def _upload(self, snapshot: Snapshot, share: Share) -> ShareReport | ShareFailed:
        """Try until it is done or its time is over."""
        give_up_at_s = self._clock.monotonic_s() + self._give_up_after_s
        pause_s = _FIRST_RETRY_AFTER_S
        while True:
            try:
                return upload_share(snapshot, share, CheckpointStore(self._url))
            except CheckpointError as error:
                logger.warning("step %d: %s", snapshot.version.step, error)
                if self._stopped.is_set() or self._clock.monotonic_s() + pause_s > give_up_at_s:
                    return ShareFailed(snapshot.version, share, str(error))
            self._clock.sleep(pause_s)
            pause_s = min(2 * pause_s, _RETRY_AT_MOST_AFTER_S)


def _is_alive(slot_path: Path) -> bool:
    """Whether the worker of a slot has a stamp: the first thing it makes, the last it loses."""
    worker_id = slot_path.name.split(".snapshot")[0].rpartition(".")[0]
    return (slot_path.parent / f"{worker_id}.stamp").exists()
