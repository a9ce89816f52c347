"""How long things may take before somebody is judged by it: one table, from measured steps. Pure.

From the shortest to the longest: a heartbeat, a worker that stands still, the same in the first
step of an epoch, one that starts, one that copies the state out or reads it, a collective. Each
leaves room for the ones before it: a collective, above all, gives up only long after whoever stands
still has been found, as it names nobody. Two are beside them: the lease of a node, as of one that
isn't heard nobody is judged by how long it stands still (a job whose lease is not over well before
a collective gives up is refused); and data that comes to several ranks alike, which isn't theirs to
bring.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from trainflow.config.failures import COLLECTIVE_FLOOR_S, COLLECTIVES_A_HANG

HEARTBEAT_S = 1.0
HANG_FLOOR_S = 10.0
"""Least that is derived for a step."""

START_LIMIT_S = 120.0
"""Time without progress that a worker has at least until it is warm: it loads and compiles."""

COPY_LIMIT_S = 240.0
"""Time that a worker has at least to copy the state out; the last copy waits 120 s for room."""

RESTORE_LIMIT_S = 240.0
"""Time that a worker has at least for each part of a state that it reads from where it was kept: a
store that doesn't answer is given up after 60 s and what the part's bytes take, and asked again."""

PROFILE_LIMIT_S = 240.0
"""Time that a worker has at least to begin a profile, and to make a trace of what it has recorded:
some 10 s a million operations."""

NUM_STEPS = 500
"""How many of the newest steps are looked at."""

NUM_LAST_STEPS = 10
"""How many of them tell of what has just become slow."""

_PERCENTILE = 0.99
_STEPS_A_HANG = 10.0
_NUM_STEPS_AT_LEAST = 5
_FIRST_STEPS_A_HANG = 2.0
_VAIN_EPOCHS_TO_TELL = 3
_LAST_STEPS_A_WAIT = 2.0
_MAX_DOUBLINGS = 20
_HANGS_A_STALL = 8.0
_DERIVED_AT_MOST_S = COLLECTIVE_FLOOR_S / COLLECTIVES_A_HANG
_START_RAISED_TO_AT_MOST_S = 3600.0


@dataclass(frozen=True)
class Limit:
    """For how long something may last, and why so long.

    Attributes:
        value_s: that, in seconds.
        basis: what it comes from, in words.
    """

    value_s: float
    basis: str

    def __str__(self) -> str:
        return f"limit {round(self.value_s, 2):g} s: {self.basis}"


def longest(*limits: Limit) -> Limit:
    """Return the one that lasts longest; of equals the first."""
    return max(limits, key=lambda each: each.value_s)


@dataclass(frozen=True)
class Hindsight:
    """What the run has shown of its limits.

    Attributes:
        num_hung_epochs: in which somebody was found to hang in a step, or all to wait, since the
            last commit: the limit may be what is wrong.
        knows_world: a world of the present size has committed steps: its first one compiles less.
    """

    num_hung_epochs: int = 0
    knows_world: bool = True


NO_HINDSIGHT = Hindsight()


@dataclass(frozen=True)
class TimeoutBudget:
    """The limits that hold, in seconds.

    Attributes:
        lease_s: unheard, after which a node kills its workers.
        hang_s: without progress, after which a worker is killed.
        first_step_s: the same, in the first step of an epoch.
        wait_s: all waiting for one another, after which their epoch is given up; at least.
        start_s: the same, of one that starts.
        collective_s: after which a collective gives up.
        basis: what `hang_s` comes from, in words.
        first_step_basis: what `first_step_s` does.
        wait_basis: what `wait_s` does.
        start_basis: what `start_s` does.
        trouble: why it kills workers that are merely slow; empty if it doesn't.
    """

    lease_s: float
    hang_s: float
    first_step_s: float
    wait_s: float
    start_s: float
    collective_s: float
    basis: str
    first_step_basis: str
    wait_basis: str
    start_basis: str
    trouble: str = ""

    def __str__(self) -> str:
        return (
            f"a worker without progress is killed after {self.hang_s:.1f} s ({self.basis}), in the "
            f"first step of an epoch after {self.first_step_s:.1f} s, one that starts after "
            f"{self.start_s:.0f} s, those of a node that hears nobody after {self.lease_s:.0f} s; "
            f"a collective gives up after {self.collective_s:.0f} s"
        )


def derive_budget(
    step_times_s: Sequence[float],
    last_times_s: Sequence[float] = (),
    first_times_s: Sequence[float] = (),
    *,
    hang_s: float | None,
    lease_s: float,
    hindsight: Hindsight = NO_HINDSIGHT,
) -> TimeoutBudget:
    """Return the limits of a job.

    A step that is slower than any before never ends if its workers are killed for it, and so never
    raises a limit that follows from steps. So a derived limit is doubled by each epoch that was
    given up for it, up to 900 s: what hangs in earnest hangs no less for it. A limit that the job
    asks for holds for whoever is to blame. Where nobody is, since all wait for one another, as
    over a link that has become slow, it is doubled too, and is at least two of the newest steps:
    else their epoch would be given up for ever.

    Args:
        step_times_s: the newest steps, but for the first of each epoch.
        last_times_s: the newest ten, whichever they are.
        first_times_s: those that came first in their epoch.
        hang_s: what the job asks for, which then holds as it is; None derives it: ten steps, of
            which 99% take no longer than is reckoned, at least 10 s and two of the last steps, and
            120 s while fewer than five steps are known (first steps load and compile). In an
            epoch's first step it is twice as much, and at least 120 s in a world of a size that has
            done none. It is 900 s at most: when a collective gives up is settled before any step is
            known.
        lease_s: as the job has it.
        hindsight: what the run has shown.
    """
    measured, num_hung = _measure(step_times_s), hindsight.num_hung_epochs
    if hang_s is not None:
        hang = first_step = Limit(hang_s, "as failures.hang_timeout_s has it")
        wait = _derive_wait(hang, last_times_s, num_hung)
        trouble = _find_trouble(hang_s, measured, num_hung)
    else:
        hang = first_step = wait = _derive(measured, last_times_s, num_hung)
        trouble = _find_trouble_of_derived(hang.value_s, measured)
        if measured is not None:  # else that is the limit of a first step as it is
            first_step = _derive_first_step(
                hang, max(first_times_s, default=0.0), knows_world=hindsight.knows_world
            )
    start = longest(hang, start_limit(0))
    return TimeoutBudget(
        lease_s=lease_s,
        hang_s=hang.value_s,
        first_step_s=first_step.value_s,
        wait_s=wait.value_s,
        start_s=start.value_s,
        collective_s=collective_timeout_s(hang_s),
        basis=hang.basis,
        first_step_basis=first_step.basis,
        wait_basis=wait.basis,
        start_basis=start.basis,
        trouble=trouble,
    )


@dataclass(frozen=True)
class _Measured:
    """What steps take: 99% of ``count`` at most ``step_s``."""

    step_s: float
    count: int

    def __str__(self) -> str:
        return f"99% of {self.count} steps took at most {self.step_s:.2f} s"


def _measure(step_times_s: Sequence[float]) -> _Measured | None:
    """Return what steps take; None while too few are known."""
    count = len(step_times_s)
    if count < _NUM_STEPS_AT_LEAST:
        return None
    return _Measured(sorted(step_times_s)[ceil(_PERCENTILE * count) - 1], count)  # nearest rank


def _find_trouble(hang_s: float, measured: _Measured | None, num_hung_epochs: int) -> str:
    """Say why a limit of the job's own kills workers that are merely slow."""
    if num_hung_epochs >= _VAIN_EPOCHS_TO_TELL:
        return (
            f"failures.hang_timeout_s: got {hang_s:g}, which was too little in {num_hung_epochs} "
            "epochs in a row for the same step, expected more than a step: if nothing hangs in "
            "earnest, raise it, or set it to auto"
        )
    if measured is None or measured.step_s <= hang_s:
        return ""
    return (
        f"failures.hang_timeout_s: got {hang_s:g}, while {measured}, expected more than a step: "
        "raise it, or set it to auto"
    )


