"""What is left of what follows a run where nothing is to."""

import asyncio
import math
from dataclasses import replace
from pathlib import Path
from unittest import mock

import pytest

from tests.distributed.jobs import make_job
from tests.unit.coordination.fakes import FakeClock, guard_of
from tests.unit.coordination.noted_export import NotedExport
from tests.unit.coordination.test_paced_export import ForgetfulExport
from tests.unit.coordination.test_run_record import STEP
from trainflow.computation.reports import WorkDescribed
from trainflow.coordination import run_monitor
from trainflow.coordination.anomaly_history import BEGAN, OVER
from trainflow.coordination.hang_detection import Progress
from trainflow.coordination.keeper import Heartbeat
from trainflow.coordination.run_metrics import RunMetrics
from trainflow.coordination.run_monitor import RunMonitor
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.run_state import RunState
from trainflow.epochs import INITIAL_EPOCH, Phase, StoredState
from trainflow.monitoring import metrics
from trainflow.monitoring.anomalies.kinds import AnomalyKind
from trainflow.monitoring.usage import Usage


def _live(directory: Path, *, enabled: bool) -> RunMonitor:
    """Go through a run of one step, with a loss that is no number."""
    clock = FakeClock()
    record = RunRecord(directory, clock)
    job = make_job(monitoring={"enabled": enabled})
    monitor = RunMonitor("job-1", job, record, clock)
    monitor.tick(world_size=2, num_spares=1)
    monitor.on_checkpoint_skipped()
    record.add_event("submitted", "job-1")
    clock.now_s += 1.0
    record.add_event("launched", "two workers", workers=["slot0-1.0", "slot1-1.1"])
    clock.now_s += 1.0
    record.add_step(STEP)
    record.add_event("failure", "a collective failed on slot0-1.0: reset", epoch="1.2")
    monitor.end(RunState.SUCCEEDED)
    asyncio.run(monitor.close(RunState.SUCCEEDED))
    assert record.last_step == STEP.step
    return monitor


def test_what_is_not_monitored_leaves_its_record_and_nothing_else(tmp_path: Path):
    with mock.patch.object(run_monitor, "RayExport") as export:
        monitor = _live(tmp_path, enabled=False)
    export.assert_not_called()
    assert monitor.describe() == {"anomalies": [], "goodput": None}
    written = {path.name for path in tmp_path.iterdir()}
    assert written == {"events.jsonl", "metrics.jsonl", "workers.jsonl"}
    events = RunRecord(tmp_path, FakeClock()).events_since(0)
    assert [event["kind"] for event in events] == ["submitted", "launched", "failure"]


def active(export: NotedExport) -> set[str]:
    """Return the kinds of anomalies that go on, by what is shown."""
    return {k.value for k in AnomalyKind if export.value(metrics.ANOMALY_ACTIVE, kind=k.value)}


def look(monitor: RunMonitor, clock: FakeClock, export: NotedExport) -> set[str]:
    """Let it look at what has changed; returns what is active then."""
    clock.now_s += 1.0
    monitor.tick(world_size=2, num_spares=0)
    return active(export)


def test_the_newest_checkpoint_is_shown_however_much_was_recorded_since(tmp_path: Path):
    clock, export = FakeClock(), NotedExport()
    record = RunRecord(tmp_path, clock)
    made_at_s = clock.unix_s()
    record.add_event("checkpoint", "of step 4", step=4, num_bytes_written=9)
    for number in range(1100):
        record.add_event("evaluated", "", name="loss", step=number, value=1.0)
    clock.now_s += 60.0
    with mock.patch.object(run_monitor, "RayExport", return_value=export):
        monitor = RunMonitor("job-1", make_job(), RunRecord(tmp_path, clock), clock)
    monitor.tick(2, 0, StoredState("/store", 4))
    assert export.value(metrics.CHECKPOINT_STEP) == 4
    assert export.value(metrics.CHECKPOINT_AGE) == clock.unix_s() - made_at_s == 60.0


@pytest.mark.parametrize("newest", [None, StoredState("/elsewhere", 5)])
def test_of_another_runs_checkpoint_and_of_none_nothing_is_shown(
    tmp_path: Path, newest: StoredState | None
):
    clock, export = FakeClock(), NotedExport()
    record = RunRecord(tmp_path, clock)
    with mock.patch.object(run_monitor, "RayExport", return_value=export):
        monitor = RunMonitor("job-1", make_job(), record, clock)
    record.add_event("checkpoint", "of step 4", step=4, num_bytes_written=9)
    monitor.tick(2, 0, newest)
    assert export.value(metrics.CHECKPOINT_STEP) is None


