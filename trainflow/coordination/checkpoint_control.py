"""Make checkpoints of what the Keepers have brought to storage, and know which one is newest.

A checkpoint exists once its marker does, and only this writes markers: after every share of one
version is in the store, a manifest names their chunks, and the marker names the manifest.

Process: coordinator.  Thread: its event loop; the store is waited for in other threads.
"""

import asyncio
import logging
from collections.abc import Collection, Generator, Mapping
from contextlib import contextmanager, suppress

from trainflow.checkpointing.collector import Collected, collect
from trainflow.checkpointing.committing import commit_shares
from trainflow.checkpointing.manifest import Manifest
from trainflow.checkpointing.resume import find_resumable
from trainflow.checkpointing.retention import RetentionPolicy, choose_kept
from trainflow.checkpointing.sharing import Share, ShareReport, assemble, is_complete
from trainflow.checkpointing.store import CheckpointStore
from trainflow.checkpointing.verification import quarantine
from trainflow.clock import Clock
from trainflow.config.fingerprint import fingerprint
from trainflow.config.job import JobConfig
from trainflow.coordination.closed_versions import ClosedVersions
from trainflow.coordination.messages import ShareFailed, UploadAnswer
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.skipped_checkpoints import CheckpointMetrics, SkippedCheckpoints
from trainflow.coordination.upload_permits import UploadPermits
from trainflow.epochs import EpochId, StoredState, Version
from trainflow.errors import CheckpointError

logger = logging.getLogger(__name__)

