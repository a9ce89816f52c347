"""From events and kills to recovery figures.  Pure: plain values in, plain values out.

What counts as recovered is the same for every system: a step that all ranks of a membership
*formed after the kill* have finished.  A step that was in flight at the kill, and that survivors
still finish under the old membership, does not count.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from benchmarks.peers.events import STEP, Event


@dataclass(frozen=True)
class Kill:
    """One SIGKILL, or SIGSTOP: when, of whom, and the membership that it ended."""

    unix_s: float
    pid: int
    generation: int


@dataclass(frozen=True)
class Milestone:
    """A phase of recovery ends with the first (``pick=min``) or last (``max``) event of a name."""

    phase: str
    event: str
    pick: Callable[[Iterable[float]], float] = max


@dataclass(frozen=True)
class RecoverySample:
    """What one kill cost.

    Attributes:
        recovery_s: From the signal to the first step that every rank finished after it.
        step_s: Median step time of the membership that was killed.
        steps_lost: Finished steps that had to be executed again.
        phase_in_step_ratio: How far into its step the victim was, 0 to about 1.
        phases: Seconds of each phase, in order; they sum to ``recovery_s``.
        detect_s: From a SIGSTOP to the verdict that the process hangs; None after a SIGKILL.
    """

    recovery_s: float
    step_s: float
    steps_lost: int
    phase_in_step_ratio: float
    phases: dict[str, float]
    detect_s: float | None = None


@dataclass(frozen=True)
class Recovery:
    """The end of a recovery: when the last rank finished which step."""

    unix_s: float
    step: int


def find_recovery(events: Iterable[Event], kill: Kill) -> Recovery | None:
    """Find the first step that all ranks of a later membership have finished, if there is one."""
    finished: dict[tuple[int, int], dict[int, Event]] = defaultdict(dict)
    for event in events:
        later = event.generation > kill.generation and event.unix_s > kill.unix_s
        if event.name == STEP and later and event.rank >= 0:
            finished[event.generation, event.step][event.rank] = event
    complete = [
        Recovery(max(e.unix_s for e in by_rank.values()), step)
        for (_, step), by_rank in finished.items()
        if len(by_rank) == next(iter(by_rank.values())).world_size
    ]
    return min(complete, key=lambda recovered: recovered.unix_s, default=None)


def to_samples(
    events: Sequence[Event], kills: Sequence[Kill], milestones: Sequence[Milestone]
) -> list[RecoverySample]:
    """Turn a run into one sample a kill.

    Raises:
        ValueError: a kill was not recovered from, or its victim never finished a step.
    """
    return [_to_sample(events, kill, milestones) for kill in kills]


def _to_sample(
    events: Sequence[Event], kill: Kill, milestones: Sequence[Milestone]
) -> RecoverySample:
    recovered = find_recovery(events, kill)
    if recovered is None:
        raise ValueError(f"the kill of pid {kill.pid} at {kill.unix_s} was not recovered from")
    step_s = median_step_s(events, kill.generation)
    before = [e for e in events if e.name == STEP and e.generation <= kill.generation]
    victim_s = max(e.unix_s for e in before if e.pid == kill.pid and e.unix_s <= kill.unix_s)
    return RecoverySample(
        recovery_s=recovered.unix_s - kill.unix_s,
        step_s=step_s,
        steps_lost=max(0, max(e.step for e in before) - recovered.step + 1),
        phase_in_step_ratio=(kill.unix_s - victim_s) / step_s,
        phases=_phases(events, kill, recovered, milestones),
    )


def median_step_s(events: Iterable[Event], generation: int) -> float:
    """Median time between two finished steps of one process, under one membership.

    Raises:
        statistics.StatisticsError: no process finished two steps under it.
    """
    by_pid: dict[int, list[Event]] = defaultdict(list)
    for event in events:
        if event.name == STEP and event.generation == generation:
            by_pid[event.pid].append(event)
    return median(
        later.unix_s - earlier.unix_s
        for steps in by_pid.values()
        for earlier, later in pairwise(steps)
    )


def _phases(
    events: Iterable[Event], kill: Kill, recovered: Recovery, milestones: Sequence[Milestone]
) -> dict[str, float]:
    """Cut the recovery at each milestone; a milestone that did not happen takes no time."""
    during = [e for e in events if kill.unix_s < e.unix_s <= recovered.unix_s and e.pid != kill.pid]
    phases: dict[str, float] = {}
    reached_s = kill.unix_s
    for milestone in milestones:
        times_s = [e.unix_s for e in during if e.name == milestone.event]
        next_s = max(reached_s, milestone.pick(times_s)) if times_s else reached_s
        phases[milestone.phase] = next_s - reached_s
        reached_s = next_s
    phases["first_step"] = recovered.unix_s - reached_s
    return phases


def summarize(name: str, samples: Sequence[RecoverySample]) -> str:
    """Describe the samples of one system in a few lines: medians, then each kill as it was."""
    recovery_s = median(sample.recovery_s for sample in samples)
    step_s = median(sample.step_s for sample in samples)
    beyond_s = median(sample.recovery_s - sample.step_s for sample in samples)
    steps_lost = median(sample.steps_lost for sample in samples)
    lines = [
        f"{name}: medians of {len(samples)} kills: recovery {recovery_s:.3f} s, "
        f"step {step_s:.3f} s, beyond a step {beyond_s:.3f} s, steps lost {steps_lost:g}"
    ]
    for sample in samples:
        phases = "  ".join(f"{phase} {seconds:.3f}" for phase, seconds in sample.phases.items())
        lines.append(
            f"  {sample.recovery_s:7.3f} s  at {sample.phase_in_step_ratio:.2f} of a "
            f"{sample.step_s:.3f} s step  lost {sample.steps_lost}  {phases}"
        )
    return "\n".join(lines)
