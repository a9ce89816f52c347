"""How long things may take before somebody is judged by it: one table, from measured steps. Pure.

From the shortest to the longest: a heartbeat, a worker that stands still, one that starts, one that
copies the state out, a collective. Each leaves room for the ones before it: a collective, above
all, gives up only long after whoever stands still has been found, as it names nobody. The lease of
a node is beside them: of a node that isn't heard, nobody is judged by how long it stands still.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

HEARTBEAT_S = 1.0
START_LIMIT_S = 120.0
"""Time without progress that a worker has at least until it is warm: it loads and compiles."""

COPY_LIMIT_S = 240.0
"""Time that a worker has at least to copy the state out; the last copy waits 120 s for room."""

NUM_STEPS = 500
"""How many of the newest steps are looked at."""

_PERCENTILE = 0.99
_STEPS_A_HANG = 10.0
_HANG_FLOOR_S = 10.0
_NUM_STEPS_AT_LEAST = 5
_COLLECTIVE_FLOOR_S = 1800.0
_COLLECTIVES_A_HANG = 2.0


@dataclass(frozen=True)
class TimeoutBudget:
    """The limits that hold, in seconds.

    Attributes:
        lease_s: unheard, after which a node kills its workers.
        hang_s: without progress, after which a worker is killed.
        start_s: the same, of one that starts.
        collective_s: after which a collective gives up.
        basis: what `hang_s` comes from, in words.
        trouble: why it kills workers that are merely slow; empty if it doesn't.
    """

    lease_s: float
    hang_s: float
    start_s: float
    collective_s: float
    basis: str
    trouble: str = ""

    def __str__(self) -> str:
        return (
            f"a worker without progress is killed after {self.hang_s:.1f} s ({self.basis}), one "
            f"that starts after {self.start_s:.0f} s, those of a node that hears nobody after "
            f"{self.lease_s:.0f} s; a collective gives up after {self.collective_s:.0f} s"
        )


def derive_budget(
    step_times_s: Sequence[float], *, hang_s: float | None, lease_s: float
) -> TimeoutBudget:
    """Return the limits of a job.

    Args:
        step_times_s: the newest steps, any order.
        hang_s: what the job asks for; None derives it: ten steps, of which 99% take no longer than
            is reckoned, at least 10 s, and 120 s while fewer than five steps are known (first
            steps load and compile).
        lease_s: as the job has it.
    """
    few = len(step_times_s) < _NUM_STEPS_AT_LEAST
    step_s = 0.0 if few else _find_percentile(step_times_s)
    measured = f"99% of {len(step_times_s)} steps took at most {step_s:.2f} s"
    trouble = ""
    if hang_s is not None:
        basis = "as failures.hang_timeout_s has it"
        if step_s > hang_s:
            trouble = (
                f"failures.hang_timeout_s: got {hang_s:g}, while {measured}, expected more than "
                "a step: raise it, or set it to auto"
            )
    elif few:
        basis, hang_s = "fewer than five steps are known", START_LIMIT_S
    else:
        basis, hang_s = f"ten steps: {measured}", max(_HANG_FLOOR_S, _STEPS_A_HANG * step_s)
    collective_s = collective_timeout_s(hang_s)
    start_s = max(hang_s, START_LIMIT_S)
    return TimeoutBudget(lease_s, hang_s, start_s, collective_s, basis, trouble)


def collective_timeout_s(hang_s: float | None) -> float:
    """Return when a collective gives up, where the job sets ``hang_s``, or leaves it out."""
    return max(_COLLECTIVE_FLOOR_S, _COLLECTIVES_A_HANG * (hang_s or 0.0))


def _find_percentile(times_s: Sequence[float]) -> float:
    """Return the time that 99% don't exceed, by nearest rank."""
    return sorted(times_s)[ceil(_PERCENTILE * len(times_s)) - 1]