def _find_trouble_of_derived(hang_s: float, measured: _Measured | None) -> str:
    if measured is None or measured.step_s <= hang_s:
        return ""
    return (
        f"failures.hang_timeout_s: got auto, which is {hang_s:g} s at most, while {measured}, "
        "expected more than a step: set it"
    )


def _derive(
    measured: _Measured | None, last_times_s: Sequence[float], num_hung_epochs: int
) -> Limit:
    """Return the limit of a step."""
    if measured is None:
        limit = Limit(START_LIMIT_S, "fewer than five steps are known")
    else:
        limit = _derive_from(measured)
    last = _derive_from_last(last_times_s)
    limit = longest(limit, Limit(min(last.value_s, _DERIVED_AT_MOST_S), last.basis))
    if not num_hung_epochs:
        return limit
    doubled = f"doubled for {_count(num_hung_epochs)} with a hang since the last commit"
    return Limit(_raise(limit.value_s, num_hung_epochs), f"{limit.basis}; {doubled}")


def _derive_from(measured: _Measured) -> Limit:
    steps_s = _STEPS_A_HANG * measured.step_s
    if steps_s < HANG_FLOOR_S:
        return Limit(HANG_FLOOR_S, f"the least that auto allows, ten steps being less: {measured}")
    if steps_s > _DERIVED_AT_MOST_S:
        basis = f"the most that auto allows, as a collective must not give up before: {measured}"
        return Limit(_DERIVED_AT_MOST_S, basis)
    return Limit(steps_s, f"ten steps: {measured}")


