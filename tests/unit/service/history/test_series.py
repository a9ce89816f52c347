"""What is answered of metrics, events and checkpoints."""

import math
from dataclasses import replace
from typing import Any
from weakref import finalize

import pytest

from tests.unit.coordination.test_run_record import STEP
from tests.unit.service.history.records import JOB_ID, Home
from trainflow.epochs import EpochId
from trainflow.errors import ConfigError, JobNotFoundError
from trainflow.service.history import point_rows, series
from trainflow.service.history.downsampling import Point
from trainflow.service.history.events import MAX_EVENTS
from trainflow.service.history.history import History
from trainflow.service.history.records import Aggregate, CheckpointState
from trainflow.service.history.series import MAX_POINTS


def test_a_series_goes_on_after_a_step_with_the_metrics_that_are_wanted(
    history: History, home: Home
):
    home.run().event("submitted").steps(1, 2, 3)
    home.take(history)
    points = history.series.since(JOB_ID, 1, metrics=["loss", "odd_norm"])
    assert [(point.last_step, set(point.values)) for point in points] == [
        (2, {"loss"}),
        (3, {"loss"}),
    ]
    assert history.series.since(JOB_ID, 3) == ()


def test_metrics_that_a_job_lacks_are_refused_where_it_has_points(history: History, home: Home):
    run = home.run().event("submitted")
    home.take(history)
    assert history.series.since(JOB_ID, metrics=["scalars.rare"]) == ()
    run.record.add_step(replace(STEP, step=1, epoch=EpochId(1, 1), scalars={"rare": 1.0}))
    run.steps(2, 3)
    home.take(history)
    assert len(history.series.since(JOB_ID, metrics=["scalars.rare"])) == 3
    assert len(history.series.since(JOB_ID, 1, metrics=["scalars.rare"])) == 2
    assert history.series.since(JOB_ID, 3, metrics=["nonsense"]) == ()
    for step in (0, 2):
        with pytest.raises(ConfigError) as refused:
            history.series.since(JOB_ID, step, metrics=["loss", "nonsense"])
        assert str(refused.value).startswith("name: got 'nonsense', expected what the job has: ")
        assert "loss, " in str(refused.value)
        assert ", scalars.rare" in str(refused.value)


def test_spares_are_told_of_the_steps_that_have_them_recorded(history: History, home: Home):
    run = home.run().event("submitted").steps(1)
    for step, spares in ((2, 2), (3, 1)):
        report = replace(STEP, step=step, epoch=EpochId(1, 1))
        run.record.add_step(report, lambda spares=spares: spares)
    home.take(history)
    points = history.series.since(JOB_ID, metrics=["world_size", "num_spares"])
    told = [point.values["num_spares"].mean for point in points if len(point.values) > 1]
    assert (len(points), told) == (3, [2.0, 1.0])


def test_a_series_that_is_too_long_is_told_in_fewer_points(history: History, home: Home):
    home.run().event("submitted").steps(*range(1, 101))
    home.take(history)
    points = history.series.since(JOB_ID, max_points=10)
    assert [(point.first_step, point.last_step) for point in points] == [
        (first, first + 9) for first in range(1, 101, 10)
    ]
    loss = points[0].values["loss"]
    assert loss == Aggregate(pytest.approx(5.5 / 8), 1 / 8, 10 / 8, 10, 0)


def test_of_a_long_series_few_points_are_in_memory_at_once(
    history: History, home: Home, monkeypatch: pytest.MonkeyPatch
):
    most = num_held = 0

    def let_go() -> None:
        nonlocal num_held
        num_held -= 1

    def to_point(*given: Any) -> Point:
        nonlocal most, num_held
        point = point_rows.to_point(*given)
        num_held += 1
        most = max(most, num_held)
        finalize(point, let_go)
        return point

    home.run().event("submitted").steps(*range(1, 1001))
    home.take(history)
    monkeypatch.setattr(series, "to_point", to_point)
    points = history.series.since(JOB_ID, max_points=10)
    assert (len(points), sum(point.num_steps for point in points)) == (10, 1000)
    assert most <= 5
    assert num_held == 0