def _beat() -> Heartbeat:
    """A node with one worker that tells what it takes, and one that doesn't yet."""
    progress = {
        f"slot{slot}-1.{slot}": Progress(7, 3, INITIAL_EPOCH, Phase.COMPUTE, 0.1, 0.0, usage)
        for slot, usage in enumerate((Usage(900), None))
    }
    return Heartbeat("node-1", progress, knows_peers=True, held=None)


def test_what_workers_take_is_shown_with_the_next_look(tmp_path: Path):
    with mock.patch.object(run_monitor, "RayExport") as export:
        record = RunRecord(tmp_path, FakeClock())
        monitor = RunMonitor("job-1", make_job(), record, FakeClock())
        monitor.hear(_beat())
        monitor.tick(world_size=2, num_spares=0)
    export.return_value.show.assert_any_call(metrics.WORKER_MEMORY, 900, statistic="min")


@pytest.mark.parametrize("wrong_by_s", [0.0, 3600.0, -3600.0])
def test_a_new_coordinator_knows_when_the_newest_step_was_committed(
    tmp_path: Path, wrong_by_s: float
):
    clock = FakeClock()
    report = replace(STEP, committed_at_s=clock.now_s + wrong_by_s)
    RunRecord(tmp_path, clock).add_step(report)
    clock.now_s += 30.0
    with mock.patch.object(run_monitor, "RayExport") as export:
        monitor = RunMonitor("job-1", make_job(), RunRecord(tmp_path, clock), clock)
        monitor.tick(world_size=2, num_spares=0)
    export.return_value.show.assert_any_call(metrics.STEP_AGE, 30.0)


def test_metrics_that_fail_are_in_no_checkpoints_way(tmp_path: Path):
    record = RunRecord(tmp_path, FakeClock())
    with mock.patch.object(run_monitor, "RayExport"):
        monitor = RunMonitor("job-1", make_job(), record, FakeClock())
        failing = mock.patch.object(RunMetrics, "on_checkpoint_skipped", side_effect=KeyError("x"))
        with failing:
            monitor.on_checkpoint_skipped()
    (event,) = record.events_since(0)
    assert event["data"] == {"follower": "RunMetrics.on_checkpoint_skipped"}


def test_metrics_that_have_failed_show_no_age_that_grows(tmp_path: Path):
    record = RunRecord(tmp_path, FakeClock())
    with mock.patch.object(run_monitor, "RayExport") as export:
        monitor = RunMonitor("job-1", make_job(), record, FakeClock())
        guard_of(record)
        export.return_value.add.side_effect = KeyError("unforeseen")
        record.add_event("epoch", "epoch 1.1")
        monitor.tick(world_size=2, num_spares=0)
    shown = [call.args[0] for call in export.return_value.show.call_args_list]
    assert metrics.STEP_AGE not in shown
    export.return_value.show.assert_any_call(metrics.DETECTOR_OFF, 1.0, detector="metrics")


def test_what_goes_on_is_shown_for_longer_than_ray_keeps_it(tmp_path: Path):
    clock, export = FakeClock(), ForgetfulExport()
    record = RunRecord(tmp_path, clock)
    with mock.patch.object(run_monitor, "RayExport", return_value=export):
        monitor = RunMonitor("job-1", make_job(), record, clock)
    record.add_step(STEP)
    record.add_event(BEGAN, "the loss drifts", anomaly="loss_drift")
    record.add_event("detector_off", "it failed", detector="hangs")
    export.forget()
    clock.now_s += 60.0
    monitor.tick(world_size=2, num_spares=0)
    assert active(export) == {"loss_drift"}
    assert export.value(metrics.DETECTOR_OFF, detector="hangs") == 1
    assert export.value(metrics.LOSS) == STEP.loss


