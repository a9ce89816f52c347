"""How points become coarser: nothing is lost or counted twice, and pieces come to the same."""

import itertools
import math

import hypothesis.strategies as st
import pytest
from hypothesis import given

from trainflow.service.history.downsampling import (
    KEPT_SINGLY,
    Merge,
    Point,
    Tally,
    choose_width,
    merge,
    merge_by_grid,
    plan_merges,
)

values = st.floats(-1e6, 1e6) | st.sampled_from([math.nan, math.inf, -math.inf])


def single(step: int, **metrics: float) -> Point:
    tallies = {name: Tally.of(value) for name, value in metrics.items()}
    return Point(step, step, 1, 1, step, step, float(step), tallies)


@st.composite
def histories(draw: st.DrawFn) -> list[Point]:
    """Return steps in order, some of which were not recorded."""
    steps = draw(st.lists(st.integers(1, 400), unique=True, min_size=1, max_size=80))
    return [single(step, loss=draw(values)) for step in sorted(steps)]


def thin(points: list[Point], max_points: int) -> list[Point]:
    """Show points as at most so many, as the series of a job does."""
    width = choose_width([point.last_step for point in points], max_points)
    return merge_by_grid(points, width)


def downsample(points: list[Point], farthest_step: int) -> list[Point]:
    """Carry out what is due, as the import does."""
    newest_step = points[-1].last_step if points else 0
    for due in plan_merges(farthest_step, newest_step):
        narrow = [p for p in points if p.width == due.narrow and p.last_step <= due.up_to_step]
        others = [point for point in points if point not in narrow]
        points = sorted(others + merge_by_grid(narrow, due.wide), key=lambda point: point.last_step)
    return points


@pytest.fixture(autouse=True)
def coarse_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainflow.service.history.downsampling.KEPT_SINGLY", 20)


def test_the_rule_is_as_it_is_documented(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.undo()
    assert KEPT_SINGLY == 10_000
    assert list(plan_merges(9_999, 9_999)) == []
    assert list(plan_merges(10_010, 10_010)) == [Merge(1, 10, 10)]
    assert list(plan_merges(10_019, 10_019)) == [Merge(1, 10, 10)]
    assert list(plan_merges(100_100, 100_100)) == [Merge(1, 10, 90_100), Merge(10, 100, 100)]
    assert list(plan_merges(2_000_000, 2_000_000))[-1] == Merge(100, 1000, 1_000_000)


def test_what_may_still_come_is_waited_for():
    assert list(plan_merges(1000, 95)) == [Merge(1, 10, 90), Merge(10, 100, 0)][:1]


@given(histories(), st.data())
def test_pieces_come_to_the_same_as_the_whole(points: list[Point], data: st.DataObject):
    cut = data.draw(st.integers(0, len(points)))
    begun = downsample(points[:cut], points[cut - 1].last_step) if cut else []
    farthest = points[-1].last_step
    assert downsample(begun + points[cut:], farthest) == downsample(points, farthest)


@given(histories())
def test_each_step_is_in_one_point(points: list[Point]):
    coarse = downsample(points, points[-1].last_step)
    assert sum(point.num_steps for point in coarse) == len(points)
    for before, after in itertools.pairwise(coarse):
        assert before.last_step < after.first_step
        assert before.width >= after.width
    of_many = [point for point in coarse if point.width > 1]
    assert all((p.first_step - 1) // p.width == (p.last_step - 1) // p.width for p in of_many)


@given(histories())
def test_the_newest_steps_are_single_and_the_rest_are_few(points: list[Point]):
    farthest = points[-1].last_step
    coarse = downsample(points, farthest)
    assert all(p.width == 1 for p in coarse if p.last_step > farthest - 20)
    assert len(coarse) <= 20 + 10 + 2 * 20


@given(st.lists(values, min_size=1, max_size=30))
def test_a_merged_point_tells_of_all_its_values(losses: list[float]):
    merged = merge([single(step, loss=loss) for step, loss in enumerate(losses, 1)], 100)
    finite = [loss for loss in losses if math.isfinite(loss)]
    tally = merged.metrics["loss"]
    assert (tally.num_values, tally.num_non_finite) == (len(finite), len(losses) - len(finite))
    assert tally.minimum == min(finite, default=math.inf)
    assert tally.maximum == max(finite, default=-math.inf)
    assert tally.total == pytest.approx(sum(finite), abs=1e-3)
    assert (merged.first_epoch, merged.last_epoch) == (1, len(losses))
    assert merged.committed_at_s == len(losses)


def test_a_metric_that_some_steps_lack_is_counted_where_it_is():
    merged = merge([single(1, loss=1.0), single(2, loss=2.0, extra=5.0)], 10)
    assert merged.metrics["extra"] == Tally.of(5.0)


@given(histories(), st.integers(1, 50))
def test_thinned_points_are_few_enough_and_lose_nothing(points: list[Point], max_points: int):
    shown = thin(points, max_points)
    assert len(shown) <= max_points
    assert sum(point.num_steps for point in shown) == len(points)
    assert (shown[0].first_step, shown[-1].last_step) == (
        points[0].first_step,
        points[-1].last_step,
    )


@given(histories(), st.integers(1, 50))
def test_cells_are_no_wider_than_they_have_to_be(points: list[Point], max_points: int):
    width = choose_width([point.last_step for point in points], max_points)
    narrower = [w for w in (1, 2, 5, 10, 20, 50, 100, 200, 500) if w < width]
    assert all(len(merge_by_grid(points, each)) > max_points for each in narrower)


def test_enough_room_changes_nothing():
    points = [single(step) for step in range(1, 11)]
    assert thin(points, 10) == points
    assert [point.last_step for point in thin(points, 9)] == [2, 4, 6, 8, 10]


def test_cells_lie_alike_whichever_step_is_the_first():
    points = [single(step) for step in range(1, 101)]
    whole = {point.last_step for point in thin(points, 20)}
    rest = {point.last_step for point in thin(points[37:], 13)}
    assert rest <= whole
