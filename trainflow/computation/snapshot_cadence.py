"""After which commits a rank copies its state out, and which copies go to storage.

A copy for storage is worth something only if every snapshot rank makes it. So what one of them
knows (that it is due by the clock, that the one before is still on its way) travels with the commit
record, and all decide alike.

Process: every rank.  Thread: training, in a commit.  Blocks: for the copy.
Fails: never the step; what is left out is reported.
"""

from collections.abc import Callable

from trainflow.checkpointing.retention import best_interval_s, is_due
from trainflow.checkpointing.sharing import Share
from trainflow.checkpointing.snapshot_slots import CopyState
from trainflow.checkpointing.streaming import Streaming
from trainflow.clock import Clock
from trainflow.computation.reports import SnapshotLeftOut
from trainflow.computation.snapshot_writer import SnapshotWriter
from trainflow.computation.training_state import TrainingState
from trainflow.config.job import JobConfig
from trainflow.epochs import WHOLE, EpochSpec, Flag, ShardId, Version

_LAST_WITHIN_S = 120.0
_PAUSING_WITHIN_S = 2.0  # of sharded state: others read their part of it in nodes' memory
_DISCARD_AFTER_COMMITS = 3
_SAVE_S_AT_FIRST = 1.0
_SAVE_S_AT_LEAST = 1e-3


def has_checkpoint(job: JobConfig, step: int) -> bool:
    """Whether a checkpoint is due after this step by its number, whenever and wherever it ran."""
    return job.checkpoint.url is not None and is_due(step, job.checkpoint.every_steps)


