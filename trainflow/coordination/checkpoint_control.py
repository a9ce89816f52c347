"""Make checkpoints of what the Keepers have brought to storage, and know which one is newest.

A checkpoint exists once its marker does, and only this writes markers: after every share of one
version is in the store, a manifest names their chunks, and the marker names the manifest.

Process: coordinator.  Thread: its event loop; the store is waited for in other threads.
"""

import asyncio
import logging
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Protocol

from trainflow.checkpointing.collector import Collected, collect
from trainflow.checkpointing.manifest import Manifest
from trainflow.checkpointing.resume import find_resumable
from trainflow.checkpointing.retention import RetentionPolicy, choose_kept
from trainflow.checkpointing.sharing import Share, ShareReport, assemble, is_complete
from trainflow.checkpointing.store import CheckpointStore
from trainflow.checkpointing.verification import quarantine
from trainflow.clock import Clock
from trainflow.config.fingerprint import fingerprint
from trainflow.config.job import JobConfig
from trainflow.coordination.messages import ShareFailed, UploadAnswer
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.upload_permits import UploadPermits
from trainflow.epochs import INITIAL_EPOCH, StoredState, Version
from trainflow.errors import CheckpointConflictError, CheckpointError

logger = logging.getLogger(__name__)

_SHARE_WITHIN_S = 30.0
_READER = "a reader"  # in place of a node
_NEVER_OVER = Version(2**63, INITIAL_EPOCH)


class CheckpointMetrics(Protocol):
    """Takes what is to be seen of checkpoints from outside."""

    def on_checkpoint(self, step: int) -> None:
        """A checkpoint is made."""
        ...

    def on_checkpoint_skipped(self) -> None:
        """A checkpoint that was due is not made."""
        ...


