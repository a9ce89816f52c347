"""Tell for how long this process has run, where its machine, or it alone, has stood still.

A virtual machine that is paused, or a machine that swaps, stops a Keeper and its workers alike.
When it goes on, all that the Keeper sees of them is old, and nobody has hung. So all Keepers seem
to have fallen silent to a coordinator that has stood still.

Process: keeper, where a thread of its own beats and any asks; coordinator, where its event loop
does.  Blocks: never.
"""

import threading
from collections import deque

from trainflow.clock import Clock

BEAT_EVERY_S = 0.1
_PAUSE_S = 0.5
"""Beats that are further apart than this weren't merely late, on a machine with much to do."""

_NUM_KEPT = 100


class Wakefulness:
    """Remembers its newest pauses. Times are CLOCK_MONOTONIC, in seconds."""

    def __init__(self, now_s: float):
        self._lock = threading.Lock()
        self._beat_at_s = now_s
        self._pauses: deque[tuple[float, float]] = deque(maxlen=_NUM_KEPT)

    def beat(self, now_s: float) -> None:
        """It runs; called every `BEAT_EVERY_S`, by who does nothing else."""
        with self._lock:
            pause = self._find_pause(now_s)
            if pause is not None:
                self._pauses.append(pause)
            self._beat_at_s = now_s

    def age_s(self, since_s: float, now_s: float) -> float:
        """Return the seconds since a moment in which this process ran."""
        with self._lock:
            pause = self._find_pause(now_s)  # the first to run after it may be who asks
            pauses = [*self._pauses] if pause is None else [*self._pauses, pause]
        slept_s = sum(max(0.0, end - max(begin, since_s)) for begin, end in pauses)
        return now_s - since_s - slept_s

    def _find_pause(self, now_s: float) -> tuple[float, float] | None:
        """Return the pause that has lasted until now, if it has."""
        began_at_s = self._beat_at_s + BEAT_EVERY_S
        return (began_at_s, now_s) if now_s - self._beat_at_s > _PAUSE_S else None


def keep_awake(wakefulness: Wakefulness, clock: Clock) -> None:
    """Beat for ever, in a thread of its own."""

    def beat() -> None:
        while True:
            wakefulness.beat(clock.monotonic_s())
            clock.sleep(BEAT_EVERY_S)

    threading.Thread(target=beat, name="wakefulness", daemon=True).start()
