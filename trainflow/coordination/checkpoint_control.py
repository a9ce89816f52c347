"""Make checkpoints of what the Keepers have brought to storage, and know which one is newest.

A checkpoint exists once its marker does, and only this writes markers: after every share of one
version is in the store, a manifest names their chunks, and the marker names the manifest.

Process: coordinator.  Thread: its event loop; the store is waited for in other threads.
"""

import asyncio
import logging
import math
from collections.abc import Collection
from contextlib import AbstractContextManager, suppress

from trainflow.checkpointing.committing import CommittedBy, commit_shares, describe_state
from trainflow.checkpointing.resume import find_all
from trainflow.checkpointing.sharing import Share, ShareReport, is_complete
from trainflow.checkpointing.store import CheckpointStore
from trainflow.clock import Clock
from trainflow.config.job import JobConfig
from trainflow.coordination.changes import Changes
from trainflow.coordination.checkpoint_monitor import CheckpointMonitor, Unmonitored
from trainflow.coordination.closed_versions import ClosedVersions
from trainflow.coordination.messages import ShareFailed, UploadAnswer
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.skipped_checkpoints import SkippedCheckpoints
from trainflow.coordination.store_upkeep import StoreUpkeep
from trainflow.coordination.upload_permits import Upload, UploadPermits
from trainflow.epochs import EpochId, StoredState, Version
from trainflow.errors import CheckpointError

logger = logging.getLogger(__name__)

_SHARE_WITHIN_S = 30.0
_UPLOAD_AT_MOST_S = 3600.0
_LOOK_AGAIN_AFTER_S = 1.0
_CLOSE_WITHIN_S = 30.0