_SHARE_WITHIN_S = 30.0
_UPLOAD_AT_MOST_S = 3600.0
_LOOK_AGAIN_AFTER_S = 1.0


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
        metrics: CheckpointMetrics | None = None,
    ):
        self._job_id = job_id
        self._job = job
        self._record = record
        self._clock = clock
        self._shares: dict[Version, dict[Share, ShareReport]] = {}
        self._permits = UploadPermits()
        self._ready: dict[str, frozenset[Version]] = {}  # by node: what it has yet to bring
        # Versions of which a share is missing that nobody has, and since when.
        self._stalled_since_s: dict[Version, float] = {}
        self._num_removing = 0  # that are removing something from the store at the moment
        self._committing: set[Version] = set()
        self.skipped = SkippedCheckpoints(record, metrics)
        self._changed = asyncio.Event()  # set by the next closing, which leaves another
        made = record.steps_of("checkpoint")
        # Oldest first; what an earlier coordinator made counts too.
        self._stored = [StoredState(str(self.url), step) for step in made]
        self._own = set(made)  # with those that were there before this run wrote any
        self._closed = ClosedVersions(max(made, default=0))
        for epoch, step in record.beginnings:
            self._closed.begin(epoch, step, self._closed.step)

    @property
    def newest(self) -> StoredState | None:
        """What to go on from, if nobody holds the state any more; None if there is nothing."""
        return self._stored[-1] if self._stored else None

    @property
    def url(self) -> str | None:
        """Where checkpoints go; None if none are made."""
        return self._job.checkpoint.url

    async def find_stored(self) -> None:
        """Look in the store for what to go on from, with what this run has made there.

        Raises:
            ConfigError: the checkpoint asked for isn't there, or was made with other settings.
            CheckpointError: the store doesn't answer.
        """
        own = set(self._record.steps_of("checkpoint"))
        resumable = await asyncio.to_thread(find_resumable, self._job, own)
        found = {each.step: each for each in resumable}
        if self.url is not None:
            there = await asyncio.to_thread(CheckpointStore(self.url).committed_steps)
            self._own |= set(there)
            found |= {step: StoredState(self.url, step) for step in own.intersection(there)}
        self._stored = [found[step] for step in sorted(found)]
        # Up to there nothing is left to make: a run that is begun again after its end adds nothing.
        self._closed.close(max(found, default=0))

    def ask(self, node_id: str, version: Version, incarnation: int) -> UploadAnswer:
        """A Keeper asks to upload its share of a version.

        What it then finds in the store stays there until the version's end: what is removed from
        the store is removed while nobody holds a permit.
        """
        if version in self._closed:
            return UploadAnswer(wanted=False)
        if self._num_removing or not self._permits.may_hold(node_id):
            return UploadAnswer(wanted=True)
        return UploadAnswer(wanted=True, permit=self._permits.grant(node_id, version, incarnation))

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
            await self._collect()
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
        stored_step = self._stored[-1].step if self._stored else 0
        self._closed.begin(epoch, step, stored_step)
        self._permits.void_if(lambda version: not self._closed.is_counted(version))
        self._shares = {v: all_of for v, all_of in self._shares.items() if v not in self._closed}
        self._tell_waiting()

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
        url = self.url
        if url is None:
            return
        self._permits.void_all()  # a share may rely on a chunk that is bad
        self._shares.clear()
        try:
            with self._removing():
                num_bad = await asyncio.to_thread(quarantine, CheckpointStore(url), step)
        except CheckpointError as error:
            logger.warning("the checkpoint of step %d stays where it is: %s", step, error)
            return
        if num_bad is None:
            text = f"the checkpoint of step {step} is whole, and stays where it is"
            self._record.add_event("checkpoint_whole", text, step=step)
            self._close(step)  # there is nothing to make
            return
        text = f"the checkpoint of step {step} no longer counts; {num_bad} bad chunks are removed"
        self._record.add_event("checkpoint_quarantined", text, step=step, num_bad_chunks=num_bad)

    @contextmanager
    def nothing_removed(self) -> Generator[None]:
        """Keep every checkpoint that is there; those that are made meanwhile come as ever."""
        with self._permits.reading():
            yield

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
            with suppress(TimeoutError):
                async with asyncio.timeout(min(left_s, _LOOK_AGAIN_AFTER_S)):
                    await self._changed.wait()

    @contextmanager
    def _removing(self) -> Generator[None]:
        self._num_removing += 1
        try:
            yield
        finally:
            self._num_removing -= 1

    async def _commit(self, shares: list[ShareReport], world_size: int) -> None:
        version = shares[0].version
        url = self.url
        assert url is not None, "shares come from a store"
        try:
            manifest = self._describe(shares, world_size)
            await asyncio.to_thread(commit_shares, CheckpointStore(url), manifest, shares)
        except CheckpointError as error:
            self._give_up(version, str(error))
            return
        except Exception as error:  # nobody holds the shares any more: they can't be told again
            logger.exception("the checkpoint of step %d could not be made", version.step)
            self._give_up(version, f"{type(error).__name__}: {error}")
            return
        self.skipped.end_row(version.step)
        self._own.add(version.step)
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

    async def _collect(self) -> None:
        """Remove what the policy doesn't keep, if nobody uploads or commits; else the next time."""
        url, settings = self.url, self._job.checkpoint
        if url is None or self._permits or self._committing or self._num_removing:
            return
        policy = RetentionPolicy(settings.keep_last, settings.keep_every, settings.keep_best)
        metric = settings.best_metric
        values = self._record.evaluations_of(metric) if metric is not None else {}
        try:
            with self._removing():
                collected = await asyncio.to_thread(self._remove, url, values, policy)
        except CheckpointError as error:
            self._record.add_event("checkpoints_not_removed", str(error))
            return
        if collected.steps:
            self._stored = [each for each in self._stored if each.step not in collected.steps]
            text = f"removed the checkpoints of steps {list(collected.steps)}"
            self._record.add_event("checkpoints_removed", text, steps=list(collected.steps))

    def _remove(self, url: str, values: Mapping[int, float], policy: RetentionPolicy) -> Collected:
        store = CheckpointStore(url)
        committed = store.committed_steps()
        for step in set(committed) - self._own:
            job_id = store.read_manifest(step).job_id
            if job_id != self._job_id:  # else the answer to its commit was lost
                raise CheckpointError(
                    f"{url}: got a checkpoint of step {step} by run {job_id}, expected this run's "
                    "alone while it goes on: nothing is removed there any more; give each run a "
                    "checkpoint.url of its own"
                )
        return collect(store, choose_kept(committed, values, policy))

    def _describe(self, shares: list[ShareReport], world_size: int) -> Manifest:
        version = shares[0].version
        return Manifest(
            job_id=self._job_id,
            step=version.step,
            attempt=str(version.epoch),
            created_at_s=self._clock.unix_s(),
            world_size=world_size,
            fingerprint=fingerprint(self._job),
            config=self._job.model_dump(mode="json"),
            skeleton=shares[0].skeleton,
            tensors=assemble(shares),
        )

    def _give_up(self, version: Version, reason: str) -> None:
        text = f"no checkpoint of step {version.step}: {reason}"
        self._record.add_event("checkpoint_failed", text, step=version.step)
        self._leave_out(version)

    def _close(self, step: int) -> None:
        """The checkpoint of a step is made, and with it those before it are over."""
        self._closed.close(step)
        self._permits.void_if(lambda version: version.step <= step)
        self._shares = {v: shares for v, shares in self._shares.items() if v.step > step}
        self._tell_waiting()

    def _leave_out(self, version: Version) -> None:
        """One checkpoint won't be made; those before it may."""
        self.skipped.count(version)
        if version not in self._closed:
            self._closed.leave_out(version)
            self._permits.void_if(lambda held: held == version)
            self._shares.pop(version, None)
            self._tell_waiting()

    def _tell_waiting(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

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
        is_under_way = self._is_coming_up_to(step) or self._num_removing > 0
        return self._closed.is_left_out(step) and not is_under_way
