"""Measure where a worker's start goes, from the beginning of its process.

Process: worker; any may ask for an age.  Threads: whichever carries the start on; one at a time.
Blocks: never.
"""

import os
import time
from pathlib import Path

from trainflow.clock import Clock
from trainflow.coordination.startup import StartPhase, WorkerStart

# Fields of /proc/PID/stat, as counted from the one behind the command's name: proc(5).
_STATE, _NUM_THREADS, _START_TIME = 0, 17, 19


class StartTimes:
    """A stopwatch that is begun in the actor's constructor."""

    def __init__(self, asked_at_s: float, process_age_s: float, clock: Clock):
        """Begin.

        Args:
            asked_at_s: CLOCK_REALTIME when the coordinator asked for the worker, by its own clock.
            process_age_s: Ray may have had the process ready before that.
            clock: measures.
        """
        self._asked_at_s = asked_at_s
        self._process_age_s = process_age_s
        self._clock = clock
        self._last_s = clock.monotonic_s()
        self._phases_s: dict[StartPhase, float] = {}
        self._is_over = False

    def end(self, phase: StartPhase) -> None:
        """A phase is over, or a part of it, which began when the one before was."""
        now_s = self._clock.monotonic_s()
        self._phases_s[phase] = self._phases_s.get(phase, 0.0) + now_s - self._last_s
        self._last_s = now_s

    def finish(self, phase: StartPhase, kernels_s: float) -> None:
        """The last phase is over: the worker is warm.

        Args:
            phase: that one.
            kernels_s: what having kernels ready has taken, so far counted to the model.
        """
        self.end(phase)
        if kernels_s:
            model_s = self._phases_s[StartPhase.MODEL]
            self._phases_s[StartPhase.KERNELS] = kernels_s
            self._phases_s[StartPhase.MODEL] = max(0.0, model_s - kernels_s)
        self._is_over = True

    def tell(self) -> WorkerStart | None:
        """Return what has been measured; None until the worker is warm."""
        if not self._is_over:
            return None
        warm_for_s = self._clock.monotonic_s() - self._last_s
        return WorkerStart(self._asked_at_s, self._process_age_s, self._phases_s, warm_for_s)


def read_process_age_s(pid: int | None = None) -> float:
    """Return how long a process has lived, this one if none is named, to a hundredth of a second.

    Raises:
        FileNotFoundError, ProcessLookupError: it is gone, or has ended and nobody takes note of it.
    """
    told = Path(f"/proc/{pid or 'self'}/stat").read_text(errors="replace")
    fields = told.rpartition(")")[2].split()
    if fields[_STATE] in "ZX" and int(fields[_NUM_THREADS]) <= 1:  # its other threads are no more
        raise ProcessLookupError(f"process {pid} has ended")
    began_s = int(fields[_START_TIME]) / os.sysconf("SC_CLK_TCK")
    return time.clock_gettime(time.CLOCK_BOOTTIME) - began_s
