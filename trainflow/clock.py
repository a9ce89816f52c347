"""Time as a dependency, so that what waits can be tested without waiting."""

import time
from typing import Protocol


class Clock(Protocol):
    """What code that measures or waits needs of time."""

    def monotonic_s(self) -> float:
        """Seconds since an arbitrary start; never goes back; comparable within one machine."""
        ...

    def unix_s(self) -> float:
        """Seconds since 1970; comparable between machines as far as their clocks agree."""
        ...

    def sleep(self, duration_s: float) -> None:
        """Block the calling thread for ``duration_s`` seconds."""
        ...


class SystemClock:
    """The machine's own clocks.

    Attributes:
        skew_s: by how much CLOCK_REALTIME is taken to be wrong; other than 0 in chaos campaigns.
    """

    skew_s = 0.0

    def monotonic_s(self) -> float:
        """Read CLOCK_MONOTONIC."""
        return time.monotonic()

    def unix_s(self) -> float:
        """Read CLOCK_REALTIME."""
        return time.time() + self.skew_s

    def sleep(self, duration_s: float) -> None:
        """Block the calling thread."""
        time.sleep(duration_s)  # noqa: TID251  the one place that really sleeps


SYSTEM_CLOCK = SystemClock()
