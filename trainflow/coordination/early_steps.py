"""Steps that are heard of before it is on record that their epoch has begun. Pure.

Members that are fast commit, and say so, before the last call returns that releases the others; and
whoever released them may have died before it could write that down. Where the epoch goes on from an
older state than was committed, such steps bear numbers that the record has already.
"""

from trainflow.computation.reports import StepReport
from trainflow.epochs import EpochId


class EarlySteps:
    """Those that wait for their epoch."""

    def __init__(self, newest: EpochId | None):
        """Keep none yet.

        Args:
            newest: the epoch that has begun last, as far as is on record; None: none has.
        """
        self._newest = newest
        self._waiting: list[StepReport] = []

    def keep(self, report: StepReport, last_step: int) -> bool:
        """Keep a step, if it can't be recorded yet; returns whether it was.

        Args:
            report: of the step.
            last_step: the newest that is known to be committed.
        """
        is_early = self._newest is not None and report.epoch > self._newest
        if not is_early or (report.step > last_step and not self._waiting):
            return False
        self._waiting.append(report)
        return True

    def begin(self, epoch: EpochId) -> list[StepReport]:
        """An epoch has begun; returns what was kept of it and before, as it was heard of."""
        self._newest = epoch
        early = [report for report in self._waiting if report.epoch <= epoch]
        self._waiting = [report for report in self._waiting if report.epoch > epoch]
        return early
