"""Limits follow from measured steps, have floors, and leave room for one another."""

import pytest

from trainflow.coordination.timeout_budget import (
    HEARTBEAT_S,
    START_LIMIT_S,
    Hindsight,
    collective_timeout_s,
    derive_budget,
    stall_limit_s,
    start_limit,
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
        ([200.0] * 9, 900.0),
    ],
    ids=[
        "too few",
        "the floor",
        "the slowest of few",
        "steady",
        "1% slow",
        "more than 1% slow",
        "a bound",
    ],
)
def test_ten_steps_as_99_of_100_are(step_times_s: list[float], expected_s: float):
    assert hang_s(step_times_s) == expected_s
    assert hang_s(step_times_s, 300.0) == 300.0


@pytest.mark.parametrize("configured", [None, 2.0, 300.0, 7200.0])
@pytest.mark.parametrize("step_s", [0.01, 5.0, 900.0])
def test_who_judges_later_leaves_room_for_who_judges_before(configured: float, step_s: float):
    budget = derive_budget([step_s] * 50, hang_s=configured, lease_s=10.0)
    assert budget.lease_s > 2 * HEARTBEAT_S
    assert budget.hang_s <= budget.first_step_s
    assert budget.hang_s <= budget.start_s
    assert budget.start_s >= START_LIMIT_S
    assert 2 * budget.hang_s <= budget.collective_s
    assert 2 * budget.first_step_s <= budget.collective_s
    assert budget.collective_s == collective_timeout_s(configured), "as workers have it"


def test_a_collective_is_given_up_by_the_limit_that_the_job_sets():
    assert collective_timeout_s(None) == 1800.0
    assert collective_timeout_s(3600.0) == 7200.0


def test_the_numbers_are_shown():
    text = str(derive_budget([1.5] * 100, hang_s=None, lease_s=10.0))
    assert "killed after 15.0 s (ten steps: 99% of 100 steps took at most 1.50 s)" in text


MEASURED = "99% of 9 steps took at most 0.10 s"
FLOOR = f"the least that auto allows, ten steps being less: {MEASURED}"


@pytest.mark.parametrize(
    ("hang_s", "shown", "bases"),
    [
        (None, Hindsight(), (FLOOR, f"that of an epoch's first step, twice: {FLOOR}", FLOOR)),
        (
            None,
            Hindsight(knows_world=False),
            (FLOOR, "that of an epoch's first step in a world of another size", FLOOR),
        ),
        (3.0, Hindsight(), ("as failures.hang_timeout_s has it",) * 3),
        (
            3.0,
            Hindsight(num_hung_epochs=2),
            (
                "as failures.hang_timeout_s has it",
                "as failures.hang_timeout_s has it",
                "as failures.hang_timeout_s has it, doubled for 2 epochs with a hang or a deadlock "
                "since the last commit",
            ),
        ),
    ],
)
def test_each_limit_says_what_it_comes_from(
    hang_s: float | None, shown: Hindsight, bases: tuple[str, str, str]
):
    budget = derive_budget([0.1] * 9, hang_s=hang_s, lease_s=10.0, hindsight=shown)
    assert (budget.basis, budget.first_step_basis, budget.wait_basis) == bases
    assert budget.start_basis == "that of a start"


def test_a_limit_of_starts_says_what_it_comes_from():
    assert start_limit(1).basis == "that of a start, doubled for one of the same place that hung"
    long = derive_budget([30.0] * 9, hang_s=None, lease_s=10.0)
    assert (long.start_s, long.start_basis) == (300.0, long.basis)


def test_a_limit_below_the_step_is_trouble():
    assert not derive_budget([1.5] * 100, hang_s=1.6, lease_s=10.0).trouble
    tight = derive_budget([1.5] * 100, hang_s=1.4, lease_s=10.0).trouble
    assert tight.startswith("failures.hang_timeout_s: got 1.4, while 99% of 100 steps")


def test_a_step_that_is_longer_than_what_may_be_derived_is_trouble():
    assert not derive_budget([899.0] * 100, hang_s=None, lease_s=10.0).trouble
    budget = derive_budget([901.0] * 100, hang_s=None, lease_s=10.0)
    assert budget.trouble == (
        "failures.hang_timeout_s: got auto, which is 900 s at most, while 99% of 100 steps took at "
        "most 901.00 s, expected more than a step: set it"
    )
    assert "a collective gives up after 1800 s" in str(budget)
    assert budget.basis.startswith("the most that auto allows")


@pytest.mark.parametrize(
    ("num_hung_epochs", "steps_s", "expected_s"),
    [(0, 0.1, 10.0), (1, 0.1, 20.0), (3, 0.1, 80.0), (99, 0.1, 900.0), (1, 100.0, 900.0)],
    ids=["none", "one", "three", "a bound", "long steps"],
)
def test_a_limit_that_everybody_fails_is_doubled(
    num_hung_epochs: int, steps_s: float, expected_s: float
):
    shown = Hindsight(num_hung_epochs=num_hung_epochs)
    budget = derive_budget([steps_s] * 9, hang_s=None, lease_s=10.0, hindsight=shown)
    assert budget.hang_s == expected_s
    assert ("doubled for" in budget.basis) is (num_hung_epochs > 0)
    own = derive_budget([steps_s] * 9, hang_s=3.0, lease_s=10.0, hindsight=shown)
    assert own.hang_s == own.first_step_s == 3.0, "what the job asks for holds as it is"