class SnapshotCadence:
    """One rank's snapshots."""

    def __init__(
        self,
        job: JobConfig,
        writer: SnapshotWriter,
        report: Callable[[SnapshotLeftOut], None],
        clock: Clock,
    ):
        self._job = job
        self._writer = writer
        self._report = report
        self._clock = clock
        self._due_from_s = clock.monotonic_s()
        self._save_s = _SAVE_S_AT_FIRST
        self._told_trouble = False
        self._commits_left_to_others = 0
        streams = job.parallel.is_sharded and job.snapshot.replicas > 0
        self._streaming = Streaming() if streams else None
        self._shard = WHOLE  # of sharded state, what is under way

    def flags(self, spec: EpochSpec, rank: int) -> Flag:
        """What this rank tells the others with its record of the step that is being committed."""
        flags = Flag.STORE_BUSY if self._writer.is_busy else Flag.NONE
        flags |= self._copy_flags()
        every_s = self._job.checkpoint.every_s
        if every_s == "auto":
            every_s = best_interval_s(self._save_s, spec.seconds_between_failures)
        if rank == 0 and every_s is not None:
            waited_s = self._clock.monotonic_s() - self._due_from_s
            flags |= Flag.CHECKPOINT if waited_s >= every_s else Flag.NONE
        return flags

    def after_commit(self, state: TrainingState, spec: EpochSpec, rank: int, flags: Flag) -> None:
        """Copy the new state out, if that is due and this rank is one that copies.

        Args:
            state: whole, at the version just committed.
            spec: of the epoch, which names those that copy.
            rank: this one.
            flags: of all ranks' records.
        """
        version, is_sharded = state.version, self._job.parallel.is_sharded
        if version is None or not (is_sharded or rank in spec.snapshot_ranks):
            self._leave_to_others()
            return
        self._commits_left_to_others = 0
        # What is there more than once of shards, the first to have it bring to storage.
        bringing = tuple(range(spec.shard_size)) if is_sharded else spec.snapshot_ranks
        share: Share | None = None
        if rank in bringing and self._is_for_storage(version.step, flags):
            share = Share(bringing.index(rank), len(bringing))
        if share is not None:
            self._due_from_s = self._clock.monotonic_s()
        if share is not None and not self.makes_checkpoint(version.step, flags):
            share = None
            if rank == bringing[0]:
                reason = "the store hasn't taken the one before"
                self._report(SnapshotLeftOut(version, for_storage=True, reason=reason))
        if share is not None or is_due(version.step, self._job.snapshot.every_steps):
            patience_s = self._choose_patience_s(version.step, flags, share)
            self._write(state, version, share, spec.shard_of(rank), patience_s)
        if self._streaming is not None and self._streaming.commit(version, flags):
            self._writer.want_copy(version, self._shard, self._streaming.recoverable)

    def _choose_patience_s(self, step: int, flags: Flag, share: Share | None) -> float:
        """Return for how long a copy waits for room; most are soon followed by a newer one."""
        if share is not None and self._is_last(step, flags):
            return _LAST_WITHIN_S
        is_read_next = self._job.parallel.is_sharded and bool(flags & Flag.PAUSE)
        return _PAUSING_WITHIN_S if is_read_next else 0.0

    def copy_lag(self, step: int) -> int | None:
        """Return by how many steps copies of sharded state on other nodes are behind ``step``."""
        arrived = None if self._streaming is None else self._streaming.recoverable
        return None if arrived is None else step - arrived.step

    def makes_checkpoint(self, step: int, flags: Flag) -> bool:
        """Whether this commit's state goes to storage, as far as all ranks know alike."""
        takes_it = not flags & Flag.STORE_BUSY or self._is_last(step, flags)
        return takes_it and self._is_for_storage(step, flags)

    def before_overwrite(self) -> None:
        """Have whoever is about to change the state wait for what is being copied of it."""
        self._writer.before_overwrite()

    def settle(self) -> None:
        """Wait until what is being copied is whole: others may go on from it then."""
        self._writer.settle()

    def begin_from(self, state: TrainingState, shard: ShardId) -> None:
        """An epoch begins: what it begins from is in memory here, and goes to other nodes.

        Args:
            state: sharded; what was copied of later steps is void.
            shard: this rank's.
        """
        version = state.version
        assert version is not None, "an epoch begins with a whole state"
        self._writer.forget_after(version.step)
        if not self._writer.holds(version, shard):
            self._write(state, version, None, shard, 0.0)
        if self._streaming is not None:
            self._streaming.begin(version)
            self._shard = shard
            self._writer.want_copy(version, shard, self._streaming.recoverable)

    def _copy_flags(self) -> Flag:
        """Say whether what sets out from all ranks has arrived from this one."""
        if self._streaming is None or self._streaming.under_way is None:
            return Flag.NONE
        state = self._writer.copy_state_of(self._streaming.under_way, self._shard)
        if state is None:
            return Flag.COPY_LOST
        return Flag.NONE if state is CopyState.DONE else Flag.COPYING

    def _leave_to_others(self) -> None:
        """Others copy the state now: once they have, what this rank has copied is not needed."""
        self._commits_left_to_others += 1
        if self._commits_left_to_others == _DISCARD_AFTER_COMMITS:
            self._writer.discard()

    def _write(
        self,
        state: TrainingState,
        version: Version,
        share: Share | None,
        shard: ShardId,
        patience_s: float,
    ) -> None:
        began_s = self._clock.monotonic_s()
        tree = state.tree()
        kept = frozenset[Version]() if self._streaming is None else self._streaming.kept
        done = self._writer.write(
            tree, version, share, shard=shard, patience_s=patience_s, kept=kept
        )
        self._save_s = max(self._clock.monotonic_s() - began_s, _SAVE_S_AT_LEAST)
        if not done and (share is not None or not self._told_trouble):
            reason = self._writer.trouble
            self._report(SnapshotLeftOut(version, for_storage=share is not None, reason=reason))
        self._told_trouble = not done

    def _is_for_storage(self, step: int, flags: Flag) -> bool:
        if self._job.checkpoint.url is None:
            return False
        asked = bool(flags & Flag.CHECKPOINT)
        return asked or has_checkpoint(self._job, step) or self._is_last(step, flags)

    def _is_last(self, step: int, flags: Flag) -> bool:
        return bool(flags & Flag.STOP) or step >= self._job.training.max_steps
