"""How many series a run makes, and how what it costs follows from turns."""

import asyncio
import json
import os
import random
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks import turn_costs
from benchmarks.monitoring import count_series, is_scraped, make_side
from benchmarks.monitoring_costs import Round, tabulate
from benchmarks.monitoring_job import Args
from benchmarks.report import interval_of_mean, interval_over_rounds
from benchmarks.series import NotedSeries
from benchmarks.turn_costs import (
    Quad,
    Reading,
    Spent,
    find_agents,
    follow_turns,
    join_quads,
    read_cpu_s,
)
from benchmarks.turns import Side, Turns
from trainflow.monitoring import metrics
from trainflow.monitoring.metrics import METRICS


def test_a_run_has_as_many_series_whatever_its_ranks():
    few, more = (asyncio.run(count_series(num_workers)).value for num_workers in (4, 40))
    assert abs(few - more) < 10, "a series a rank would make 36 more"
    assert 80 < few <= sum(metric.num_series for metric in METRICS)


def test_series_are_counted_by_labels_and_once():
    noted = NotedSeries()
    noted.show(metrics.LOSS, 1.0)
    noted.show(metrics.LOSS, 2.0)
    noted.add(metrics.FAILURES, 0.0, cause="died")
    assert noted.num_series == 1
    noted.add(metrics.FAILURES, cause="died")
    noted.add(metrics.FAILURES, cause="hung")
    noted.observe(metrics.STEP_DURATION, 1.0)
    assert noted.num_series == 3 + len(metrics.STEP_DURATION.buckets) + 3


def test_one_side_is_monitored_by_all_there_is_and_the_other_by_nothing(tmp_path: Path):
    def settings(system: Any) -> Any:
        shape: Any = {"size": "demo", "num_blocks": 2, "steps_a_block": 3, "begins": True}
        args = Args(work_dir=tmp_path, system=system, **shape)
        return make_side(args, "http://127.0.0.1:1/").monitoring

    monitored, control, plain = map(settings, ("monitored", "control", "plain"))
    assert monitored.enabled
    assert monitored.webhook is not None
    assert [sink.kind for sink in monitored.sinks] == ["tensorboard"]
    assert not plain.enabled
    assert control == plain


class _Run:
    """A run with a worker, whose processes' ids follow from its number."""

    job_id = "bench-1"

    def __init__(self, number: int):
        self._number = number

    def coordinator_pid(self) -> int:
        return self._number

    def keeper_pid(self, node_id: str) -> int:
        assert node_id == "node-1"
        return self._number + 1

    def workers(self) -> list[dict[str, Any]]:
        return [{"node_id": "node-1", "pid": self._number + 2}]


class _Listed:
    """A process."""

    def __init__(self, pid: int, *words: str):
        self.pid = pid
        self._words = words

    def cmdline(self) -> list[str]:
        return [*self._words]


AGENT = _Listed(30, "python", "-u", "/site-packages/ray/dashboard/agent.py", "--node-id=1")


def test_what_all_compute_is_read_where_turns_begin_that_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    turns, spent_s = Turns(tmp_path / "turns"), dict.fromkeys((10, 11, 12, 20, 21, 22, 30), 0.0)

    def go_on(_: float) -> None:
        for pid in spent_s:
            spent_s[pid] += pid / 10
        turns.finish(turns.block)

    monkeypatch.setattr(turn_costs, "read_cpu_s", spent_s.__getitem__)
    monkeypatch.setattr(turn_costs, "_SETTLES_S", 0.0)
    monkeypatch.setattr(turn_costs.SYSTEM_CLOCK, "sleep", lambda s: go_on(s) if s else None)
    runs: Any = [_Run(10), _Run(20)]
    listed: Any = [AGENT]
    readings = list(follow_turns(turns, runs, lambda: listed, num_quads=3, within_s=60.0))
    assert turns.block == 8
    assert len(readings) == 5, "of the first quad nothing counts, and of the last the begin does"
    one = readings[1].spent[1].since(readings[0].spent[1])
    assert (one.coordinator_s, one.all_s) == (pytest.approx(2.0), pytest.approx(6.3))
    assert readings[4].agent_s - readings[0].agent_s == pytest.approx(4 * 3.0)
    assert readings[0].agent_s == pytest.approx(4 * 3.0), "what came before doesn't count"


