"""Judge the progress of a run's workers by the steps that the run has made.

Process: coordinator.  Thread: its event loop.
"""

from trainflow.config.job import JobConfig
from trainflow.coordination.hang_detection import derive_hang_timeout_s, judge_progress
from trainflow.coordination.node_watch import NodeWatch
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.worker_pool import WorkerPool
from trainflow.epochs import EpochId

_STEP_TIMES_KEPT = 50


class HangWatch:
    """Who hangs, as far as the Keepers' heartbeats tell."""

    def __init__(self, job: JobConfig, pool: WorkerPool, nodes: NodeWatch, record: RunRecord):
        self._job = job
        self._pool = pool
        self._nodes = nodes
        self._record = record

    @property
    def slowest_step_s(self) -> float:
        """The longest of the last steps; a second where there is none."""
        return max(self._record.step_times_s(_STEP_TIMES_KEPT), default=1.0)

    @property
    def timeout_s(self) -> float:
        """Seconds without progress that count as a hang."""
        configured = self._job.failures.hang_timeout_s
        return derive_hang_timeout_s(
            self._record.step_times_s(_STEP_TIMES_KEPT),
            None if configured == "auto" else configured,
        )

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
        if any(seen.epoch != epoch for seen in progress.values()):
            return False  # read before they came into it
        return judge_progress(progress, self.timeout_s).deadlocked
