"""Judge the progress of a run's workers by the steps that the run has made.

Process: coordinator.  Thread: its event loop.
"""

from dataclasses import asdict

from trainflow.config.job import JobConfig
from trainflow.coordination.hang_detection import judge_progress
from trainflow.coordination.node_watch import NodeWatch
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.timeout_budget import NUM_STEPS, TimeoutBudget, derive_budget
from trainflow.coordination.worker_pool import WorkerPool
from trainflow.epochs import EpochId

_SLOWEST_OF = 50
_STOPS_WITHIN_S, _STEPS_A_STOP = 2.0, 3.0
_TIGHT = "hang_timeout_tight"
_TOLD_AGAIN_AFTER = 2.0  # times as long, or as short


class HangWatch:
    """Who hangs, as far as the Keepers' heartbeats tell.

    Attributes:
        budget: the limits that hold.
    """

    def __init__(self, job: JobConfig, pool: WorkerPool, nodes: NodeWatch, record: RunRecord):
        configured = job.failures.hang_timeout_s
        self._configured_s = None if configured == "auto" else configured
        self._lease_s = job.failures.lease_s
        self._pool = pool
        self._nodes = nodes
        self._record = record
        self._as_of_step = record.last_step
        self.budget = self._derive()
        self._told_s = 0.0

    @property
    def stop_patience_s(self) -> float:
        """How long a commit is waited for in which all are to stop: who hangs is found before."""
        slowest_s = max(self._record.step_times_s(_SLOWEST_OF), default=1.0)
        return _STOPS_WITHIN_S + max(_STEPS_A_STOP * slowest_s, self.timeout_s)

    @property
    def timeout_s(self) -> float:
        """Seconds without progress that count as a hang."""
        self._look_at_steps()
        return self.budget.hang_s

    def _derive(self) -> TimeoutBudget:
        times_s = self._record.step_times_s(NUM_STEPS)
        return derive_budget(times_s, hang_s=self._configured_s, lease_s=self._lease_s)

    def _look_at_steps(self) -> None:
        """Derive the limits anew where there are other steps, and tell of great changes."""
        if self._record.last_step != self._as_of_step:
            self._as_of_step = self._record.last_step
            self.budget = self._derive()
            if self.budget.trouble and not self._record.has(_TIGHT):
                self._record.add_event(_TIGHT, self.budget.trouble, step=self._as_of_step)
        shorter_s, longer_s = sorted((self.budget.hang_s, self._told_s))
        if longer_s >= _TOLD_AGAIN_AFTER * shorter_s:
            self._told_s = self.budget.hang_s
            self._record.add_event("timeouts", str(self.budget), **asdict(self.budget))

    def knows(self, worker_id: str) -> bool:
        """Whether it isn't known to be gone."""
        return worker_id in self._pool.entries

    def find_hung(self) -> dict[str, str]:
        """Return the workers that hang, with the evidence."""
        progress = self._nodes.progress_of(set(self._pool.entries))
        return judge_progress(progress, self.timeout_s).hung

    def is_deadlocked(self, members: tuple[str, ...], epoch: EpochId | None) -> bool:
        """Whether every member waits for another in this epoch, and none is to blame."""
        progress = self._nodes.progress_of(set(members))
        if len(progress) < len(members) or any(each.epoch != epoch for each in progress.values()):
            return False  # read before they came into it, or one computes perhaps, unheard
        return judge_progress(progress, self.timeout_s).deadlocked
