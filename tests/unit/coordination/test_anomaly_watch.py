"""What a run tells of its losses, also past restarts and steps that are done again."""

import json
import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from tests.distributed.jobs import make_job
from tests.unit.coordination.fakes import FakeClock
from tests.unit.coordination.test_run_record import STEP
from trainflow.coordination import anomaly_watch
from trainflow.coordination.anomaly_watch import AnomalyWatch
from trainflow.coordination.run_monitor import RunMonitor
from trainflow.coordination.run_record import RunRecord
from trainflow.epochs import EpochId
from trainflow.monitoring.anomalies.norm_guard import OddNorm

FIRST, LATER = EpochId(1, 1), EpochId(1, 2)
KEEP_EVERY = 50


@pytest.fixture(autouse=True)
def kept_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(anomaly_watch, "KEEP_EVERY", KEEP_EVERY)


class Run:
    """One rank's steps, with a loss of about 2 and a norm of about 1."""

    def __init__(self, directory: Path):
        self._directory = directory
        self.epoch = FIRST
        self.open()

    def open(self) -> None:
        """Begin, or go on with a new coordinator."""
        self.record = RunRecord(self._directory, FakeClock())
        self.watch = AnomalyWatch(make_job(), self.record)
        self.record.follow(self.watch)

    def go(self, until: int, **others: Any) -> None:
        """Take usual steps up to and with one; the same step has the same values each time."""
        for step in range(self.record.last_step + 1, until + 1):
            rng = random.Random(step)
            values = {"loss": 2 * (1 + rng.gauss(0, 0.01)), "grad_norm": 1 + rng.gauss(0, 0.05)}
            self.step(step, **values | others)

    def step(self, step: int, **values: Any) -> None:
        self.record.add_step(replace(STEP, step=step, epoch=self.epoch, **values))

    def form(self, epoch: EpochId, base: int) -> None:
        """Begin an epoch from a state."""
        if base < self.record.last_step:
            self.record.begin_after(base, "a snapshot", epoch)
        self.epoch = epoch
        self.record.add_event("epoch", "", epoch=str(epoch), members=["a"], base=f"{base}@1.1")

    def told(self) -> list[tuple[str, str]]:
        return [
            (event["kind"], event["data"]["anomaly"])
            for event in self.record.events_since(0)
            if event["kind"].startswith("anomaly")
        ]

    def last(self) -> Mapping[str, Any]:
        return self.record.events_since(0)[-1]

    def state(self) -> str:
        return json.dumps(self.watch._state.to_json())


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return Run(tmp_path)


def test_a_spike_and_its_end_are_told_with_figures(run: Run):
    run.go(120)
    run.step(121, loss=8.0)
    event = run.last()
    assert event["text"].startswith("step 121: the loss 8 is 3.99 times the 2.004 that")
    assert event["data"].keys() == {
        "anomaly",
        "since_step",
        "value",
        "expected",
        "score",
        "step",
    }
    assert run.watch.current()[0]["anomaly"] == "loss_spike"
    run.go(130)
    assert run.told() == [("anomaly", "loss_spike"), ("anomaly_over", "loss_spike")]
    assert run.last()["data"] == {
        "anomaly": "loss_spike",
        "since_step": 121,
        "cause": "usual",
        "step": 124,
    }
    assert run.watch.current() == []


def test_a_new_coordinator_comes_to_the_very_state(run: Run):
    run.go(120)
    run.step(121, loss=8.0)
    before = run.state()
    run.open()
    assert run.state() == before
    assert run.watch.current()[0]["since_step"] == 121
    assert run.told() == [("anomaly", "loss_spike")], "told once"
    run.go(130)
    assert run.told() == [("anomaly", "loss_spike"), ("anomaly_over", "loss_spike")]


def test_it_needs_only_the_newest_steps_for_that(run: Run):
    run.go(120)
    before = run.state()
    lines = run.record._steps_file.read()
    assert min(line["step"] for line in lines) == 1
    with mock.patch.object(
        RunRecord, "steps_since", side_effect=RunRecord.steps_since, autospec=True
    ) as asked:
        run.open()
    assert asked.call_args.args[1] == 100, "kept every fifty"
    assert run.state() == before


