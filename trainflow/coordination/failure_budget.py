"""How many failures a run may have in a window of time. Pure.

It counts nothing itself: the run's record knows every failure, also those of earlier coordinators.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class FailureBudget:
    """At most ``limit`` failures in the last ``window_s`` seconds; no limit if None."""

    limit: int | None
    window_s: float

    def is_overspent(
        self, failed_at_s: Iterable[float], now_s: float, moved_on_at_s: float = math.inf
    ) -> bool:
        """Whether there were more; all times are of one clock.

        Args:
            failed_at_s: of the failures.
            now_s: the window's end.
            moved_on_at_s: failures since then count however long ago they were: a job that fails
                seldom, and moves on never, is to end too.
        """
        since_s = min(now_s - self.window_s, moved_on_at_s)
        num_recent = sum(at_s >= since_s for at_s in failed_at_s)
        return self.limit is not None and num_recent > self.limit
