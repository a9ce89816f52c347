"""Bring the snapshots of a node's workers to storage, beside everything else.

Process: keeper.  Thread: one of its own; a pool uploads.  Blocks: on the store; none waits.
Fails: never the run. A share that the store doesn't take within its time is given up and reported.
"""

import logging
import threading
from pathlib import Path
from typing import Protocol

from trainflow.checkpointing.held_snapshots import HeldSnapshots
from trainflow.checkpointing.sharing import Share, ShareReport
from trainflow.checkpointing.snapshot_slots import Slot, Snapshot
from trainflow.checkpointing.store import CheckpointStore
from trainflow.checkpointing.uploader import upload_share
from trainflow.clock import Clock
from trainflow.coordination.background_priority import yield_to_training
from trainflow.coordination.messages import ShareFailed, UploadAnswer
from trainflow.epochs import Version
from trainflow.errors import CheckpointError

logger = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.1
_ASK_AGAIN_AFTER_S = 0.5
_FIRST_RETRY_AFTER_S = 0.5
_RETRY_AT_MOST_AFTER_S = 10.0


_Key = tuple[Path, Version]
_Told = tuple[ShareReport | ShareFailed, str]


class UploadDesk(Protocol):
    """The coordinator, as far as uploads go; None from either where it can't be reached."""

    def ask(self, version: Version) -> UploadAnswer | None:
        """Ask to upload a share of a version."""
        ...

    def tell(self, report: ShareReport | ShareFailed, permit: str) -> bool | None:
        """Report what became of it.

        Returns:
            True: it is over; None: tell again later; False: the permit is void, begin again.
        """
        ...


class SnapshotService:
    """Uploads what is ready of a node's snapshots, the oldest first."""

    def __init__(
        self,
        held: HeldSnapshots,
        url: str,
        desk: UploadDesk,
        clock: Clock,
        *,
        give_up_after_s: float,
    ):
        """Make a service; `run` does the work.

        Args:
            held: the node's snapshots.
            url: of the store.
            desk: gives permits, takes reports.
            clock: measures and waits.
            give_up_after_s: how long one share is tried.
        """
        self._held = held
        self._url = url
        self._desk = desk
        self._clock = clock
        self._give_up_after_s = give_up_after_s
        # By slot and state: what was told of it, and when to speak of it again.
        self._told: dict[_Key, _Told] = {}
        self._again_at_s: dict[_Key, float] = {}
        self._stopped = threading.Event()

    def run(self) -> None:
        """Look after the node's snapshots until `stop`."""
        yield_to_training()
        while not self._stopped.is_set():
            try:
                worked = self.work_once()
            except Exception:
                logger.exception("a snapshot could not be handled")
                worked = False
            if not worked:
                self._clock.sleep(_LOOK_EVERY_S)

    def stop(self) -> None:
        """End `run` after what it is doing."""
        self._stopped.set()

    def work_once(self) -> bool:
        """Bring what is ready a step further; False if nothing moves at the moment."""
        ready = self._held.find_ready()
        keys = {(slot.path, snapshot.version) for slot, snapshot in ready}
        self._told = {key: told for key, told in self._told.items() if key in keys}
        moved = [self._advance(slot, snapshot) for slot, snapshot in ready]
        return any(moved)

    def _advance(self, slot: Slot, snapshot: Snapshot) -> bool:
        """Bring it and report, or see what has become of what was reported.

        The slot stays READY until the checkpoint is made or given up: a coordinator that dies takes
        with it what it was told.
        """
        key = slot.path, snapshot.version
        if self._again_at_s.get(key, 0.0) > self._clock.monotonic_s():
            return False
        is_over = self._tell(key) if key in self._told else self._bring(key, snapshot)
        if is_over is None:
            self._again_at_s[key] = self._clock.monotonic_s() + _ASK_AGAIN_AFTER_S
            return False
        self._told.pop(key, None)
        self._again_at_s.pop(key, None)
        if is_over:
            slot.hold()
        return True

    def _bring(self, key: _Key, snapshot: Snapshot) -> bool | None:
        answer = self._desk.ask(snapshot.version)
        if answer is None:
            return None
        if answer.permit is None:
            return None if answer.wanted else True
        index, count = snapshot.purpose["share"]
        self._told[key] = self._upload(snapshot, Share(index, count)), answer.permit
        return self._tell(key)

    def _tell(self, key: _Key) -> bool | None:
        return self._desk.tell(*self._told[key])

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
