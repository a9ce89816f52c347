"""Judge the progress of a run's workers by the steps that the run has made.

Process: coordinator.  Thread: its event loop.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

from trainflow.config.job import JobConfig
from trainflow.coordination.data_stall import find_held_up, find_reading
from trainflow.coordination.hang_detection import (
    Hang,
    Limits,
    find_waited_for,
    judge_progress,
    went_on,
)
from trainflow.coordination.node_watch import NodeWatch
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.timeout_budget import (
    COPY_LIMIT_S,
    NUM_LAST_STEPS,
    NUM_STEPS,
    Hindsight,
    Limit,
    TimeoutBudget,
    derive_budget,
    stall_limit_s,
    start_limit,
)
from trainflow.coordination.worker_pool import WorkerPool
from trainflow.epochs import EpochId, Phase

_SLOWEST_OF = 50
_STOPS_WITHIN_S, _STEPS_A_STOP = 2.0, 3.0
_TIGHT = "hang_timeout_tight"
_TOLD_AGAIN_AFTER = 2.0  # times as long, or as short


class HangWatch:
    """Who hangs, as far as the Keepers' heartbeats tell."""

    def __init__(self, job: JobConfig, pool: WorkerPool, nodes: NodeWatch, record: RunRecord):
        configured = job.failures.hang_timeout_s
        self._configured_s = None if configured == "auto" else configured
        self._lease_s = job.failures.lease_s
        self._pool = pool
        self._nodes = nodes
        self._record = record
        # Nothing is derived before it is asked for, where a failure stops nothing.
        self._as_of: tuple[int, Hindsight] | None = None
        self._budget: TimeoutBudget | None = None
        self._told_s = 0.0

    @property
    def last_step(self) -> int:
        """The newest step that is known to be committed."""
        return self._record.last_step

    @property
    def stop_patience_s(self) -> float:
        """How long a commit is waited for in which all are to stop: who hangs is found before.

        Who copies the state out may wait for the store to have taken what was copied before.
        """
        slowest_s = max(self._record.step_times_s(_SLOWEST_OF), default=1.0)
        progress = self._nodes.progress_of(set(self._pool.entries))
        copies = any(each.phase is Phase.SNAPSHOT for each in progress.values())
        stands_s = max(self.timeout_s, COPY_LIMIT_S) if copies else self.timeout_s
        return _STOPS_WITHIN_S + _STEPS_A_STOP * slowest_s + stands_s

    @property
    def timeout_s(self) -> float:
        """Seconds without progress that count as a hang in the step under way."""
        limits = self._limits()
        return limits.hang_s if limits.fresh_epoch is None else limits.step_s(limits.fresh_epoch)

    def _limits(self) -> Limits:
        budget = self._look_at_steps()
        fresh_epoch = self._record.fresh_epoch
        hung_starts = self._record.hangs.count_starts(self._pool.entries)
        return Limits(
            budget.hang_s,
            budget.first_step_s,
            fresh_epoch,
            budget.wait_s,
            budget.start_s,
            {each: start_limit(number) for each, number in hung_starts.items()},
            basis=budget.basis,
            first_step_basis=budget.first_step_basis,
            wait_basis=budget.wait_basis,
            start_basis=budget.start_basis,
        )

    def _find_grounds(self) -> tuple[int, Hindsight]:
        """Return what the limits follow from: the steps up to one, and what the run has shown."""
        step, hangs = self._record.last_step, self._record.hangs
        knows_world = self._record.fresh_epoch is None or self._record.knows_world(
            self._record.losses.world_size
        )
        return step, Hindsight(hangs.num_epochs(step), knows_world)

    def _derive(self, _step: int, hindsight: Hindsight) -> TimeoutBudget:
        return derive_budget(
            self._record.warm_step_times_s(NUM_STEPS),
            self._record.step_times_s(NUM_LAST_STEPS),
            self._record.first_step_times_s(NUM_STEPS),
            hang_s=self._configured_s,
            lease_s=self._lease_s,
            hindsight=hindsight,
        )

    def _look_at_steps(self) -> TimeoutBudget:
        """Derive the limits anew where what they follow from is another; tell of great changes."""
        grounds = self._find_grounds()
        budget = self._budget if grounds == self._as_of else None
        if budget is None:
            budget = self._derive(*grounds)
            self._as_of, self._budget = grounds, budget
            if budget.trouble and not self._record.has(_TIGHT):
                self._record.add_event(_TIGHT, budget.trouble, step=self._record.last_step)
        shorter_s, longer_s = sorted((budget.hang_s, self._told_s))
        if longer_s >= _TOLD_AGAIN_AFTER * shorter_s:
            self._told_s = budget.hang_s
            self._record.add_event("timeouts", str(budget), **asdict(budget))
        return budget

    @property
    def stall_s(self) -> float:
        """Seconds for which data that comes to nobody is waited for in the step under way."""
        return stall_limit_s(self.timeout_s)

    def knows(self, worker_id: str) -> bool:
        """Whether it isn't known to be gone."""
        return worker_id in self._pool.entries

    def find_hung(
        self, left_for_s: Mapping[str, float], forming: EpochId | None = None
    ) -> dict[str, Hang]:
        """Return the workers that hang, with the evidence.

        Args:
            left_for_s: for how long members have been out of their epoch, as `Limits` has it.
            forming: the epoch that is being formed, likewise.
        """
        limits = replace(self._limits(), left_for_s=left_for_s, forming=forming)
        progress = self._nodes.progress_of(set(self._pool.entries))
        return judge_progress(progress, limits).hung

    def find_held_up(self, members: Sequence[str]) -> tuple[frozenset[str], dict[str, float]]:
        """Return the members of whom data is to blame for that they stand still; and who reads.

        Args:
            members: worker ids; those count that live.

        Returns:
            The former, and for how many seconds each has waited for data who has for long.
        """
        living = [each for each in members if self.knows(each)]
        progress, limits = self._nodes.progress_of(set(living)), self._limits()
        held_up = find_held_up(progress, self._pool.nodes_of(progress), limits)
        reading = find_reading(progress, limits)
        return held_up, {each: progress[each].progress_age_s for each in reading}

    def find_moved(self, hung: Mapping[str, Hang]) -> set[str]:
        """Return those of them that have moved since, as far as heartbeats have told."""
        progress = self._nodes.progress_of(set(hung))
        return {worker_id for worker_id, now in progress.items() if went_on(hung[worker_id], now)}

    def find_waited_for(self, members: Sequence[str]) -> dict[str, float]:
        """Return who is waited for by all others, in code that nobody judges; for how long so far.

        Args:
            members: worker ids.
        """
        progress = self._nodes.progress_of(set(members))
        if len(progress) < len(members):
            return {}  # somebody may be elsewhere, unheard
        found = find_waited_for(progress, self.stall_s)
        return {each: progress[each].progress_age_s for each in found}

    def wait_limit(self, epoch: EpochId) -> Limit:
        """Return for how long all may wait for one another in an epoch."""
        return self._limits().wait(epoch)

    def is_deadlocked(self, members: tuple[str, ...], epoch: EpochId | None) -> bool:
        """Whether every member waits for another in this epoch, and none is to blame."""
        progress = self._nodes.progress_of(set(members))
        if len(progress) < len(members) or any(each.epoch != epoch for each in progress.values()):
            return False  # read before they came into it, or one computes perhaps, unheard
        return judge_progress(progress, self._limits()).deadlocked