def test_a_run_that_goes_back_goes_on_from_the_state_of_that_step(run: Run):
    run.go(110)
    at_110 = run.state()
    run.go(160)
    run.form(LATER, base=110)
    assert run.state() == at_110
    run.go(160)
    after = run.state()
    run.open()
    assert run.state() == after


@pytest.mark.parametrize("base", [4, 20, 40])
def test_one_that_goes_back_to_its_first_steps_is_judged_by_the_later_ones(run: Run, base: int):
    run.go(120)
    run.form(LATER, base=base)
    before = run.state()
    run.open()
    assert run.state() == before, "a new coordinator too"
    run.go(max(base, 16))
    run.step(run.record.last_step + 1, loss=8.0)
    assert run.told() == [("anomaly", "loss_spike")]


def test_what_was_found_in_steps_that_are_void_is_void(run: Run):
    run.go(110)
    run.go(115, loss=8.0)
    assert run.told() == [("anomaly", "loss_spike")]
    run.form(LATER, base=110)
    assert run.told() == [("anomaly", "loss_spike"), ("anomaly_over", "loss_spike")]
    assert run.last()["data"]["cause"] == "void"
    run.go(120)
    assert len(run.told()) == 2


def test_a_kept_state_of_a_void_history_is_not_used(run: Run):
    run.go(99)
    run.go(100, loss=8.0)  # kept with the spike in it
    run.form(LATER, base=90)
    run.go(120)
    after = run.state()
    run.open()
    assert run.state() == after
    assert run.watch.current() == []


def test_an_epoch_that_loses_no_step_changes_nothing(run: Run):
    run.go(110)
    before = run.state()
    run.form(LATER, base=110)
    assert run.state() == before


def test_what_was_told_very_many_events_ago_is_not_told_again(run: Run):
    run.go(120)
    run.step(121, loss=8.0)
    for step in range(1100):
        run.record.add_event("checkpoint_skipped", "the store is slow", step=step)
    run.open()
    assert [each["anomaly"] for each in run.watch.current()] == ["loss_spike"]
    assert run.told() == [], "the event is in the file alone"
    run.go(130)
    assert run.told() == [("anomaly_over", "loss_spike")]
    run.open()
    assert run.watch.current() == []
    assert run.told() == [("anomaly_over", "loss_spike")]


def test_an_anomaly_that_a_coordinator_could_not_tell_is_told_by_the_next(run: Run):
    run.go(120)
    run.step(121, loss=8.0)
    path = run.record.directory / "events.jsonl"
    lines = [line for line in path.read_text().splitlines() if '"anomaly"' not in line]
    path.write_text("".join(f"{line}\n" for line in lines))
    run.open()
    assert run.told() == [("anomaly", "loss_spike")]


def test_a_detector_that_crashes_stops_nothing_but_itself(tmp_path: Path):
    record = RunRecord(tmp_path, FakeClock())
    monitor = RunMonitor("job-1", make_job(), record, FakeClock())
    with mock.patch.object(anomaly_watch, "observe", side_effect=ZeroDivisionError):
        record.add_step(STEP)
        record.add_step(replace(STEP, step=2))
    kinds = [event["kind"] for event in record.events_since(0)]
    assert kinds == ["monitoring_failed"]
    assert record.last_step == 2
    assert monitor.describe()["anomalies"] == []


def test_a_damaged_state_costs_the_detector_and_nothing_else(tmp_path: Path):
    (tmp_path / "anomalies.jsonl").write_text('{"step": 3}\n')
    record = RunRecord(tmp_path, FakeClock())
    monitor = RunMonitor("job-1", make_job(), record, FakeClock())
    record.add_step(STEP)
    (event,) = record.events_since(0)
    assert event["data"] == {"follower": "AnomalyWatch"}
    assert monitor.describe()["anomalies"] == []


def test_nothing_is_looked_for_if_that_is_not_asked_for(tmp_path: Path):
    job = make_job(monitoring={"anomalies": {"enabled": False}})
    record = RunRecord(tmp_path, FakeClock())
    RunMonitor("job-1", job, record, FakeClock())
    record.add_step(replace(STEP, loss=float("nan")))
    assert record.events_since(0) == []