def _count(num_epochs: int) -> str:
    return "an epoch" if num_epochs == 1 else f"{num_epochs} epochs"


def _derive_from_last(last_times_s: Sequence[float]) -> Limit:
    """Return what steps have been seen to need that have just become slow."""
    slowest_s = max(last_times_s, default=0.0)
    basis = f"two steps of {slowest_s:.2f} s, as the slowest of the newest ones took"
    return Limit(_LAST_STEPS_A_WAIT * slowest_s, basis)


def _derive_wait(hang: Limit, last_times_s: Sequence[float], num_hung_epochs: int) -> Limit:
    """Return for how long all may wait for one another, where the job sets ``hang``."""
    doubled = f"{hang.basis}, doubled for {_count(num_hung_epochs)} with a hang or a deadlock"
    return longest(
        hang,
        Limit(_raise(hang.value_s, num_hung_epochs), f"{doubled} since the last commit"),
        _derive_from_last(last_times_s),
    )


def _raise(limit_s: float, num_hung_epochs: int) -> float:
    """Return a limit after so many epochs that were given up for it, at most 900 s or itself."""
    return max(limit_s, min(_double(limit_s, num_hung_epochs), _DERIVED_AT_MOST_S))


def _derive_first_step(hang: Limit, slowest_s: float, *, knows_world: bool) -> Limit:
    """Return the limit of an epoch's first step.

    Where a spare has taken a rank, all have compiled and the spare has rehearsed: what is left to
    be loaded is worth no more than another step's limit. A process that doesn't run at all is found
    as soon as in any step.
    """
    at_most_s = max(hang.value_s, _DERIVED_AT_MOST_S)
    limit_s = min(_FIRST_STEPS_A_HANG * hang.value_s, at_most_s)
    known = f"two first steps of epochs of {slowest_s:.2f} s, as the slowest of those took"
    limit = longest(
        hang,
        Limit(limit_s, f"that of an epoch's first step, twice: {hang.basis}"),
        Limit(min(_FIRST_STEPS_A_HANG * slowest_s, at_most_s), known),
    )
    if knows_world:
        return limit
    basis = "that of an epoch's first step in a world of another size"
    return longest(limit, Limit(START_LIMIT_S, basis))


def start_limit(num_hung_starts: int) -> Limit:
    """Return the limit of a start in a place where so many in a row were ended as hung.

    The next one of a worker that was killed for it has twice as long.
    """
    basis = "that of a start"
    if num_hung_starts:
        times = "one" if num_hung_starts == 1 else str(num_hung_starts)
        basis = f"{basis}, doubled for {times} of the same place that hung"
    return Limit(min(_double(START_LIMIT_S, num_hung_starts), _START_RAISED_TO_AT_MOST_S), basis)


def _double(limit_s: float, times: int) -> float:
    return limit_s * 2.0 ** min(times, _MAX_DOUBLINGS)


def collective_timeout_s(hang_s: float | None) -> float:
    """Return when a collective gives up, where the job sets ``hang_s``, or leaves it out."""
    return max(COLLECTIVE_FLOOR_S, COLLECTIVES_A_HANG * (hang_s or 0.0))


def stall_limit_s(hang_s: float) -> float:
    """Return for how long data that comes to nobody is waited for, at most 900 s or ``hang_s``."""
    return max(hang_s, min(_HANGS_A_STALL * hang_s, _DERIVED_AT_MOST_S))