class CheckpointControl:
    """The checkpoints of one run.

    Attributes:
        num_skipped: checkpoints that were due and not made.
    """

    def __init__(
        self,
        job_id: str,
        job: JobConfig,
        record: RunRecord,
        clock: Clock,
        metrics: CheckpointMetrics | None = None,
    ):
        self._metrics = metrics
        self._job_id = job_id
        self._job = job
        self._record = record
        self._clock = clock
        self._shares: dict[Version, dict[Share, ShareReport]] = {}
        self._permits = UploadPermits()
        # Versions of which a share is missing that nobody uploads, and since when.
        self._stalled_since_s: dict[Version, float] = {}
        self._collecting = False
        self.num_skipped = 0
        self._skips_in_a_row = 0
        self._changed = asyncio.Condition()
        made = record.steps_of("checkpoint")
        # Oldest first; what an earlier coordinator made counts too.
        self._stored = [StoredState(str(self.url), step) for step in made]
        # The newest step whose checkpoint was made or given up.
        self._closed_step = max([0, *made, *record.steps_of("checkpoint_failed")])

    @property
    def newest(self) -> StoredState | None:
        """What to go on from, if nobody holds the state any more; None if there is nothing."""
        return self._stored[-1] if self._stored else None

    @property
    def url(self) -> str | None:
        """Where checkpoints go; None if none are made."""
        return self._job.checkpoint.url

    async def find_stored(self) -> None:
        """Look in the store for what to go on from.

        Raises:
            ConfigError: the checkpoint asked for isn't there, or was made with other settings.
            CheckpointError: the store doesn't answer.
        """
        self._stored = await asyncio.to_thread(find_resumable, self._job)
        # Up to there nothing is left to make: a run that is begun again after its end adds nothing.
        self._closed_step = max([self._closed_step, *(each.step for each in self._stored)])

    def ask(self, node_id: str, version: Version, incarnation: int) -> UploadAnswer:
        """A Keeper asks to upload its share of a version.

        What it then finds in the store stays there until the version's end: what is removed from
        the store is removed while nobody holds a permit.
        """
        if version.step <= self._closed_step:
            return UploadAnswer(wanted=False)
        if self._collecting:
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
        if version.step <= self._closed_step:
            return True
        if not self._permits.is_valid(permit):
            return False
        shares = self._shares.setdefault(version, {})
        shares[report.share] = report
        if is_complete(shares):
            del self._shares[version]
            await self._commit(list(shares.values()), world_size)
            await self._collect()
        return True if self._closed_step >= version.step else None

    async def on_share_failed(self, failed: ShareFailed, permit: str) -> None:
        """A share could not be brought to the store: this checkpoint won't be."""
        if self._permits.is_valid(permit):
            await self._give_up(failed.version, failed.reason)

    def on_node_lost(self, node_id: str) -> None:
        """A Keeper is gone, with what it was uploading."""
        self._permits.void_of(node_id)

    async def tick(self) -> None:
        """Give up a version of which nobody uploads what is missing: its node or rank is lost."""
        now_s = self._clock.monotonic_s()
        stalled = {v for v, got in self._shares.items() if self._permits.num_for(v) <= len(got)}
        self._stalled_since_s = {v: self._stalled_since_s.get(v, now_s) for v in stalled}
        for version, since_s in list(self._stalled_since_s.items()):
            if now_s - since_s > _SHARE_WITHIN_S:
                await self._give_up(version, "the node that had a part of it is gone")

    def on_skipped(self, version: Version, reason: str) -> None:
        """A state that was due won't become a checkpoint; the first in a row is told."""
        self.num_skipped += 1
        if self._metrics is not None:
            self._metrics.on_checkpoint_skipped()
        if self._skips_in_a_row == 0:
            text = f"no checkpoint of step {version.step}: {reason}; those that follow are counted"
            self._record.add_event("checkpoint_skipped", text, step=version.step)
        self._skips_in_a_row += 1

    def on_unusable(self, step: int, reason: str) -> None:
        """A checkpoint turned out to be bad: the one before it is the newest now."""
        text = f"the checkpoint of step {step} can't be used: {reason}"
        self._record.add_event("checkpoint_unusable", text, step=step)
        self._stored = [stored for stored in self._stored if stored.step != step]
        self._closed_step = min(self._closed_step, step - 1)

    async def quarantine(self, step: int) -> None:
        """Take a bad checkpoint away, so that a good one of its step can be made.

        Another run's is left to its owner.
        """
        url = self.url
        if url is None:
            return
        self._permits.void_all()  # a share may rely on a chunk that is bad
        self._collecting = True
        try:
            num_bad = await asyncio.to_thread(quarantine, CheckpointStore(url), step)
        except CheckpointError as error:
            logger.warning("the checkpoint of step %d stays where it is: %s", step, error)
            return
        finally:
            self._collecting = False
        text = f"the checkpoint of step {step} no longer counts; {num_bad} bad chunks are removed"
        self._record.add_event("checkpoint_quarantined", text, step=step, num_bad_chunks=num_bad)

    @contextmanager
    def nothing_removed(self) -> Generator[None]:
        """Keep every checkpoint that is there; those that are made meanwhile come as ever."""
        self._permits.grant(_READER, _NEVER_OVER, 0)
        try:
            yield
        finally:
            self._permits.void_of(_READER)

    async def wait_closed(self, step: int, timeout_s: float) -> None:
        """Wait until the checkpoint of ``step`` is made or given up; says so if neither comes."""
        try:
            async with asyncio.timeout(timeout_s), self._changed:
                await self._changed.wait_for(lambda: self._closed_step >= step)
        except TimeoutError:
            text = f"the checkpoint of step {step} was not made within {timeout_s:.0f} s"
            self._record.add_event("checkpoint_failed", text, step=step)

    async def _commit(self, shares: list[ShareReport], world_size: int) -> None:
        version = shares[0].version
        url = self.url
        assert url is not None, "shares come from a store"
        try:
            manifest = self._describe(shares, world_size)
            await asyncio.to_thread(_commit, CheckpointStore(url), manifest, shares)
        except CheckpointError as error:
            await self._give_up(version, str(error))
            return
        self._skips_in_a_row = 0
        if self._metrics is not None:
            self._metrics.on_checkpoint(version.step)
        written = sum(share.num_bytes_written for share in shares)
        self._stored.append(StoredState(url, version.step))
        self._record.add_event(
            "checkpoint",
            f"step {version.step} is in {url}: {manifest.num_bytes} bytes, {written} of them new",
            step=version.step,
            num_bytes=manifest.num_bytes,
            num_bytes_written=written,
        )
        await self._close(version.step)

    async def _collect(self) -> None:
        """Remove what the policy doesn't keep, if nobody uploads; else the next time."""
        url, settings = self.url, self._job.checkpoint
        if url is None or self._permits or self._collecting:
            return
        policy = RetentionPolicy(settings.keep_last, settings.keep_every, settings.keep_best)
        metric = settings.best_metric
        values = self._record.evaluations_of(metric) if metric is not None else {}
        self._collecting = True
        try:
            collected = await asyncio.to_thread(_collect, CheckpointStore(url), values, policy)
        except CheckpointError as error:
            self._record.add_event("checkpoints_not_removed", str(error))
            return
        finally:
            self._collecting = False
        if collected.steps:
            self._stored = [each for each in self._stored if each.step not in collected.steps]
            text = f"removed the checkpoints of steps {list(collected.steps)}"
            self._record.add_event("checkpoints_removed", text, steps=list(collected.steps))

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

    async def _give_up(self, version: Version, reason: str) -> None:
        text = f"no checkpoint of step {version.step}: {reason}"
        self._record.add_event("checkpoint_failed", text, step=version.step)
        await self._close(version.step)

    async def _close(self, step: int) -> None:
        async with self._changed:
            self._closed_step = max(self._closed_step, step)
            self._permits.void_up_to(step)
            for past in [version for version in self._shares if version.step <= step]:
                del self._shares[past]
            self._changed.notify_all()


def _commit(store: CheckpointStore, manifest: Manifest, shares: list[ShareReport]) -> None:
    for share in shares:
        for chunk in list(share.chunks.values())[:1]:
            if not store.has_chunk(chunk):
                raise CheckpointError(
                    f"{store.url}: got no chunk {chunk.chunk_id}, which a node has just written, "
                    "expected it; set checkpoint.url to a folder that all nodes share"
                )
    try:
        store.commit(manifest)
    except CheckpointConflictError:
        # Made by a coordinator that died before it could say so? Then it is of the same state.
        made = store.read_manifest(manifest.step)
        if (made.job_id, made.attempt) != (manifest.job_id, manifest.attempt):
            raise


def _collect(
    store: CheckpointStore, values: Mapping[int, float], policy: RetentionPolicy
) -> Collected:
    return collect(store, choose_kept(store.committed_steps(), values, policy))