class CheckpointControl:
    """The checkpoints of one run.

    Attributes:
        skipped: those that were due and not made.
    """

    def __init__(
        self,
        job_id: str,
        job: JobConfig,
        record: RunRecord,
        clock: Clock,
        monitor: CheckpointMonitor = Unmonitored(),  # noqa: B008  it does nothing
    ):
        self._owner = CommittedBy(job_id, job)
        self._job = job
        self._record = record
        self._clock = clock
        self._shares: dict[Version, dict[Share, ShareReport]] = {}
        self._permits = UploadPermits()
        self._ready: dict[str, frozenset[Version]] = {}  # by node: what it has yet to bring
        # Versions of which a share is missing that nobody has, and since when.
        self._stalled_since_s: dict[Version, float] = {}
        self._committing: set[Version] = set()
        self._collecting: asyncio.Task[None] | None = None
        self._goes_back_to = math.inf  # a step; none beyond is made until the next epoch begins
        self._monitor = monitor
        self.skipped = SkippedCheckpoints(record, monitor)
        self._changes = Changes()
        made = record.steps_of("checkpoint")
        # Oldest first; what an earlier coordinator made counts too.
        self._stored = [StoredState(str(self.url), step) for step in made]
        self._upkeep = StoreUpkeep(job_id, job, record)
        self._upkeep.own |= set(made)
        self._closed = ClosedVersions(max(made, default=0))
        for epoch, step in record.beginnings:
            self._closed.begin(epoch, step, self._closed.step)

    @property
    def newest(self) -> StoredState | None:
        """What to go on from, if nobody holds the state any more; None if there is nothing."""
        return self._stored[-1] if self._stored else None

    @property
    def steps(self) -> tuple[int, ...]:
        """Of all that there are to go on from."""
        return tuple(stored.step for stored in self._stored)

    @property
    def url(self) -> str | None:
        """Where checkpoints go; None if none are made."""
        return self._job.checkpoint.url

    @property
    def last_coming(self) -> int | None:
        """The last step of which a share is on its way to the store; None if there is none."""
        left = {version for ready in self._ready.values() for version in ready}
        left |= self._permits.versions
        return max((version.step for version in left if version not in self._closed), default=None)

    async def find_stored(self) -> None:
        """Look in the store for what to go on from, with what this run has made there.

        Raises:
            ConfigError: the checkpoint asked for isn't there, or was made with other settings.
            CheckpointError: the store doesn't answer.
        """
        own = set(self._record.steps_of("checkpoint"))
        found = await asyncio.to_thread(find_all, self._job, own)
        self._stored = found.stored
        if found.anomalies is not None:
            self._monitor.go_on_from(self._stored[-1].step, found.anomalies)
        self._upkeep.own |= found.there
        self._upkeep.is_due = bool(own)  # an earlier coordinator may have left something
        # Up to there nothing is left to make: a run that is begun again after its end adds nothing.
        self._closed.close(max(self.steps, default=0))

    def ask(
        self, node_id: str, version: Version, incarnation: int, share_index: int = 0
    ) -> UploadAnswer:
        """A Keeper asks to upload a share of a version.

        What it then finds in the store stays there until the version's end: what is removed from
        the store is removed while nobody holds a permit.
        """
        if version in self._closed:
            return UploadAnswer(wanted=False)
        must_wait = self._upkeep.is_removing or version.step > self._goes_back_to
        if must_wait or not self._permits.may_hold(node_id):
            return UploadAnswer(wanted=True)
        upload = Upload(node_id, version, share_index)
        return UploadAnswer(wanted=True, permit=self._permits.grant(upload, incarnation))

    async def take(
        self, report: ShareReport | ShareFailed, permit: str, world_size: int
    ) -> bool | None:
        """Take what a Keeper says of its share; see `on_share`."""
        if isinstance(report, ShareFailed):
            await self.on_share_failed(report, permit)
            return True
        return await self.on_share(report, permit, world_size)

    async def on_share(self, report: ShareReport, permit: str, world_size: int) -> bool | None:
        """A share is in the store; the last one of its version makes the checkpoint.

        Returns:
            True if the checkpoint is made or given up. None as long as it isn't: keep the snapshot,
            and tell again, also another coordinator. False if the permit is void: what was found in
            the store may be gone.
        """
        version = report.version
        standing = self.look(version, permit)
        if standing is not None or version in self._committing:
            return standing
        shares = self._shares.setdefault(version, {})
        shares[report.share] = report
        self._permits.note_reported(permit)
        if is_complete(shares):
            del self._shares[version]
            self._committing.add(version)  # a Keeper that has waited too long tells again
            try:
                await self._commit(list(shares.values()), world_size)
            finally:
                self._committing.discard(version)
                self._changes.tell()
            self._upkeep.is_due = True
            self._collecting = asyncio.create_task(self.collect_due())  # no Keeper waits for it
        return self.look(version, permit)

    def look(self, version: Version, permit: str) -> bool | None:
        """Say what has become of a version of which a share was reported under a permit.

        Returns:
            As `on_share`.
        """
        if version in self._closed:
            return True
        if version in self._committing or self._permits.is_valid(permit):
            return None
        return False

    async def on_share_failed(self, failed: ShareFailed, permit: str) -> None:
        """A share could not be brought to the store: this checkpoint won't be."""
        if self._permits.is_valid(permit):
            self._give_up(failed.version, failed.reason)

    def hear(self, node_id: str, ready: Collection[Version]) -> None:
        """A Keeper says of which versions it has yet to bring its share, begun or not."""
        self._ready[node_id] = frozenset(ready)

    def on_epoch(self, epoch: EpochId, step: int) -> None:
        """An epoch begins after ``step``: what earlier ones have beyond it won't be made."""
        self._goes_back_to = math.inf
        stored_step = self._stored[-1].step if self._stored else 0
        self._closed.begin(epoch, step, stored_step)
        self._permits.void_if(lambda version: not self._closed.is_counted(version))
        self._shares = {v: all_of for v, all_of in self._shares.items() if v not in self._closed}
        self._changes.tell()

    def on_node_lost(self, node_id: str) -> None:
        """A Keeper is gone, with what it was uploading."""
        self._permits.void_of(node_id)
        self._ready.pop(node_id, None)

    async def tick(self, node_ids: set[str] | None = None) -> None:
        """Give up a version of which nobody has what is missing: its node or rank is lost.

        Args:
            node_ids: the nodes with a Keeper that counts, no other holds a permit; None: unknown.
        """
        if node_ids is not None:
            self._permits.keep_to(node_ids)
            self._ready = {node: self._ready[node] for node in self._ready.keys() & node_ids}
        now_s = self._clock.monotonic_s()
        stalled = {version for version in self._shares if not self._is_coming(version)}
        self._stalled_since_s = {v: self._stalled_since_s.get(v, now_s) for v in stalled}
        for version, since_s in list(self._stalled_since_s.items()):
            if now_s - since_s > _SHARE_WITHIN_S:
                self._give_up(version, "the node that had a part of it is gone")

    def on_skipped(self, version: Version, reason: str) -> None:
        """A state that was due won't become a checkpoint; the first in a row is told.

        Those before it may be on their way still, and are not given up.
        """
        self._leave_out(version)
        self.skipped.tell(version, reason)

    def on_unusable(self, step: int, reason: str) -> None:
        """A checkpoint turned out to be bad: the one before it is the newest now."""
        text = f"the checkpoint of step {step} can't be used: {reason}"
        self._record.add_event("checkpoint_unusable", text, step=step)
        self._stored = [stored for stored in self._stored if stored.step != step]
        self._closed.reopen_after(step - 1)

    async def quarantine(self, step: int) -> None:
        """Take a bad checkpoint away, so that a good one of its step can be made.

        One that turns out to be whole stays; another run's is left to its owner.
        """
        if self.url is None:
            return
        self._permits.void_all()  # a share may rely on a chunk that is bad
        self._shares.clear()
        if await self._upkeep.quarantine(self.url, step):
            self._close(step)  # there is nothing to make

    async def go_back(self, step: int) -> StoredState | None:
        """Remove this run's checkpoints after a step: they are of a history that is left behind.

        Until the next epoch begins none is made after the step.

        Returns:
            The newest that is left up to the step; None if there is none: then nothing is removed.

        Raises:
            CheckpointError: the store doesn't answer; some may be gone, and none of them counts.
        """
        self._goes_back_to = step
        self._permits.void_all()
        self._shares.clear()
        while self._is_busy():  # what is being committed goes as well
            await self._changes.wait(_LOOK_AGAIN_AFTER_S)
        left = [stored for stored in self._stored if stored.step <= step]
        try:
            if left and self.url is not None:
                await self._upkeep.forget_after(self.url, step)
        except CheckpointError:
            self._stay(left)
            raise
        if not left:
            self._stay(self._stored)
            return None
        self._stored = left
        return self.newest

    def _stay(self, stored: list[StoredState]) -> None:
        """The run doesn't go back after all; what comes is brought as ever."""
        self._goes_back_to, self._stored = math.inf, stored
        self._closed.reopen_after(max(self.steps, default=0))

    def reading(self, stored: StoredState) -> AbstractContextManager[None]:
        """Keep a checkpoint while somebody reads it; others come and go as ever."""
        return self._upkeep.reading(stored)

    async def collect_due(self) -> None:
        """Remove what isn't kept, if that is due and nobody uploads or commits."""
        url = self.url
        if url is None or not self._upkeep.is_due or self._permits or self._is_busy():
            return
        gone = await self._upkeep.collect(url)
        self._stored = [each for each in self._stored if each.step not in gone]
        self._changes.tell()

    async def close(self) -> None:
        """Remove what is due, now that nobody uploads any more; a slow store is left as it is."""
        self._permits.void_all()
        with suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_WITHIN_S):
                while self._is_busy():
                    await self._changes.wait(_LOOK_AGAIN_AFTER_S)
                await self.collect_due()

    async def wait_closed(self, step: int, timeout_s: float) -> None:
        """Wait until the checkpoint of ``step`` is made or given up; says so if neither comes.

        If it is left out, wait for those before it that are on their way.

        Args:
            step: of the checkpoint.
            timeout_s: how long to wait while nobody uploads; an upload may take an hour.
        """
        now_s = asyncio.get_running_loop().time
        begun_s = last_upload_s = now_s()
        while not self._is_over(step):
            if self._is_coming_up_to(step):
                last_upload_s = now_s()
            left_s = min(last_upload_s + timeout_s, begun_s + _UPLOAD_AT_MOST_S) - now_s()
            if left_s <= 0:
                text = (
                    f"the checkpoint of step {step} was not made within {now_s() - begun_s:.0f} s"
                )
                self._record.add_event("checkpoint_failed", text, step=step)
                self.skipped.count(None)
                return
            await self._changes.wait(min(left_s, _LOOK_AGAIN_AFTER_S))

    async def _commit(self, shares: list[ShareReport], world_size: int) -> None:
        version = shares[0].version
        url = self.url
        assert url is not None, "shares come from a store"
        try:
            known = self._monitor.describe_anomalies(version.step)
            made_at_s = self._clock.unix_s()
            manifest = describe_state(self._owner, shares, world_size, made_at_s, known)
            await asyncio.to_thread(commit_shares, CheckpointStore(url), manifest, shares)
        except CheckpointError as error:
            self._give_up(version, str(error))
            return
        except Exception as error:  # nobody holds the shares any more: they can't be told again
            logger.exception("the checkpoint of step %d could not be made", version.step)
            self._give_up(version, f"{type(error).__name__}: {error}")
            return
        self.skipped.end_row()
        self._upkeep.own.add(version.step)
        written = sum(share.num_bytes_written for share in shares)
        # A store may answer the later of two first.
        made = StoredState(url, version.step)
        self._stored = sorted([*self._stored, made], key=lambda stored: stored.step)
        self._record.add_event(
            "checkpoint",
            f"step {version.step} is in {url}: {manifest.num_bytes} bytes, {written} of them new",
            step=version.step,
            num_bytes=manifest.num_bytes,
            num_bytes_written=written,
        )
        self._close(version.step)

    def _give_up(self, version: Version, reason: str) -> None:
        text = f"no checkpoint of step {version.step}: {reason}"
        self._record.add_event("checkpoint_failed", text, step=version.step)
        self._leave_out(version)

    def _close(self, step: int) -> None:
        """The checkpoint of a step is made, and with it those before it are over."""
        self._closed.close(step)
        self._permits.void_if(lambda version: version.step <= step)
        self._shares = {v: shares for v, shares in self._shares.items() if v.step > step}
        self._changes.tell()

    def _leave_out(self, version: Version) -> None:
        """One checkpoint won't be made; those before it may."""
        self.skipped.count(version)
        if version not in self._closed:
            self._closed.leave_out(version)
            self._permits.void_if(lambda held: held == version)
            self._shares.pop(version, None)
            self._changes.tell()

    def _is_busy(self) -> bool:
        """Whether something is being committed or removed."""
        return bool(self._committing) or self._upkeep.is_removing

    def _is_coming(self, version: Version) -> bool:
        """Whether a Keeper that lives is bringing a share of it, or has one left to bring."""
        has_left = any(version in ready for ready in self._ready.values())
        return has_left or self._permits.num_uploading(version) > 0

    def _is_coming_up_to(self, step: int) -> bool:
        """Whether something is on its way to storage of one of these steps."""
        left = {version for ready in self._ready.values() for version in ready}
        is_left = any(v.step <= step and v not in self._closed for v in left)
        return is_left or self._permits.num_up_to(step) > 0

    def _is_over(self, step: int) -> bool:
        """Whether nothing comes any more, of this step nor, if it is left out, of one before."""
        if step <= self._closed.step:
            return True
        is_under_way = self._is_coming_up_to(step) or self._upkeep.is_removing
        return self._closed.is_left_out(step) and not is_under_way