def test_cpu_time_is_read_finer_than_a_tick():
    def burn() -> float:
        before_s = read_cpu_s(os.getpid())
        sum(range(20_000))
        return read_cpu_s(os.getpid()) - before_s

    assert 0 < min(burn() for _ in range(20)) < 0.01
    assert read_cpu_s(os.getpid()) == pytest.approx(time.process_time(), abs=0.5)


@pytest.mark.parametrize(("system", "turns"), [("a", [0, 3, 4, 7]), ("b", [1, 2, 5, 6])])
def test_turns_go_back_and_forth(tmp_path: Path, system: str, turns: list[int]):
    side = Side(tmp_path, system, int(system == "b"), steps_a_block=2, is_mirrored=True)
    assert [side.turn_of(block) for block in range(4)] == turns


def _read(turn: int) -> Reading:
    """A turn costs the first job's coordinator 1 s; the second's 2 s, but 4 s in turns 1 and 2."""
    inner_s = min(2.0, max(0.0, turn - 1.0))
    return Reading(
        10.0 * turn,
        (Spent(turn, 10.0 * turn), Spent(2.0 * (turn + inner_s), 30.0 * turn)),
        0.5 * turn,
    )


@pytest.mark.parametrize(
    ("first", "own", "waiting"), [(0, (2.0, 8.0), (2.0, 4.0)), (1, (2.0, 4.0), (2.0, 8.0))]
)
def test_what_a_job_computes_in_its_own_turns_is_told_from_the_rest(
    tmp_path: Path, first: int, own: tuple[float, float], waiting: tuple[float, float]
):
    for system, step_s in (("a", 0.25), ("b", 0.5)):
        lines = [json.dumps({"steps_s": [step_s * (1 + block)]}) for block in range(6)]
        (tmp_path / f"{system}-0.jsonl").write_text("\n".join(lines))
    readings = [_read(turn) for turn in range(5)]
    (quad,) = join_quads(tmp_path, ("a", "b"), first, readings)
    assert quad.step_s == (0.25 * (3 + 4), 0.5 * (3 + 4)), "the first two blocks don't count"
    assert tuple(each.coordinator_s for each in quad.own) == own
    assert tuple(each.coordinator_s for each in quad.waiting) == waiting
    assert (quad.all_s(0), quad.all_s(1)) == (40.0, 120.0)
    assert (quad.agent_s, quad.wall_s) == (2.0, 40.0)


def test_each_four_turns_make_one_quad(tmp_path: Path):
    for system in ("a", "b"):
        lines = [json.dumps({"steps_s": [float(block)]}) for block in range(8)]
        (tmp_path / f"{system}-0.jsonl").write_text("\n".join(lines))
    readings = [_read(turn) for turn in range(9)]
    quads = join_quads(tmp_path, ("a", "b"), 0, readings)
    assert [each.step_s for each in quads] == [(5.0, 5.0), (9.0, 9.0)]
    assert [each.wall_s for each in quads] == [40.0, 40.0]


def test_the_node_is_scraped_once_a_quad_and_by_turns_while_either_computes():
    assert [turn for turn in range(16) if is_scraped(turn)] == [0, 5, 8, 13]


STEPS = 4  # a block: a quad has 8 of each job


def _quad(more_s: float, agent_s: float, slower_by: float = 0.0) -> Quad:
    """Turns of which each takes longer than the one before by as much, of 1 s a step and more."""
    first, second, third, fourth = (1.0 + slower_by * n for n in range(4))
    return Quad(
        (1.02 * (first + fourth), second + third),
        own=(Spent(1.0 + more_s, 8.0 + more_s), Spent(1.0, 8.0)),
        waiting=(Spent(0.5 + more_s / 4, 2.0), Spent(0.5, 2.0)),
        agent_s=agent_s,
        wall_s=16.0,
    )


def _figures(rounds: list[Round]) -> dict[tuple[str, str], float]:
    return {(row.system, row.metric): row.value for row in tabulate(rounds, STEPS)}


