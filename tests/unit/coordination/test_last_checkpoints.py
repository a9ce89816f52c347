"""The state is in storage before the last nodes go, not long before, and is brought seldom."""

import math
from typing import Any

import pytest

from trainflow.coordination.last_checkpoints import LastCheckpoints
from trainflow.epochs import EpochId


def live(left_s: float, takes_s: float, *, fails_at: tuple[int, ...] = ()) -> list[float]:
    """Return how much was left when each checkpoint was asked for; a step takes a second."""
    last, asked_at, made, num_asked = LastCheckpoints(), list[float](), 0, 0
    under_way: tuple[float, int] | None = None
    for now in range(int(left_s) + 20):
        if under_way is not None and now >= under_way[0]:
            made, under_way = max(made, under_way[1]), None
        if last.take_due(left_s - now, float(now), last_step=now + 10, stored_step=made):
            asked_at.append(left_s - now)
            if num_asked not in fails_at:
                under_way = (now + takes_s, now + 11)
            num_asked += 1
    return asked_at


def test_one_comes_at_once_and_another_each_time_half_of_what_was_left_has_passed():
    assert live(120.0, takes_s=1.0) == [120.0, 60.0, 30.0, 15.0, 7.0, 3.0]


def test_none_is_asked_for_that_would_come_too_late():
    assert live(120.0, takes_s=10.0) == [120.0, 60.0, 30.0, 15.0]


def test_one_is_asked_for_whatever_the_deadline():
    assert live(0.0, takes_s=1.0) == [0.0]


def test_one_that_is_not_made_is_asked_for_again():
    assert live(120.0, takes_s=1.0, fails_at=(0, 1)) == [120.0, 60.0, 30.0, 15.0, 7.0, 3.0]


def test_without_a_deadline_one_is_enough_until_there_is_one():
    last = LastCheckpoints()
    due = [last.take_due(math.inf, float(now), 10 + now, stored_step=now) for now in range(5)]
    assert due == [True, *[False] * 4]
    assert last.take_due(60.0, 10.0, 20, stored_step=5)


@pytest.mark.parametrize(("stored_step", "expected"), [(10, False), (9, True), (0, True)])
def test_what_is_in_storage_is_not_brought_there_again(stored_step: int, *, expected: bool):
    assert LastCheckpoints().take_due(60.0, 0.0, 10, stored_step) is expected


def test_one_whose_epoch_ended_or_that_failed_before_it_was_made_is_asked_for_again_at_once():
    def ask(last: LastCheckpoints, at_s: float, **what: Any) -> bool:
        steps: dict[str, Any] = {"last_step": int(at_s) + 10, "stored_step": 0}
        return last.take_due(120.0 - at_s, at_s, **steps | what)

    lost, failed, made = LastCheckpoints(), LastCheckpoints(), LastCheckpoints()
    for each in (lost, failed, made):
        assert ask(each, 0.0, epoch=EpochId(1, 1))
        assert not ask(each, 1.0, epoch=EpochId(1, 1))
    assert ask(lost, 2.0, epoch=EpochId(1, 2))
    assert not ask(lost, 3.0, epoch=EpochId(1, 2))
    assert not ask(failed, 2.0, epoch=EpochId(1, 1), failed_step=10), "that was the one before"
    assert ask(failed, 3.0, epoch=EpochId(1, 1), failed_step=11)
    assert not ask(made, 2.0, epoch=EpochId(1, 2), stored_step=11)


def test_without_a_deadline_one_that_failed_is_asked_for_again_too():
    last = LastCheckpoints()
    assert last.take_due(math.inf, 0.0, 10, 0, epoch=EpochId(1, 1))
    assert last.take_due(math.inf, 9.0, 30, 0, epoch=EpochId(1, 1), failed_step=11)
