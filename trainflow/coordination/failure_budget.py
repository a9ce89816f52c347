"""How many failures a run may have in a window of time. Pure but for the time it is given."""

from collections import deque


class FailureBudget:
    """Counts failures of the last ``window_s`` seconds against ``limit``; no limit if None."""

    def __init__(self, limit: int | None, window_s: float):
        self.limit = limit
        self._window_s = window_s
        self._at_s: deque[float] = deque()

    def spend(self, now_s: float) -> bool:
        """Count a failure; True if that is more than the limit."""
        self._at_s.append(now_s)
        while self._at_s[0] < now_s - self._window_s:
            self._at_s.popleft()
        return self.limit is not None and len(self._at_s) > self.limit
