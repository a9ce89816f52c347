"""What is kept of a run's state beside its ranks: snapshots in memory, checkpoints in storage.

Process: coordinator.  Thread: its event loop.
"""

import asyncio
import logging
import os
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from trainflow.computation.reports import CheckpointUnusable, SnapshotLeftOut
from trainflow.config.job import JobConfig
from trainflow.coordination.background import Background
from trainflow.coordination.checkpoint_control import CheckpointControl
from trainflow.coordination.detector_guard import DetectorGuard
from trainflow.coordination.drill_schedule import DrillSchedule
from trainflow.coordination.job_variables import find_variables
from trainflow.coordination.memory_tier import MemoryTier
from trainflow.coordination.recovery_plan import NoLiveStateError, plan_recovery, plan_rewind
from trainflow.coordination.rewind_history import DONE, GIVEN_UP
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.run_state import Ending, RunState
from trainflow.coordination.sharded_recovery import Found, newest_whole, plan_sharded_recovery
from trainflow.coordination.superior import Superior
from trainflow.epochs import (
    EpochId,
    EpochSpec,
    HeldShards,
    HeldState,
    MemberReport,
    RecoveryPlan,
    ShardId,
    StoredState,
    Version,
    WhereKept,
)
from trainflow.errors import CheckpointError, CheckpointVersionError, ConfigError
from trainflow.monitoring.detectors import Detector

logger = logging.getLogger(__name__)

_STORED_WITHIN_S = 150.0
_FIND_WITHIN_S = 5.0
_FIND_AGAIN_AFTER_S = 5.0