def test_metrics_that_have_failed_show_nothing_that_stands_still(tmp_path: Path):
    clock, export = FakeClock(), ForgetfulExport()
    record = RunRecord(tmp_path, clock)
    with mock.patch.object(run_monitor, "RayExport", return_value=export):
        monitor = RunMonitor("job-1", make_job(), record, clock)
    guard_of(record)
    record.add_step(STEP)
    record.add_event("recovered", "without its times")
    export.forget()
    clock.now_s += 60.0
    monitor.tick(world_size=2, num_spares=0)
    assert export.value(metrics.LOSS) is None
    assert export.value(metrics.COORDINATOR_TIMESTAMP) is None
    assert export.value(metrics.DETECTOR_OFF, detector="metrics") == 1


@pytest.mark.parametrize("state", [state for state in RunState if state.is_terminal])
def test_the_end_is_counted_whether_or_not_metrics_have_failed(tmp_path: Path, state: RunState):
    export = NotedExport()
    clock = FakeClock()
    record = RunRecord(tmp_path, clock)
    with mock.patch.object(run_monitor, "RayExport", return_value=export):
        monitor = RunMonitor("job-1", make_job(), record, clock)
    record.add_event("recovered", "without its times")
    clock.now_s = 1060.0
    monitor.tell_over(state)
    assert export.value(metrics.RUNS_ENDED, state=state.value) == 1
    assert export.value(metrics.COORDINATOR_TIMESTAMP) == 1060.0, "also of one that never looked"


def test_an_anomaly_is_active_until_it_is_over(tmp_path: Path):
    clock, export = FakeClock(), NotedExport()
    record = RunRecord(tmp_path, clock)
    with mock.patch.object(run_monitor, "RayExport", return_value=export):
        monitor = RunMonitor("job-1", make_job(), record, clock)
    seen = [look(monitor, clock, export)]
    for kind in (BEGAN, OVER):
        record.add_event(kind, "the loss drifts", anomaly="loss_drift")
        seen.append(look(monitor, clock, export))
    assert seen == [set(), {"loss_drift"}, set()]


def test_an_anomaly_whose_end_nobody_would_see_is_active_no_more(tmp_path: Path):
    clock, export = FakeClock(), NotedExport()
    record = RunRecord(tmp_path, clock)
    with mock.patch.object(run_monitor, "RayExport", return_value=export):
        monitor = RunMonitor("job-1", make_job(), record, clock)
    guard_of(record)
    record.add_event(BEGAN, "the loss drifts", anomaly="loss_drift")
    seen = [look(monitor, clock, export)]
    for follower in ("GoodputWatch", "AnomalyWatch"):
        record.add_event("monitoring_failed", "it raised", follower=follower)
        seen.append(look(monitor, clock, export))
    assert seen == [{"loss_drift"}, {"loss_drift"}, set()]


@pytest.mark.parametrize("follower", ["SinkFeed", "GoodputWatch"])
def test_a_ledger_that_has_failed_is_not_told_as_if_it_knew_all(tmp_path: Path, follower: str):
    clock = FakeClock()
    record = RunRecord(tmp_path, clock)
    with mock.patch.object(run_monitor, "RayExport", return_value=NotedExport()):
        monitor = RunMonitor("job-1", make_job(), record, clock)
    guard_of(record)
    record.add_event("submitted", "job-1")
    record.add_event("launched", "a worker", workers=["slot0-1.0"])
    record.add_event("monitoring_failed", "it raised", follower=follower)
    clock.now_s += 60.0
    is_known = follower == "SinkFeed"
    assert (monitor.describe()["goodput"] is not None) == is_known
    monitor.end(RunState.SUCCEEDED)
    assert ("goodput" in {event["kind"] for event in record.events_since(0)}) == is_known


def test_a_new_coordinator_shows_an_anomaly_that_goes_on(tmp_path: Path):
    record = RunRecord(tmp_path, FakeClock())
    odd = replace(STEP, loss=math.nan)
    with mock.patch.object(run_monitor, "RayExport", return_value=NotedExport()):
        RunMonitor("job-1", make_job(), record, FakeClock())
        record.add_step(odd)
    for step in range(1100):
        record.add_event("checkpoint_skipped", "the store is slow", step=step)
    clock, export = FakeClock(), NotedExport()
    record = RunRecord(tmp_path, clock)
    with mock.patch.object(run_monitor, "RayExport", return_value=export):
        monitor = RunMonitor("job-1", make_job(), record, clock)
    assert look(monitor, clock, export) == {"not_finite"}
    assert export.value(metrics.ANOMALIES, kind="not_finite") is None, "told of already"
    record.add_step(replace(STEP, step=STEP.step + 1))
    assert look(monitor, clock, export) == set()