def test_a_step_that_never_commits_is_given_the_time_it_takes_at_last():
    step_s, num_epochs = 600.0, 0
    while True:
        shown = Hindsight(num_hung_epochs=num_epochs)
        budget = derive_budget([0.1] * 500, hang_s=None, lease_s=10.0, hindsight=shown)
        if budget.hang_s > step_s:
            break
        num_epochs += 1
    assert num_epochs == 6


@pytest.mark.parametrize(
    ("num_hung_epochs", "steps_s", "expected_s"),
    [
        (0, [0.1] * 9, 3.0),
        (1, [0.1] * 9, 6.0),
        (99, [0.1] * 9, 900.0),
        (0, [0.1] * 9 + [5.7], 11.4),
        (1, [0.1] * 9 + [2.0], 6.0),
        (0, [5.7] + [0.1] * 10, 3.0),
        (0, [], 3.0),
    ],
    ids=["at first", "once more", "a bound", "slow by now", "both", "fast again", "no step yet"],
)
def test_all_may_wait_for_one_another_for_longer_where_nobody_came_to_an_end(
    num_hung_epochs: int, steps_s: list[float], expected_s: float
):
    shown = Hindsight(num_hung_epochs=num_hung_epochs)
    last_s = steps_s[-10:]
    budget = derive_budget(steps_s, last_s, hang_s=3.0, lease_s=10.0, hindsight=shown)
    assert budget.wait_s == pytest.approx(expected_s)
    derived = derive_budget(steps_s, last_s, hang_s=None, lease_s=10.0, hindsight=shown)
    assert derived.wait_s == derived.hang_s


def test_first_steps_have_what_first_steps_have_taken():
    budget = derive_budget([0.1] * 99, [0.1] * 10, [60.0, 3.0], hang_s=None, lease_s=10.0)
    assert (budget.hang_s, budget.first_step_s) == (10.0, 120.0)
    assert "two first steps of epochs of 60.00 s" in budget.first_step_basis
    long = derive_budget([0.1] * 99, [0.1] * 10, [600.0], hang_s=None, lease_s=10.0)
    assert (long.hang_s, long.first_step_s) == (10.0, 900.0)
    own = derive_budget([0.1] * 99, [0.1] * 10, [60.0], hang_s=3.0, lease_s=10.0)
    assert own.first_step_s == 3.0


def test_what_has_just_become_slow_needs_no_hundredth_of_all_steps():
    budget = derive_budget([0.1] * 500, [0.1] * 9 + [15.0], hang_s=None, lease_s=10.0)
    assert (budget.hang_s, budget.first_step_s) == (30.0, 60.0)
    assert "two steps of 15.00 s" in budget.basis
    assert derive_budget([0.1] * 500, [700.0], hang_s=None, lease_s=10.0).hang_s == 900.0


def test_a_limit_of_the_job_s_that_no_step_ends_within_is_trouble_before_any_is_known():
    troubles = [
        derive_budget([], hang_s=3.0, lease_s=10.0, hindsight=Hindsight(number)).trouble
        for number in (2, 3)
    ]
    assert troubles[0] == ""
    assert "got 3, which was too little in 3 epochs in a row" in troubles[1]


@pytest.mark.parametrize(
    ("steps_s", "knows_world", "expected_s"),
    [
        ([0.1] * 9, True, 20.0),
        ([0.1] * 9, False, 120.0),
        ([20.0] * 9, False, 400.0),
        ([80.0] * 9, True, 900.0),
        ([100.0] * 9, True, 900.0),
        ([0.1], False, 120.0),
    ],
    ids=["same size", "another", "long steps", "a bound", "longer steps", "too few known"],
)
def test_the_first_step_of_an_epoch_warms_up(
    steps_s: list[float], expected_s: float, *, knows_world: bool
):
    shown = Hindsight(knows_world=knows_world)
    budget = derive_budget(steps_s, hang_s=None, lease_s=10.0, hindsight=shown)
    assert budget.first_step_s == expected_s


@pytest.mark.parametrize(("num_starts", "expected_s"), [(0, 120.0), (2, 480.0), (99, 3600.0)])
def test_a_start_that_was_killed_has_twice_as_long_the_next_time(
    num_starts: int, expected_s: float
):
    assert start_limit(num_starts).value_s == expected_s


@pytest.mark.parametrize(
    ("hang_s", "expected_s"), [(3.0, 24.0), (10.0, 80.0), (120.0, 900.0), (2000.0, 2000.0)]
)
def test_data_that_comes_to_nobody_is_waited_for_much_longer_and_not_for_ever(
    hang_s: float, expected_s: float
):
    assert stall_limit_s(hang_s) == expected_s
