"""Bring the snapshots of a node's workers to storage, beside everything else.

Process: keeper.  Thread: one of its own; a pool uploads.  Blocks: on the store; none waits.
Fails: never the run. A share of which the store takes nothing for long is given up and reported.
"""

import logging
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from trainflow.checkpointing.chunk_writer import Traffic
from trainflow.checkpointing.held_snapshots import HeldSnapshots
from trainflow.checkpointing.sharing import Share, ShareReport
from trainflow.checkpointing.snapshot import Snapshot
from trainflow.checkpointing.snapshot_slots import Slot
from trainflow.checkpointing.store import CheckpointStore
from trainflow.checkpointing.uploader import upload_share
from trainflow.clock import Clock
from trainflow.coordination.background_priority import yield_to_training
from trainflow.coordination.messages import ShareFailed, UploadAnswer
from trainflow.epochs import Version
from trainflow.errors import CheckpointError, UnreachableError

logger = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.1
_ASK_AGAIN_AFTER_S = 0.5
_FIRST_RETRY_AFTER_S = 0.5
_RETRY_AT_MOST_AFTER_S = 10.0


_Key = tuple[Path, Version]


class UploadDesk(Protocol):
    """The coordinator, as far as uploads go; UnreachableError where nobody answers."""

    def ask(self, version: Version, share_index: int) -> UploadAnswer:
        """Ask to upload a share of a version."""
        ...

    def tell(self, report: ShareReport | ShareFailed, permit: str) -> bool | None:
        """Report what became of it.

        Returns:
            True: it is over; None: it is heard, look again later; False: the permit is void, begin
            again.
        """
        ...

    def look(self, version: Version, permit: str) -> bool | None:
        """Look what has become of a version after its report, which is large, is heard.

        Returns:
            As `tell`.
        """
        ...


@dataclass
class _Brought:
    """What was brought of one snapshot, or could not be."""

    report: ShareReport | ShareFailed
    permit: str
    is_heard: bool = False


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
            give_up_after_s: how long a share is tried without a new chunk getting through.
        """
        self._held = held
        self._url = url
        self._desk = desk
        self._clock = clock
        self._give_up_after_s = give_up_after_s
        # By slot and state: what was brought, when to go on, since when nothing but errors came.
        self._brought: dict[_Key, _Brought] = {}
        self._again_at_s: dict[_Key, float] = {}
        self._failing_since_s: dict[_Key, float] = {}
        self._stopped = threading.Event()

    def run(self) -> None:
        """Look after the node's snapshots until `stop`."""
        yield_to_training()
        while not self._stopped.is_set():
            pause_s = _LOOK_EVERY_S
            try:
                worked = self.work_once()
            except Exception:
                logger.exception("the node's snapshots could not be looked at")
                worked, pause_s = False, _RETRY_AT_MOST_AFTER_S
            if not worked:
                self._clock.sleep(pause_s)

    def stop(self) -> None:
        """End `run` after what it is doing."""
        self._stopped.set()

    def waiting(self) -> tuple[Version, ...]:
        """Return the states of which a share is still to be brought; from any thread."""
        heard = {key for key, brought in self._brought.copy().items() if brought.is_heard}
        ready = self._held.find_ready()
        return tuple(s.version for slot, s in ready if (slot.path, s.version) not in heard)

    def work_once(self) -> bool:
        """Bring what is ready a step further; False if nothing moves at the moment."""
        ready = self._held.find_ready()
        keys = {(slot.path, snapshot.version) for slot, snapshot in ready}
        for known in (self._brought, self._again_at_s, self._failing_since_s):
            for gone in known.keys() - keys:
                del known[gone]
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
        again_after_s = _ASK_AGAIN_AFTER_S
        try:
            is_over = self._tell(key) if key in self._brought else self._bring(key, snapshot)
            self._failing_since_s.pop(key, None)
        except UnreachableError:
            is_over = None
        except Exception as error:
            logger.exception("step %d: a snapshot could not be dealt with", snapshot.version.step)
            is_over, again_after_s = self._bear(key, error), _RETRY_AT_MOST_AFTER_S
        if is_over is None:
            self._again_at_s[key] = self._clock.monotonic_s() + again_after_s
            return False
        self._brought.pop(key, None)
        self._again_at_s.pop(key, None)
        if is_over and snapshot.purpose.get("is_partial"):
            slot.free()  # nobody can begin from it
        elif is_over:
            slot.hold()
        return True

    def _bear(self, key: _Key, error: Exception) -> bool | None:
        """Try again for a time, then report that instead; if not even that goes, it is over."""
        now_s = self._clock.monotonic_s()
        if now_s - self._failing_since_s.setdefault(key, now_s) <= self._give_up_after_s:
            return None
        brought = self._brought.get(key)
        if brought is None or isinstance(brought.report, ShareFailed):
            return True
        reason = f"{type(error).__name__}: {error}"
        failed = ShareFailed(brought.report.version, brought.report.share, reason)
        self._brought[key] = _Brought(failed, brought.permit)
        del self._failing_since_s[key]
        return None

    def _bring(self, key: _Key, snapshot: Snapshot) -> bool | None:
        index, count = snapshot.purpose["share"]
        answer = self._desk.ask(snapshot.version, index)
        if answer.permit is None:
            return None if answer.wanted else True
        report = self._upload(snapshot, Share(index, count))
        self._brought[key] = _Brought(report, answer.permit)
        return self._tell(key)

    def _tell(self, key: _Key) -> bool | None:
        brought = self._brought[key]
        if brought.is_heard:
            return self._desk.look(brought.report.version, brought.permit)
        is_over = self._desk.tell(brought.report, brought.permit)
        brought.is_heard = True
        return is_over

    def _upload(self, snapshot: Snapshot, share: Share) -> ShareReport | ShareFailed:
        """Try until it is done, or nothing new has got through for too long."""
        progress_at_s = self._clock.monotonic_s()
        pause_s = _FIRST_RETRY_AFTER_S
        while True:
            traffic = Traffic()
            try:
                store = CheckpointStore(self._url)
                return upload_share(snapshot, share, store, traffic=traffic)
            except CheckpointError as error:
                logger.warning("step %d: %s", snapshot.version.step, error)
                reason = str(error)
            except Exception as error:
                logger.exception("step %d: a share could not be uploaded", snapshot.version.step)
                reason = f"{type(error).__name__}: {error}"
            now_s = self._clock.monotonic_s()
            if traffic.num_bytes_written:
                progress_at_s = now_s
            waited_s = now_s + pause_s - progress_at_s
            if self._stopped.is_set() or waited_s > self._give_up_after_s:
                return ShareFailed(snapshot.version, share, reason)
            self._clock.sleep(pause_s)
            pause_s = min(2 * pause_s, _RETRY_AT_MOST_AFTER_S)