def test_a_step_that_was_skipped_for_its_norm_is_told_with_figures(run: Run):
    run.go(120)
    odd = OddNorm(expected=1.0, score=40.0, num_in_a_row=2)
    run.step(121, applied=False, grad_norm=8.0, odd_norm=odd)
    events = {event["kind"]: event for event in run.record.events_since(0)}
    assert events["step_skipped"]["text"] == (
        "step 121: the gradient's norm 8 is 8 times the 1 that was to be expected, +40.0 spreads: "
        "nothing of the step is applied"
    )
    figures = {"step": 121, "value": 8.0, "expected": 1.0, "score": 40.0, "num_in_a_row": 2}
    assert events["step_skipped"]["data"] == figures
    assert "anomaly" in events, "that is told of as well"
    lines = run.record.steps_since(119)
    assert [line.get("odd_norm") for line in lines] == [
        None,
        {"expected": 1.0, "score": 40.0, "num_in_a_row": 2},
    ]
    run.go(130)
    run.open()
    kinds = [event["kind"] for event in run.record.events_since(0)]
    assert kinds.count("step_skipped") == 1


def make_other(directory: Path, known: Any, step: int) -> Run:
    """A run that begins with a checkpoint which says what was known."""
    other = Run(directory)
    other.watch.go_on_from(step, json.loads(json.dumps(known, allow_nan=False)))
    other.form(FIRST, base=step)
    other.record.begin_after(step, "a checkpoint", FIRST)
    return other


def test_another_run_goes_on_with_the_very_state_that_a_checkpoint_kept(run: Run, tmp_path: Path):
    run.go(120)
    run.step(121, loss=8.0)
    run.go(135)
    known = run.watch.describe_after(125)
    assert known["step"] == 125
    other = make_other(tmp_path / "other", known, 125)
    other.go(135)
    assert other.state() == run.state()
    other.open()
    assert other.state() == run.state(), "a new coordinator too"


def test_a_new_coordinator_that_finds_the_checkpoint_again_knows_more(run: Run, tmp_path: Path):
    run.go(120)
    known = run.watch.describe_after(120)
    other = make_other(tmp_path / "other", known, 120)
    other.go(135)
    before = other.state()
    other.open()
    other.watch.go_on_from(120, known)
    assert other.state() == before


def test_one_that_has_seen_no_step_goes_on_with_what_the_checkpoint_kept(run: Run, tmp_path: Path):
    run.go(120)
    other = Run(tmp_path / "other")
    other.watch.go_on_from(120, run.watch.describe_after(120))
    other.open()
    other.form(FIRST, base=120)
    assert other.state() == run.state()


def test_it_goes_on_with_what_there_was_to_tell_of(run: Run, tmp_path: Path):
    run.go(120)
    run.step(121, loss=float("nan"))
    other = make_other(tmp_path / "other", run.watch.describe_after(121), 121)
    assert other.told() == [("anomaly", "not_finite")], "told in this run's record, once"
    other.open()
    other.go(122)
    assert other.told() == [("anomaly", "not_finite"), ("anomaly_over", "not_finite")]


def test_steps_that_are_not_heard_of_yet_are_not_in_it(run: Run):
    run.go(120)
    assert run.watch.describe_after(130) == {"step": 120, "state": run.watch._state.to_json()}


def test_where_that_checkpoint_could_not_be_used_nothing_is_known(run: Run, tmp_path: Path):
    run.go(120)
    known = run.watch.describe_after(120)
    other = Run(tmp_path / "other")
    other.watch.go_on_from(120, known)
    other.form(FIRST, base=100)
    other.open()
    assert other.state() == Run(tmp_path / "fresh").state()


def test_a_state_of_another_release_costs_nothing_but_itself(tmp_path: Path):
    record = RunRecord(tmp_path, FakeClock())
    monitor = RunMonitor("job-1", make_job(), record, FakeClock())
    monitor.go_on_from(100, {"step": 100, "state": {"unknown": 1}})
    (event,) = record.events_since(0)
    assert event["data"] == {"follower": "AnomalyWatch.go_on_from"}
    record.add_step(replace(STEP, loss=float("nan")))
    assert monitor.describe()["anomalies"] != []


def test_a_detector_that_crashes_costs_no_checkpoint(tmp_path: Path):
    record = RunRecord(tmp_path, FakeClock())
    monitor = RunMonitor("job-1", make_job(), record, FakeClock())
    assert monitor.describe_anomalies(0) is not None
    with mock.patch.object(AnomalyWatch, "describe_after", side_effect=ZeroDivisionError):
        assert monitor.describe_anomalies(0) is None