def test_a_machine_that_becomes_slower_all_the_time_is_as_slow_for_both():
    monitored = [_quad(0.0, 1.0, slower_by=0.01 * n) for n in range(6)]
    figures = _figures([Round(monitored, [_quad(0.0, 1.0)])] * 2)
    assert figures["monitored", "overhead_ratio"] == pytest.approx(1.02)
    assert figures["monitored", "overhead_ratio_low"] == pytest.approx(1.02)
    assert figures["plain", "cpu_s"] == pytest.approx(10.0 / 8)


def test_what_an_agent_computes_without_monitoring_is_no_cost_of_it():
    rounds = [Round([_quad(0.08, agent_s=1.2)], [_quad(0.0, agent_s=1.0)])] * 3
    figures = _figures(rounds)
    assert figures["monitored", "agent_rate"] == pytest.approx(1.2 / 16)
    assert figures["control", "agent_rate"] == pytest.approx(1.0 / 16)
    assert figures["monitored", "agent_more_s"] == pytest.approx(0.2 / 8)
    assert figures["monitored", "coordinator_more_s"] == pytest.approx(0.08 / 8)
    cost_s = 0.08 + 0.02 + 0.2  # in its turns, in the other's, and the agent
    assert figures["monitored", "cost_s"] == pytest.approx(cost_s / 8)
    assert figures["monitored", "cost_ratio"] == pytest.approx(cost_s / 8), "a step takes 1 s"
    assert figures["control", "coordinator_more_ratio"] == 0


def test_what_the_other_side_bears_is_told():
    """A quarter of what the coordinator computes more goes by time, and half of the agent's."""
    figures = _figures([Round([_quad(0.08, agent_s=1.2)], [_quad(0.0, agent_s=1.0)])])
    assert figures["monitored", "spilled_s"] == pytest.approx((0.02 + 0.1) / 8)


def test_agents_that_differ_by_rounds_widen_the_interval():
    def spread(agents_s: tuple[float, ...]) -> float:
        figures = _figures([Round([_quad(0.0, each)], [_quad(0.0, 1.0)]) for each in agents_s])
        spread_s = figures["monitored", "agent_rate_spread"]
        width = figures["monitored", "cost_ratio_high"] - figures["monitored", "cost_ratio_low"]
        assert (spread_s > 0) == (width > 0)
        return width

    assert spread((1.2, 1.2, 1.2)) == 0
    of_three = 4.303 * 0.1 / 3**0.5  # by Student's t
    assert spread((1.1, 1.2, 1.3)) == pytest.approx(2 * of_three / 8, rel=0.001)


def test_of_one_round_there_is_no_interval():
    figures = _figures([Round([_quad(0.08, 1.2)], [_quad(0.0, 1.0)])])
    assert ("monitored", "cost_ratio") in figures
    assert ("monitored", "cost_ratio_high") not in figures


def test_an_interval_of_a_mean_holds_it_as_often_as_it_says():
    rng, num_held, num_tries = random.Random(0), 0, 2000
    for _ in range(num_tries):
        interval = interval_of_mean([rng.gauss(0.0, 1.0) for _ in range(8)])
        assert interval is not None
        num_held += interval[0] < 0.0 < interval[1]
    assert num_held / num_tries == pytest.approx(0.95, abs=0.015)


def test_rounds_that_differ_widen_the_interval():
    alike = interval_over_rounds([[1.0, 1.1, 1.2], [1.0, 1.1, 1.2]])
    apart = interval_over_rounds([[1.0, 1.1, 1.2], [2.0, 2.1, 2.2]])
    assert alike[1] - alike[0] <= 0.2
    assert apart[1] - apart[0] >= 0.9


def test_an_agent_is_known_by_what_it_runs():
    listed: Any = [_Listed(7, "raylet"), AGENT, _Listed(9)]
    assert find_agents(listed) == [AGENT.pid]


def test_nothing_is_measured_without_an_agent():
    listed: Any = [_Listed(7, "raylet")]
    with pytest.raises(RuntimeError, match="agent"):
        find_agents(listed)
