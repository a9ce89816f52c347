"""From what two jobs and Ray's agent computed by turns to what monitoring costs a step. Pure.

Each round has two pairs of jobs, one after the other, each on a cluster of its own: a job that is
monitored beside one that isn't, and two that aren't, which are the control. What the coordinator
of the monitored job costs is told by the other's beside it, in each one's own turns. Ray's agent
serves both of a pair, and computes without any job as well: what monitoring costs there is told by
the agent of the control.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import fmean, median, stdev

from benchmarks.report import Row, interval_of_mean, interval_over_rounds
from benchmarks.turn_costs import Quad

BLOCKS_A_QUAD = 2  # of each job


@dataclass(frozen=True)
class Round:
    """The quads that count of both pairs of jobs.

    Attributes:
        monitored: of a monitored job, which is the first of the two, beside another.
        control: of two that are not monitored.
    """

    monitored: Sequence[Quad]
    control: Sequence[Quad]


@dataclass(frozen=True)
class Costs:
    """What the first job of a pair costs more than the second, in CPU-seconds a step of its own.

    Attributes:
        coordinator_s: its coordinator, in each one's own turns.
        waiting_s: its coordinator, while the other has its turns: what goes by time alone, and what
            the last steps before have left to be done within a second or two.
    """

    coordinator_s: float
    waiting_s: float


def find_costs(quads: Sequence[Quad], steps_a_block: int) -> Costs:
    """Return what one round shows of a pair."""
    steps = BLOCKS_A_QUAD * steps_a_block * len(quads)
    return Costs(
        sum(each.own[0].coordinator_s - each.own[1].coordinator_s for each in quads) / steps,
        sum(each.waiting[0].coordinator_s - each.waiting[1].coordinator_s for each in quads)
        / steps,
    )


def find_agent_rate(quads: Sequence[Quad]) -> float:
    """Return what Ray's agent computed, in CPU-seconds a second."""
    return sum(each.agent_s for each in quads) / sum(each.wall_s for each in quads)


def find_agent_cost(each: Round, steps_a_block: int) -> float:
    """Return what monitoring costs Ray's agent, in CPU-seconds a step of the monitored job.

    A step has the time of one of the other job beside it: what goes by time counts twice.
    """
    more = find_agent_rate(each.monitored) - find_agent_rate(each.control)
    steps = BLOCKS_A_QUAD * steps_a_block * len(each.monitored)
    return more * sum(quad.wall_s for quad in each.monitored) / steps


def tabulate(rounds: Sequence[Round], steps_a_block: int) -> list[Row]:
    """Return all figures of all rounds."""
    monitored = list(chain.from_iterable(each.monitored for each in rounds))
    rows = [
        *_compare("monitored", [each.monitored for each in rounds]),
        *_compare("control", [each.control for each in rounds]),
        Row("monitored", "quads", len(monitored), "quads"),
    ]
    step_s = [median(each.step_s[side] for each in monitored) / BLOCKS_A_QUAD for side in (0, 1)]
    steps_a_quad = BLOCKS_A_QUAD * steps_a_block
    for side, system in enumerate(("monitored", "plain")):
        coordinator_s = fmean(each.own[side].coordinator_s for each in monitored)
        rows += [
            Row(system, "step_s", step_s[side], "s"),
            Row(system, "coordinator_cpu_s", coordinator_s / steps_a_quad, "s a step"),
            Row(
                system, "cpu_s", fmean(q.all_s(side) for q in monitored) / steps_a_quad, "s a step"
            ),
        ]
    return [*rows, *_tabulate_agent(rounds), *_tabulate_costs(rounds, steps_a_block, step_s[1])]


def _tabulate_agent(rounds: Sequence[Round]) -> list[Row]:
    rows: list[Row] = []
    for system, rates in (
        ("monitored", [find_agent_rate(each.monitored) for each in rounds]),
        ("control", [find_agent_rate(each.control) for each in rounds]),
    ):
        rows.append(Row(system, "agent_rate", fmean(rates), "s a second"))
        rows.append(Row(system, "agent_rate_spread", _spread(rates), "s a second"))
    return rows


def _tabulate_costs(rounds: Sequence[Round], steps_a_block: int, step_s: float) -> list[Row]:
    """Return what monitoring costs, in CPU-seconds a step and as a share of a step's time."""
    monitored = [find_costs(each.monitored, steps_a_block) for each in rounds]
    control = [find_costs(each.control, steps_a_block) for each in rounds]
    agent_s = [find_agent_cost(each, steps_a_block) for each in rounds]
    coordinator_s = [each.coordinator_s for each in monitored]
    waiting_s = [each.waiting_s for each in monitored]
    cost_s = [sum(each) for each in zip(coordinator_s, waiting_s, agent_s, strict=True)]
    # Of the agent's, the half: a step of the other job has half of the time.
    spilled_s = [a.waiting_s + b / 2 for a, b in zip(monitored, agent_s, strict=True)]
    return [
        *_share("monitored", "coordinator_more", coordinator_s, step_s),
        *_share("control", "coordinator_more", [each.coordinator_s for each in control], step_s),
        *_share("monitored", "agent_more", agent_s, step_s),
        *_share("monitored", "cost", cost_s, step_s),
        *_share("monitored", "spilled", spilled_s, step_s),
    ]


def _share(system: str, name: str, by_round_s: Sequence[float], step_s: float) -> list[Row]:
    """Return CPU-seconds a step, and as a share of it: as if a step took so much longer."""
    rows = [Row(system, f"{name}_s", fmean(by_round_s), "s a step")]
    ratios = [each / step_s for each in by_round_s]
    figures = {f"{name}_ratio": fmean(ratios)}
    interval = interval_of_mean(ratios)
    if interval is not None:
        figures |= {f"{name}_ratio_low": interval[0], f"{name}_ratio_high": interval[1]}
    return rows + [Row(system, key, each, "1") for key, each in figures.items()]


def _compare(system: str, pairs: Sequence[Sequence[Quad]]) -> list[Row]:
    """Return ratios of step times, and of what all processes compute, by quads."""
    steps = [[each.step_s[0] / each.step_s[1] for each in quads] for quads in pairs]
    computed = [[each.all_s(0) / each.all_s(1) for each in quads] for quads in pairs]
    return [
        *_with_interval(system, "overhead_ratio", steps),
        *_with_interval(system, "cpu_ratio", computed),
    ]


def _with_interval(system: str, metric: str, by_round: Sequence[Sequence[float]]) -> list[Row]:
    low, high = interval_over_rounds(by_round)
    value = median(chain.from_iterable(by_round))
    figures = {metric: value, f"{metric}_low": low, f"{metric}_high": high}
    figures |= {f"{metric}_round_{number}": median(each) for number, each in enumerate(by_round)}
    return [Row(system, key, each, "1") for key, each in figures.items()]


def _spread(values: Sequence[float]) -> float:
    """Return the standard deviation over rounds; 0 of one round."""
    return stdev(values) if len(values) > 1 else 0.0
