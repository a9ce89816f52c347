"""Note with each member how long it computes, for whoever looks who holds the others up.

Process: coordinator.  Thread: its event loop.  Blocks: never.
"""

import math

from trainflow.computation.reports import StepReport
from trainflow.coordination.epoch_control import EpochControl
from trainflow.coordination.worker_pool import WorkerPool

_EVERY_S = 1.0
_WEIGHT = 0.25  # of the newest: single steps differ


class RankTimes:
    """Of one run's members, as rank 0 tells of all."""

    def __init__(self, pool: WorkerPool, control: EpochControl):
        self._pool = pool
        self._control = control
        self._noted_at_s = -math.inf

    def on_step(self, report: StepReport) -> None:
        """A member committed a step; about once a second it is looked at."""
        members = self._control.members
        is_of_all = report.rank == 0 and len(report.compute_by_rank) == len(members)
        is_due = abs(report.committed_at_s - self._noted_at_s) >= _EVERY_S
        if not is_of_all or not is_due or report.epoch != self._control.epoch:
            return
        self._noted_at_s = report.committed_at_s
        for worker_id, newest_s in zip(members, report.compute_by_rank, strict=True):
            entry = self._pool.entries.get(worker_id)
            if entry is not None:
                before_s = newest_s if entry.compute_s is None else entry.compute_s
                entry.compute_s = before_s + _WEIGHT * (newest_s - before_s)