def test_a_loss_that_is_no_number_is_told(history: History, home: Home):
    run = home.run().event("submitted").steps(1).steps(2, loss=math.nan).steps(3, loss=math.inf)
    run.steps(*range(4, 11))
    home.take(history)
    told = [point.values["loss"] for point in history.series.since(JOB_ID)]
    assert told[1] == told[2] == Aggregate(None, None, None, 0, 1)
    (merged,) = history.series.since(JOB_ID, max_points=1)
    assert (merged.values["loss"].num_values, merged.values["loss"].num_non_finite) == (8, 2)


@pytest.mark.parametrize("num_points", [0, MAX_POINTS + 1])
def test_a_wrong_number_of_points_is_refused(history: History, num_points: int):
    with pytest.raises(ConfigError, match="max_points: got"):
        history.series.since(JOB_ID, max_points=num_points)


@pytest.mark.parametrize("number", [-1, 2**63])
def test_a_wrong_beginning_is_refused(history: History, number: int):
    with pytest.raises(ConfigError, match="expected 0 or more"):
        history.series.since(JOB_ID, number)
    with pytest.raises(ConfigError, match="expected 0 or more"):
        history.events.after(JOB_ID, number)


def test_events_are_told_after_a_number_and_up_to_a_limit(history: History, home: Home):
    run = home.run()
    for kind in "abcde":
        run.event(kind, f"text {kind}", value=math.nan)
    home.take(history)
    events = history.events.after(JOB_ID, 1, limit=2)
    assert [(event.number, event.kind, event.text) for event in events] == [
        (2, "b", "text b"),
        (3, "c", "text c"),
    ]
    assert events[0].data == {"value": "NaN"}
    assert history.events.after(JOB_ID, 5) == ()
    for limit in (0, MAX_EVENTS + 1):
        with pytest.raises(ConfigError, match="limit: got"):
            history.events.after(JOB_ID, limit=limit)


def test_events_of_some_kinds_are_told_alone(history: History, home: Home):
    run = home.run()
    for kind in "abcab":
        run.event(kind)
    home.take(history)
    found = history.events.of_kinds(JOB_ID, {"a", "c"})
    assert [(event.number, event.kind) for event in found] == [(1, "a"), (3, "c"), (4, "a")]
    assert history.events.of_kinds(JOB_ID, {"d"}) == ()
    with pytest.raises(JobNotFoundError):
        history.events.of_kinds("absent", {"a"})


def test_checkpoints_are_told_with_what_became_of_them(history: History, home: Home):
    run = home.run().event("submitted")
    for step in (10, 20, 30, 40):
        run.event("checkpoint", step=step, num_bytes=step * 10, num_bytes_written=step)
    run.event("drill", step=30, restore_s=0.5)
    run.event("checkpoints_removed", steps=[10])
    run.event("checkpoint_unusable", step=20)
    run.event("checkpoint_quarantined", step=40)
    run.event("checkpoint_whole", step=40)
    home.take(history)
    found = history.checkpoints.of(JOB_ID)
    assert [(each.step, each.state) for each in found] == [
        (40, CheckpointState.KEPT),
        (30, CheckpointState.KEPT),
        (20, CheckpointState.UNUSABLE),
        (10, CheckpointState.REMOVED),
    ]
    assert (found[0].num_bytes, found[0].num_bytes_written, found[0].made_at_s) == (400, 40, 1005.0)
    assert (found[1].verified_at_s, found[0].verified_at_s) == (1006.0, None)


def test_a_checkpoint_that_is_made_again_is_kept_again(history: History, home: Home):
    run = home.run().event("submitted")
    run.event("checkpoint", step=10).event("checkpoint_quarantined", step=10)
    run.event("checkpoint", step=10, num_bytes=7)
    home.take(history)
    (made,) = history.checkpoints.of(JOB_ID)
    assert (made.state, made.num_bytes) == (CheckpointState.KEPT, 7)
