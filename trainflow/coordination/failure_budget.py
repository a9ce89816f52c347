"""How many failures a run may have in a window of time. Pure.

It counts nothing itself: the run's record knows every failure, also those of earlier coordinators.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class FailureBudget:
    """At most ``limit`` failures in the last ``window_s`` seconds; no limit if None."""

    limit: int | None
    window_s: float

    def is_overspent(self, failed_at_s: Iterable[float], now_s: float) -> bool:
        """Whether there were more; all times are of one clock."""
        num_recent = sum(at_s >= now_s - self.window_s for at_s in failed_at_s)
        return self.limit is not None and num_recent > self.limit