def test_where_nobody_looks_for_anomalies_none_goes_on(tmp_path: Path):
    record = RunRecord(tmp_path, FakeClock())
    record.add_event(BEGAN, "the loss drifts", anomaly="loss_drift")
    job = make_job(monitoring={"anomalies": {"enabled": False}})
    clock, export = FakeClock(), NotedExport()
    with mock.patch.object(run_monitor, "RayExport", return_value=export):
        monitor = RunMonitor("job-1", job, record, clock)
    assert look(monitor, clock, export) == set()


def test_of_what_is_not_monitored_it_is_not_heard(tmp_path: Path):
    record = RunRecord(tmp_path, FakeClock())
    job = make_job(monitoring={"enabled": False})
    RunMonitor("job-1", job, record, FakeClock()).hear(_beat())
    assert record.events_since(0) == []


def test_an_event_of_another_release_costs_metrics_and_nothing_else(tmp_path: Path):
    RunRecord(tmp_path, FakeClock()).add_event("work", "of another release", flops=1.0)
    monitor = _live(tmp_path, enabled=True)
    events = RunRecord(tmp_path, FakeClock()).events_since(0)
    failed = [event["data"] for event in events if event["kind"] == "monitoring_failed"]
    assert failed == [{"follower": "RunMetrics"}]
    assert monitor.describe()["goodput"] is not None


def test_how_much_is_computed_is_known_however_long_ago_it_was_told(tmp_path: Path):
    record = RunRecord(tmp_path, FakeClock())
    record.add_report(WorkDescribed(6000, 8000, 16, "cpu", None))
    for step in range(1100):
        record.add_event("checkpoint_skipped", "the store is slow", step=step)
    with mock.patch.object(run_monitor, "RayExport") as export:
        record = RunRecord(tmp_path, FakeClock())
        monitor = RunMonitor("job-1", make_job(), record, FakeClock())
        record.add_step(STEP)
        monitor.tick(world_size=2, num_spares=0)
    moved = {call.args[0].suffix for call in export.return_value.method_calls}
    assert "tokens_total" in moved


def test_what_is_monitored_tells_all_that_it_does(tmp_path: Path):
    with mock.patch.object(run_monitor, "RayExport") as export:
        monitor = _live(tmp_path, enabled=True)
    moved = {call.args[0].suffix for call in export.return_value.method_calls}
    assert {"world_size", "loss", "checkpoints_skipped_total", "goodput_ratio"} <= moved
    assert "failures_total" in moved, "of one that nothing has explained by the end"
    assert monitor.describe()["goodput"] is not None


@pytest.mark.parametrize("is_ended", [True, False])
def test_sinks_take_what_waits_also_where_the_coordinator_failed(tmp_path: Path, *, is_ended: bool):
    pytest.importorskip("tensorboard")
    sinks = [{"kind": "tensorboard", "folder": str(tmp_path / "curves")}]
    record = RunRecord(tmp_path, FakeClock())
    with mock.patch.object(run_monitor, "RayExport"):
        job = make_job(monitoring={"sinks": sinks})
        monitor = RunMonitor("job-1", job, record, FakeClock())
    record.add_step(STEP)
    if is_ended:
        monitor.end(RunState.SUCCEEDED)
    asyncio.run(monitor.close(RunState.FAILED))
    assert "sink_failed" not in {event["kind"] for event in record.events_since(0)}
    (curves,) = (tmp_path / "curves").rglob("events.out.tfevents*")
    assert b"train/loss" in curves.read_bytes()


def test_metrics_that_are_off_are_given_nothing_in_the_end(tmp_path: Path):
    clock = FakeClock()
    record = RunRecord(tmp_path, clock)
    with mock.patch.object(run_monitor, "RayExport") as export:
        monitor = RunMonitor("job-1", make_job(), record, clock)
        guard_of(record)
        with mock.patch.object(RunMetrics, "tick", side_effect=KeyError("unforeseen")):
            monitor.tick(world_size=2, num_spares=0)
        record.add_step(STEP)
        export.return_value.reset_mock()
        monitor.end(RunState.SUCCEEDED)
    export.return_value.observe.assert_not_called()
