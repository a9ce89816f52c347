"""Limits follow from measured steps, have floors, and leave room for one another."""

import pytest

from trainflow.coordination.timeout_budget import (
    HEARTBEAT_S,
    START_LIMIT_S,
    collective_timeout_s,
    derive_budget,
)


def hang_s(step_times_s: list[float], configured: float | None = None) -> float:
    return derive_budget(step_times_s, hang_s=configured, lease_s=10.0).hang_s


@pytest.mark.parametrize(
    ("step_times_s", "expected_s"),
    [
        ([0.1] * 4, 120.0),
        ([0.1] * 5, 10.0),
        ([3.0, *[0.1] * 9], 30.0),
        ([1.5] * 100, 15.0),
        ([*[60.0] * 5, *[2.0] * 495], 20.0),
        ([*[60.0] * 6, *[2.0] * 494], 600.0),
    ],
    ids=["too few", "the floor", "the slowest of few", "steady", "1% slow", "more than 1% slow"],
)
def test_ten_steps_as_99_of_100_are(step_times_s: list[float], expected_s: float):
    assert hang_s(step_times_s) == expected_s
    assert hang_s(step_times_s, 300.0) == 300.0


@pytest.mark.parametrize("configured", [None, 2.0, 300.0, 7200.0])
@pytest.mark.parametrize("step_s", [0.01, 5.0, 900.0])
def test_who_judges_later_leaves_room_for_who_judges_before(configured: float, step_s: float):
    budget = derive_budget([step_s] * 50, hang_s=configured, lease_s=10.0)
    assert budget.lease_s > 2 * HEARTBEAT_S
    assert budget.hang_s <= budget.start_s
    assert budget.start_s >= START_LIMIT_S
    assert 2 * budget.hang_s <= budget.collective_s


def test_a_collective_is_given_up_by_the_limit_that_the_job_sets():
    assert collective_timeout_s(None) == 1800.0
    assert collective_timeout_s(3600.0) == 7200.0


def test_the_numbers_are_shown():
    text = str(derive_budget([1.5] * 100, hang_s=None, lease_s=10.0))
    assert "killed after 15.0 s (ten steps: 99% of 100 steps took at most 1.50 s)" in text


def test_a_limit_below_the_step_is_trouble():
    assert not derive_budget([1.5] * 100, hang_s=1.6, lease_s=10.0).trouble
    tight = derive_budget([1.5] * 100, hang_s=1.4, lease_s=10.0).trouble
    assert tight.startswith("failures.hang_timeout_s: got 1.4, while 99% of 100 steps")