class KeptState:
    """Both tiers, the nearest and newest first."""

    def __init__(
        self,
        checkpoints: CheckpointControl,
        memory: MemoryTier,
        record: RunRecord,
        background: Background,
        superior: Superior,
        guard: DetectorGuard,
    ):
        self._guard = guard
        self.checkpoints = checkpoints
        self.memory = memory
        self._record = record
        self._background = background
        self._superior = superior
        self._drills: DrillSchedule | None = None
        self._gap_told = False

    async def tick(self, node_ids: set[str]) -> None:
        """Look after what nobody asks for; called about twice a second."""
        await self.checkpoints.tick(node_ids)
        self._background.start(self.checkpoints.collect_due())
        self._guard.start(Detector.COPIES, self.memory.look_after)

    async def find_newest(self) -> WhereKept | None:
        """Return the newest state that some node or the store has; of equals, the one in memory."""
        held: HeldState | HeldShards | None
        if self.memory.is_sharded:
            found = await self.memory.find_shards(self._record.last_step, _newest_version)
            held = newest_whole(found)
        else:
            held = await self.memory.find_newest(self._record.last_step)
        stored = self.checkpoints.newest
        if held is not None and (stored is None or held.step >= stored.step):
            return held
        return stored

    def begin_drills(self, job: JobConfig, import_paths: Sequence[str]) -> None:
        """From now on prove as often as the job says that the newest checkpoint restores."""
        every_s = job.checkpoint.drill_every_s
        if every_s is not None:
            variables = find_variables(job.runtime_env, os.environ)
            self._drills = DrillSchedule(
                self.checkpoints, self._record, import_paths, variables, every_s
            )
            self._background.start(self._drills.run())

    async def plan(
        self,
        spec: EpochSpec,
        reports: Sequence[MemberReport],
        *,
        member_lost: bool,
        committed_step: int,
    ) -> RecoveryPlan:
        """Plan from what the members hold; only if that won't do, look for what was kept.

        Raises:
            NoLiveStateError: nothing was.
        """
        rewound = await self._plan_rewind(spec, reports)
        if rewound is not None:
            return replace(rewound, keepers=self.memory.addresses)
        counting = [self._leave_void_out(report) for report in reports]
        plan = await self._plan_recovery(
            spec, counting, member_lost=member_lost, committed_step=committed_step
        )
        return replace(plan, position=self._record.rewinds.position_after(plan.base))

    async def _plan_rewind(
        self, spec: EpochSpec, reports: Sequence[MemberReport]
    ) -> RecoveryPlan | None:
        """Plan to go back for the loss, if that is to be; None if not, or if it can't be."""
        rewind = self._record.rewinds.pending
        if rewind is None:
            return None
        stored: StoredState | None = None
        reason = f"there is no checkpoint of step {rewind.step} any more, nor before it"
        if any(report.finished for report in reports):
            reason = "its last step is done"
        else:
            try:
                stored = await self.checkpoints.go_back(rewind.step)
            except CheckpointError as error:
                reason = str(error)
        if stored is None:
            self._record.add_event(GIVEN_UP, f"the run does not go back for its loss: {reason}")
            return None
        return plan_rewind(spec, stored, rewind.position, is_sharded=self.memory.is_sharded)

    def _leave_void_out(self, report: MemberReport) -> MemberReport:
        """Return what a member has to say, without a state that the run has gone back from.

        Who was no member since may hold one.
        """
        version = report.version
        if version is None or not self._record.is_void(version):
            return report
        return replace(report, version=None)

    async def _plan_recovery(
        self,
        spec: EpochSpec,
        reports: Sequence[MemberReport],
        *,
        member_lost: bool,
        committed_step: int,
    ) -> RecoveryPlan:
        if self.memory.is_sharded:
            return await self._plan_sharded(
                partial(
                    plan_sharded_recovery,
                    spec,
                    reports,
                    member_lost=member_lost,
                    committed_step=committed_step,
                    stored=self.checkpoints.newest,
                ),
                committed_step,
            )
        plan = partial(
            plan_recovery, spec, reports, member_lost=member_lost, committed_step=committed_step
        )
        try:
            made = plan(stored=self.checkpoints.newest)
        except NoLiveStateError:
            made = plan(stored=await self.find_newest())
        else:
            made = made if made.stored is None else plan(stored=await self.find_newest())
        return replace(made, keepers=self.memory.addresses)

    async def _plan_sharded(
        self, plan: Callable[[Found], RecoveryPlan], committed_step: int
    ) -> RecoveryPlan:
        def choose_base(found: Found) -> Version | None:
            try:
                return plan(found).base
            except NoLiveStateError:
                return None

        return plan(await self.memory.find_shards(committed_step, choose_base))

    async def find_first(self) -> None:
        """Look for what an attempt goes on from, before any of its workers is there.

        One that follows on an attempt without a checkpoint begins as the first did: the workers
        that knew more are gone. Not where there have been checkpoints, of which none is left.

        Raises:
            ConfigError: the checkpoint asked for isn't there, or was made with other settings.
            CheckpointError: the store doesn't answer, or all that the job has made is gone.
        """
        await self.checkpoints.find_stored()
        committed_step, made = self._record.last_step, self._record.steps_of("checkpoint")
        if self.checkpoints.newest is not None or not committed_step or self._record.has("epoch"):
            return
        if made:
            raise CheckpointError(
                f"checkpoint.url: got {self.checkpoints.url} with none of the checkpoints that "
                f"this job has made, the last of step {made[-1]}, expected the newest of them; put "
                "it back there, or submit the job anew to begin with its first step"
            )
        begins_in = EpochId(self._record.newest_incarnation + 1, 0)
        told = {"steps_lost": committed_step, "recovering": False}
        self._record.begin_after(0, "nothing: no checkpoint was made", begins_in, **told)

    async def find_stored_again(self, *, members_live: bool) -> None:
        """A new coordinator looks for what its predecessor knew; the store may be slow just then.

        Where training goes on it is not held up; where it hasn't begun, it must not begin anew.
        And where no node has its state any more, there is nothing to go on with before.

        Args:
            members_live: some do, and hold the state.
        """
        found = asyncio.Event()
        self._background.start(self._find_stored(found))
        is_held = self._record.has("epoch") and (
            members_live or await self.find_newest() is not None
        )
        with suppress(TimeoutError):
            async with asyncio.timeout(_FIND_WITHIN_S if is_held else None):
                await found.wait()

    async def _find_stored(self, found: asyncio.Event) -> None:
        while not found.is_set():
            try:
                await self.checkpoints.find_stored()
                found.set()
            except CheckpointVersionError as error:
                self._on_another_release(error)
                found.set()
            except CheckpointError as error:
                logger.warning("the store is asked again: %s", error)
                await asyncio.sleep(_FIND_AGAIN_AFTER_S)
            except ConfigError as error:
                logger.warning("what the run makes itself is all it has: %s", error)
                found.set()

    def _on_another_release(self, error: CheckpointVersionError) -> None:
        """Go on with what the members hold; what another release has left is not passed over."""
        if self._record.has("epoch"):
            logger.warning("what the run makes itself is all it has: %s", error)
        else:
            self._superior.end(Ending(RunState.FAILED, str(error), error.exit_code))

    async def wait_stored(self, last_step: int | None = None) -> bool:
        """Wait until the last step's checkpoint is made or given up, where there is to be one.

        Args:
            last_step: of the run; None: the newest that is known.

        Returns:
            Whether what is there to go on from is of that step, as far as any is to be made.
        """
        if self.checkpoints.url is None:
            return True
        step = max(self._record.last_step, last_step or 0)
        await self.checkpoints.wait_closed(step, _STORED_WITHIN_S)
        newest = self.checkpoints.newest
        return newest is not None and newest.step >= step

    async def wait_coming(self) -> None:
        """Wait until checkpoints of which a Keeper has a share to bring are made or given up."""
        step = self.checkpoints.last_coming
        if step is not None:
            text = f"the run ends once the checkpoint of step {step} is in the store"
            self._record.add_event("checkpoint_awaited", text, step=step)
            await self.checkpoints.wait_closed(step, _STORED_WITHIN_S)

    async def close(self) -> None:
        """Leave nothing behind: no drill, and in the store what is to be kept; no Keeper lives."""
        if self._drills is not None:
            await self._drills.close()
        await self.checkpoints.close()

    def take(self, message: CheckpointUnusable | SnapshotLeftOut) -> None:
        """Take what a rank says of it."""
        if isinstance(message, SnapshotLeftOut):
            self._on_left_out(message)
        else:
            self._background.start(self._on_unusable(message))

    async def _on_unusable(self, message: CheckpointUnusable) -> None:
        """Fall back on what is there beside it; a run must not begin at step 0 unasked."""
        stored, reason = message.stored, message.reason
        if not isinstance(stored, StoredState):
            self.memory.discard(stored, message.unreachable)
            kind, fate = "snapshot_unusable", "can't be used"
            if message.unreachable:  # its Keepers are asked again, before anything is given up
                kind, fate = "snapshot_unreachable", "can't be reached"
            self._record.add_event(kind, f"{stored} {fate}: {reason}", step=stored.step)
        else:
            self.checkpoints.on_unusable(stored.step, reason)
            await self.checkpoints.quarantine(stored.step)
        if await self.find_newest() is None:
            text = f"nothing that was kept can be used; of the newest, step {stored.step}: {reason}"
            self._superior.end(Ending(RunState.FAILED, text, 1))

    def _on_left_out(self, message: SnapshotLeftOut) -> None:
        """A state was not copied out; the first in a row is told, the others are counted."""
        step = message.version.step
        if message.for_storage:
            self.checkpoints.on_skipped(message.version, message.reason)
        elif not self._gap_told:
            self._gap_told = True
            text = f"the state of step {step} is not in the memory of nodes: {message.reason}"
            self._record.add_event("snapshot_left_out", text, step=step)

    def on_formed(self, plan: RecoveryPlan, node_of: Mapping[str, str]) -> None:
        """An epoch has begun.

        Args:
            plan: how.
            node_of: the node of each member, as far as it is known.
        """
        self._gap_told = False
        self._tell_rewound(plan)
        self.checkpoints.on_epoch(plan.spec.epoch, plan.base.step)
        self.send_copies(plan.spec, node_of)

    def _tell_rewound(self, plan: RecoveryPlan) -> None:
        rewind = self._record.rewinds.pending
        if rewind is None or plan.stored is None or plan.position != rewind.position:
            return
        step, lost = plan.base.step, max(0, self._record.last_step - plan.base.step)
        text = (
            f"the run has gone back to step {step}, and goes on with the samples from position "
            f"{plan.position} on: {lost} steps are void"
        )
        data = {"to_step": step, "position": plan.position, "steps_lost": lost}
        self._record.add_event(DONE, text, **data)

    def send_copies(self, spec: EpochSpec, node_of: Mapping[str, str]) -> None:
        """From now on copies of these members' state go to other nodes."""
        copying = [spec.members[rank] for rank in spec.snapshot_ranks]
        snapshot_nodes = [node_of[member] for member in copying if member in node_of]
        shards: dict[str, set[ShardId]] = defaultdict(set)
        for rank, member in enumerate(spec.members):
            if member in node_of:
                shards[node_of[member]].add(spec.shard_of(rank))
        self._guard.start(Detector.COPIES, partial(self.memory.direct, snapshot_nodes, shards))


def _newest_version(found: Found) -> Version | None:
    whole = newest_whole(found)
    return None if whole is None else whole.version
