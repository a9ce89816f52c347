"""What a rank's newest commits came to, kept for a coordinator that nobody lived to tell.

Rank 0 alone reports steps. If it dies between a commit and its report, or with reports that still
wait for a coordinator, those who go on from that state have what it would have said.

Process: every rank.  Thread: training.
"""

from collections import deque

from trainflow.computation.reports import StepReport
from trainflow.epochs import Version

_NUM_KEPT = 1000


class StepHistory:
    """The steps that led to the state which this rank holds, as far as it has committed them."""

    def __init__(self) -> None:
        self._reports: deque[StepReport] = deque(maxlen=_NUM_KEPT)

    @property
    def reports(self) -> tuple[StepReport, ...]:
        """Of each step one, oldest first."""
        return tuple(self._reports)

    def note(self, report: StepReport) -> None:
        """A step is committed here; whether it is everywhere the next epoch tells."""
        self._reports.append(report)

    def go_on_from(self, base: Version) -> None:
        """An epoch begins: what came after its base is void.

        A rank that did not commit the base itself may have come to it by other steps than its own.
        """
        own = [each for each in self._reports if each.step <= base.step]
        self._reports.clear()
        if own and own[-1].version == base:
            self._reports.extend(own)
