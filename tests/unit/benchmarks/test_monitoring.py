"""How many series a run makes, and how what it costs follows from turns."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import turn_costs
from benchmarks.monitoring import count_series, make_side, tabulate
from benchmarks.monitoring_job import Args
from benchmarks.report import interval_over_rounds
from benchmarks.series import NotedSeries
from benchmarks.turn_costs import Quad, Spent, find_agents, follow_quads, join_quads
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

    monitored, plain = settings("monitored"), settings("plain")
    assert monitored.enabled
    assert monitored.webhook is not None
    assert [sink.kind for sink in monitored.sinks] == ["tensorboard"]
    assert not plain.enabled


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


class _Process:
    def __init__(self, pid: int):
        self.pid = pid


def test_what_all_processes_compute_is_read_where_quads_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    turns, spent_s = Turns(tmp_path / "turns"), dict.fromkeys((10, 11, 12, 20, 21, 22), 0.0)

    def go_on(_: float) -> None:
        for pid in spent_s:
            spent_s[pid] += pid / 10
        turns.finish(turns.block)

    def read(process: _Process) -> float:
        return spent_s[process.pid]

    monkeypatch.setattr(turn_costs.psutil, "Process", _Process)
    monkeypatch.setattr(turn_costs, "read_cpu_s", read)
    monkeypatch.setattr(turn_costs.SYSTEM_CLOCK, "sleep", go_on)
    runs: Any = [_Run(10), _Run(20)]
    readings = list(follow_quads(turns, runs, num_quads=3, within_s=60.0))
    assert turns.block == 8
    one = readings[2][1].since(readings[1][1])
    assert (one.coordinator_s, one.all_s) == (pytest.approx(8.0), pytest.approx(4 * 6.3))


@pytest.mark.parametrize(("system", "turns"), [("a", [0, 3, 4, 7]), ("b", [1, 2, 5, 6])])
def test_turns_go_back_and_forth(tmp_path: Path, system: str, turns: list[int]):
    side = Side(tmp_path, system, int(system == "b"), steps_a_block=2, is_mirrored=True)
    assert [side.turn_of(block) for block in range(4)] == turns


def test_a_quad_has_two_blocks_of_each(tmp_path: Path):
    for system, step_s in (("a", 0.25), ("b", 0.5)):
        lines = [json.dumps({"steps_s": [step_s * (1 + block)]}) for block in range(4)]
        (tmp_path / f"{system}-0.jsonl").write_text("\n".join(lines))
    readings = [(Spent(n, 10.0 * n), Spent(2.0 * n, 30.0 * n)) for n in (0.0, 1.0, 3.0)]
    assert join_quads(tmp_path, ("a", "b"), readings) == [
        Quad((0.75, 1.5), (Spent(1.0, 10.0), Spent(2.0, 30.0))),
        Quad((1.75, 3.5), (Spent(2.0, 20.0), Spent(4.0, 60.0))),
    ]


def test_a_machine_that_becomes_slower_all_the_time_is_as_slow_for_both():
    rounds = [[_quad(slower_by=0.01 * n) for n in range(6)] for _ in range(2)]
    rows = {(row.system, row.metric): row.value for row in tabulate(rounds, steps_a_block=4)}
    assert rows["monitored", "overhead_ratio"] == pytest.approx(1.02)
    assert rows["monitored", "overhead_ratio_low"] == pytest.approx(1.02)
    assert rows["monitored", "cpu_ratio"] == pytest.approx(1.1)
    assert rows["monitored", "coordinator_more_ratio"] == pytest.approx(0.05)
    assert rows["plain", "cpu_s"] == pytest.approx(10.0 / 8)


def _quad(slower_by: float) -> Quad:
    """Turns of which each takes longer than the one before by as much."""
    first, second, third, fourth = (1.0 + slower_by * n for n in range(4))
    step_s = (1.02 * (first + fourth), second + third)
    return Quad(step_s, (Spent(1.5, 11.0), Spent(1.0, 10.0)))


def test_rounds_that_differ_widen_the_interval():
    alike = interval_over_rounds([[1.0, 1.1, 1.2], [1.0, 1.1, 1.2]])
    apart = interval_over_rounds([[1.0, 1.1, 1.2], [2.0, 2.1, 2.2]])
    assert alike[1] - alike[0] <= 0.2
    assert apart[1] - apart[0] >= 0.9


def test_an_agent_is_known_by_what_it_runs():
    class Listed:
        def __init__(self, *words: str):
            self._words = words

        def cmdline(self) -> list[str]:
            return [*self._words]

    agent = Listed("python", "-u", "/site-packages/ray/dashboard/agent.py", "--node-id=1")
    listed: Any = [Listed("raylet"), agent, Listed()]
    assert find_agents(listed) == [agent]
