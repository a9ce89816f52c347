"""What sinks are given of a run, and what is told where they don't take it."""

import asyncio
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.distributed.jobs import make_job
from tests.unit.coordination.fakes import FakeClock
from tests.unit.coordination.noted_export import NotedExport
from tests.unit.coordination.test_run_record import STEP
from trainflow.computation.reports import EvaluationReport
from trainflow.config.sinks import SinkConfig
from trainflow.coordination import sink_feed
from trainflow.coordination.run_monitor import RunMonitor
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.run_state import RunState
from trainflow.coordination.sink_feed import SinkFeed
from trainflow.monitoring import metrics
from trainflow.monitoring.loggers.run_logger import LoggedRun, Outcome, Point

WITHIN_S = 30.0
SINKS = [{"kind": "tensorboard", "folder": "/a"}, {"kind": "wandb", "folder": "/b", "project": "p"}]


class Opened:
    """Loggers that note what they are given; a test says what each does first."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.points: dict[str, list[Point]] = {}
        self.runs: dict[str, LoggedRun] = {}
        self.outcomes: list[Outcome | None] = []
        self.act: Any = lambda _kind: None
        monkeypatch.setattr(sink_feed, "open_logger", self._open)

    def _open(self, sink: SinkConfig, run: LoggedRun) -> Any:
        self.runs[sink.kind] = run
        points = self.points.setdefault(sink.kind, [])

        def log(point: Point) -> bool:
            self.act(sink.kind)
            points.append(point)
            return True

        return SimpleNamespace(log=log, close=self.outcomes.append)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Opened:
    return Opened(monkeypatch)


class Run:
    def __init__(self, directory: Path, *sinks: dict[str, str]):
        self.record = RunRecord(directory, FakeClock())
        self.export = NotedExport()
        job = make_job(monitoring={"sinks": list(sinks)})
        self.feed = SinkFeed("job-1", job, self.record, self.export)
        self.record.follow(self.feed)

    def close(self) -> None:
        self.feed.end(RunState.FAILED)
        self.feed.wait_closed(WITHIN_S)
        self.feed.tell_end()

    def told(self) -> list[tuple[str, str]]:
        events = self.record.events_since(0)
        return [(e["kind"], e["text"]) for e in events if e["kind"].startswith("sink")]


def test_each_sink_is_given_every_step_and_evaluation(tmp_path: Path, opened: Opened):
    run = Run(tmp_path, *SINKS)
    run.record.add_step(replace(STEP, phases_s={"compute": 0.25}))
    run.record.add_step(replace(STEP, step=2))
    run.record.add_report(EvaluationReport(2, "held_out", 3.5))
    run.close()
    for points in opened.points.values():
        assert [point.step for point in points] == [1, 2, 2]
        assert points[0].at_s == STEP.committed_at_s
        assert points[0].values == {
            "train/loss": 2.5,
            "train/gradient_norm": 1.0,
            "train/learning_rate": 0.1,
            "train/world_size": 3.0,
            "train/applied": 1.0,
            "time/compute_s": 0.3,
            "time/wait_s": 0.2,
            "time/phase_compute_s": 0.25,
            "logged/accuracy": 0.5,
        }
        assert points[2].values == {"eval/held_out": 3.5}
    assert opened.runs["tensorboard"].project == "test", "the job's name"
    assert opened.runs["wandb"].project == "p"
    assert opened.runs["wandb"].settings["training"]["max_steps"] > 0
    assert run.told() == []


def test_one_that_fails_is_told_once_and_the_other_lacks_nothing(tmp_path: Path, opened: Opened):
    def act(kind: str) -> None:
        if kind == "wandb":
            raise OSError("no room")

    opened.act = act
    run = Run(tmp_path, *SINKS)
    for step in (1, 2, 3):
        run.record.add_step(replace(STEP, step=step))
    run.close()
    assert len(opened.points["tensorboard"]) == 3
    assert run.told() == [
        ("sink_failed", "wandb in /b has failed: OSError: no room"),
        ("sink_incomplete", "wandb in /b lacks at most 3 points of curves"),
    ]
    run.feed.tick()
    assert run.export.value(metrics.SINK_DROPPED, sink="wandb") == 3
    assert run.export.value(metrics.SINK_DROPPED, sink="tensorboard") == 0


def test_one_that_can_not_be_opened_is_told_as_what_it_is(
    tmp_path: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch
):
    def refuse(_sink: SinkConfig, _run: LoggedRun) -> Any:
        raise OSError("no room")

    monkeypatch.setattr(sink_feed, "open_logger", refuse)
    run = Run(tmp_path, SINKS[1])
    run.close()
    assert run.told() == [
        ("sink_failed", "wandb in /b has failed: it could not be opened: OSError: no room")
    ]


def test_a_run_goes_on_and_ends_while_a_sink_blocks(
    tmp_path: Path, opened: Opened, monkeypatch: pytest.MonkeyPatch
):
    goes_on, is_stuck = threading.Event(), threading.Event()

    def block(_kind: str) -> None:
        is_stuck.set()
        assert goes_on.wait(WITHIN_S)

    opened.act = block
    monkeypatch.setattr("trainflow.coordination.run_monitor._FEEDS_WITHIN_S", 0.01)
    record = RunRecord(tmp_path, FakeClock())
    job = make_job(monitoring={"sinks": SINKS[:1]})
    monitor = RunMonitor("job-1", job, record, FakeClock())
    for step in (1, 2, 3):
        record.add_step(replace(STEP, step=step))
    assert is_stuck.wait(WITHIN_S)
    monitor.tick(3, 0)
    monitor.end(RunState.SUCCEEDED)
    asyncio.run(monitor.close(RunState.SUCCEEDED))
    kinds = [event["kind"] for event in record.events_since(0)]
    assert kinds[-2:] == ["sink_failed", "sink_incomplete"]
    goes_on.set()


def test_sinks_are_told_what_a_run_came_to(tmp_path: Path, opened: Opened):
    Run(tmp_path, *SINKS).close()
    assert opened.outcomes == [Outcome.FAILED] * 2
    ends = {state.value for state in RunState if state.is_terminal}
    assert ends == set(Outcome)


def test_without_sinks_there_is_nothing_to_wait_for(tmp_path: Path):
    run = Run(tmp_path)
    run.record.add_step(STEP)
    run.close()
    assert run.told() == []
