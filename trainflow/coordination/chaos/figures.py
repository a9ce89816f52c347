"""What a campaign's faults cost: time in which no step ran, and steps that were not done. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Any

from trainflow.coordination.lost_steps import LostSteps

Line = Mapping[str, Any]

_LONG = 3.0
_LONG_PAUSE = 1.5
_STEPS_AROUND = 10  # on each side


@dataclass(frozen=True)
class Figures:
    """Of one disturbed run. Times are seconds.

    Attributes:
        wall_s: from its first commit to its last.
        step_s: median time from one commit to the next, undisturbed; None if that is not known.
        goodput_ratio: of the wall time, what the steps of it take undisturbed; None as above.
        stalled_s: time in which no step ran: of each recovery from a fault, or the last commit if
            that is later, until all members held the state to go on from; and of other times
            between two commits that are long, what they take beyond a step and beyond the pause
            that the undisturbed run makes before that step too.
        stalled_ratio: of the wall time.
        steps_lost: committed steps that were done again, without what a rewind alone made void.
        recoveries: that ended with a step of all ranks.
        starting_cpu_s: CPU time of workers that were started while the run trained, at least.
    """

    wall_s: float
    step_s: float | None
    goodput_ratio: float | None
    stalled_s: float
    stalled_ratio: float
    steps_lost: int
    recoveries: int
    starting_cpu_s: float = 0.0


def measure(
    steps: Sequence[Line],
    events: Sequence[Line],
    fallen_at_s: Sequence[float],
    undisturbed: Sequence[Line] | None,
) -> Figures:
    """Measure a disturbed run.

    Args:
        steps: lines of its ``metrics.jsonl``.
        events: lines of its ``events.jsonl``.
        fallen_at_s: CLOCK_REALTIME of each fault.
        undisturbed: steps of the run without faults, if there was one.
    """
    committed_s = sorted(line["committed_at_s"] for line in steps)
    wall_s = committed_s[-1] - committed_s[0] if committed_s else 0.0
    step_s = None if undisturbed is None else median_step_s(undisturbed)
    recovered = [event["data"] for event in events if event["kind"] == "recovered"]
    stalls = [find_stall(each, committed_s, fallen_at_s) for each in recovered]
    stalled_s = sum_of_union([*stalls, *find_long_gaps(steps, undisturbed or ())])
    num_steps = len({line["step"] for line in steps})
    is_measured = step_s is not None and wall_s > 0
    return Figures(
        wall_s=wall_s,
        step_s=step_s,
        goodput_ratio=(num_steps - 1) * step_s / wall_s if is_measured and step_s else None,
        stalled_s=stalled_s,
        stalled_ratio=stalled_s / wall_s if wall_s else 0.0,
        steps_lost=count_lost(events),
        recoveries=len(recovered),
    )


def count_lost(events: Iterable[Line]) -> int:
    """Return how many committed steps were done again: lines of ``events.jsonl`` tell of them."""
    lost = LostSteps()
    return sum(lost.take(event) for event in events)


def median_step_s(steps: Sequence[Line]) -> float | None:
    """Return the median time from one commit to the next; None of fewer than two."""
    committed_s = sorted(line["committed_at_s"] for line in steps)
    return median(b - a for a, b in pairwise(committed_s)) if len(committed_s) > 1 else None


def find_stall(
    recovered: Line, committed_s: Iterable[float], fallen_at_s: Iterable[float]
) -> tuple[float, float]:
    """Return from when until when no step ran, because of one recovery.

    It begins with the first fault since the last commit before the loss was noticed, or with that
    commit: a step may still be committed after the fault that ends the next one.

    Args:
        recovered: data of the event.
        committed_s: CLOCK_REALTIME of each commit.
        fallen_at_s: CLOCK_REALTIME of each fault.
    """
    noticed_s, healed_s = recovered["noticed_at_s"], recovered["healed_at_s"]
    last_s = max((at_s for at_s in committed_s if at_s <= noticed_s), default=None)
    since_s = [
        at_s for at_s in fallen_at_s if at_s <= noticed_s and (last_s is None or at_s > last_s)
    ]
    begin_s = min(since_s, default=noticed_s if last_s is None else last_s)
    return begin_s, max(noticed_s, healed_s)


def find_long_gaps(
    steps: Sequence[Line], undisturbed: Sequence[Line] = ()
) -> list[tuple[float, float]]:
    """Return the times between two commits in which more than steps of the usual length ran.

    Whatever it was that held them up, also where nobody was lost: a process that was stopped for a
    while, a cut that was waited out, a world that waits for workers. What is usual changes with the
    world and with what else the machine does, so it is the median of the gaps around; `_LONG` times
    that is long. The job's own pauses before a step, such as evaluations, are those that the
    undisturbed run makes too, and may take `_LONG_PAUSE` times as long.

    Args:
        steps: lines of ``metrics.jsonl``.
        undisturbed: those of the run without faults; none: no pause is known.
    """
    pauses_s = {gap.step: max(0.0, gap.seconds - gap.usual_s) for gap in _find_gaps(undisturbed)}
    found: list[tuple[float, float]] = []
    for gap in _find_gaps(steps):
        pause_s = pauses_s.get(gap.step, 0.0)
        if gap.seconds > _LONG * gap.usual_s + _LONG_PAUSE * pause_s:
            found.append((gap.since_s, gap.since_s + gap.seconds - gap.usual_s - pause_s))
    return found


@dataclass(frozen=True)
class _Gap:
    """The time from one commit to the next, which is of ``step``."""

    step: int
    since_s: float
    seconds: float
    usual_s: float


def _find_gaps(steps: Sequence[Line]) -> list[_Gap]:
    lines = sorted(steps, key=lambda line: line["committed_at_s"])
    gaps_s = [b["committed_at_s"] - a["committed_at_s"] for a, b in pairwise(lines)]
    found: list[_Gap] = []
    for place, gap_s in enumerate(gaps_s):
        others = gaps_s[max(0, place - _STEPS_AROUND) : place]
        others += gaps_s[place + 1 : place + 1 + _STEPS_AROUND]
        usual_s = median(others) if others else gap_s
        since_s = lines[place]["committed_at_s"]
        found.append(_Gap(lines[place + 1]["step"], since_s, gap_s, usual_s))
    return found


def sum_of_union(spans: Iterable[tuple[float, float]]) -> float:
    """Return how long at least one of some spans lasts."""
    total_s, reached_s = 0.0, float("-inf")
    for start_s, end_s in sorted(spans):
        total_s += max(0.0, end_s - max(start_s, reached_s))
        reached_s = max(reached_s, end_s)
    return total_s
