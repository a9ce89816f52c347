"""How many series a run makes, and what turns are read for."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from benchmarks import monitoring
from benchmarks.monitoring import count_series, follow_turns, make_side
from benchmarks.monitoring_job import Args
from benchmarks.series import NotedSeries
from benchmarks.turns import Turns
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
        args = Args(work_dir=tmp_path, size="demo", num_blocks=2, steps_a_block=3, system=system)
        return make_side(args, "http://127.0.0.1:1/").monitoring

    monitored, plain = settings("monitored"), settings("plain")
    assert monitored.enabled
    assert monitored.webhook is not None
    assert [sink.kind for sink in monitored.sinks] == ["tensorboard"]
    assert not plain.enabled


class _Run:
    """A run, of which its coordinator's process is asked for."""

    job_id = "bench-1"

    def __init__(self, pid: int):
        self._pid = pid

    def coordinator_pid(self) -> int:
        return self._pid


class _Process:
    def __init__(self, pid: int):
        self.pid = pid


def test_what_a_coordinator_computes_counts_in_its_own_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    turns, spent_s = Turns(tmp_path / "turns"), {7: 0.0, 8: 0.0}

    def go_on(_: float) -> None:
        spent_s[7] += 1.0
        spent_s[8] += 0.25
        turns.finish(turns.block)

    def read(process: _Process) -> float:
        return spent_s[process.pid]

    monkeypatch.setattr(monitoring.psutil, "Process", _Process)
    monkeypatch.setattr(monitoring, "_cpu_s", read)
    monkeypatch.setattr(monitoring.SYSTEM_CLOCK, "sleep", go_on)
    runs: Any = [_Run(7), _Run(8)]
    assert follow_turns(turns, runs, num_blocks=2) == [[1.0, 1.0], [0.25, 0.25]]
