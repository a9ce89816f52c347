"""A loss that rises for good, or falls no more, is told of by blocks of steps."""

import random
from collections.abc import Callable, Iterable

import pytest

from trainflow.monitoring.anomalies.levels import (
    ACCEPTED_AFTER,
    BEGIN_AFTER,
    BLOCK,
    END_AFTER,
    FROZEN_AFTER,
    JUDGED_FROM,
    Level,
    follow,
)

RATIO = 0.05
PATIENCE = 1000


class Run:
    """Losses whose smooth course a test makes up, with a noise of a hundredth."""

    def __init__(self) -> None:
        self.level = Level()
        self._rng = random.Random(5)

    def go(self, losses: Iterable[float], noise: float = 0.01) -> list[Level]:
        followed: list[Level] = []
        for loss in losses:
            value = loss * (1 + self._rng.gauss(0.0, noise))
            self.level = follow(self.level, value, RATIO, PATIENCE)
            followed.append(self.level)
        return followed


def falling(begin: int, end: int, exponent: float = 0.2) -> list[float]:
    return [5.0 * (step + 10) ** -exponent for step in range(begin, end)]


def first(levels: list[Level], holds: Callable[[Level], object]) -> int | None:
    return next((number for number, level in enumerate(levels) if holds(level)), None)


def test_a_loss_that_falls_is_not_told_of():
    levels = Run().go(falling(0, 6000))
    assert {(each.rise, each.is_stalled) for each in levels} == {("", False)}


def test_a_rise_within_a_block_is_told_of_two_blocks_later():
    run = Run()
    run.go(falling(0, 30 * BLOCK))
    levels = run.go([run.level.median_value * 1.1] * 10 * BLOCK)
    assert first(levels, lambda level: level.rise == "sudden") == BEGIN_AFTER * BLOCK - 1
    assert run.level.rise_ratio == pytest.approx(0.1, abs=0.03)


def test_a_smaller_rise_than_is_asked_for_is_not():
    run = Run()
    run.go(falling(0, 30 * BLOCK))
    levels = run.go([run.level.median_value * 1.03] * 20 * BLOCK, noise=0.001)
    assert {each.rise for each in levels} == {""}


def test_a_slow_rise_is_a_drift():
    run = Run()
    run.go(falling(0, 30 * BLOCK))
    level = run.level.median_value
    levels = run.go(level * (1 + 0.2 * n / (30 * BLOCK)) for n in range(30 * BLOCK))
    assert {each.rise for each in levels} == {"", "slow"}


def test_it_is_over_when_the_loss_has_come_down_again():
    run = Run()
    run.go(falling(0, 30 * BLOCK))
    low = run.level.median_value
    run.go([low * 1.2] * 5 * BLOCK)
    assert run.level.rise
    levels = run.go([low] * 5 * BLOCK)
    assert first(levels, lambda level: not level.rise) == END_AFTER * BLOCK - 1


def test_what_lasts_is_accepted_and_is_the_lowest_from_there_on():
    run = Run()
    run.go(falling(0, 30 * BLOCK))
    low = run.level.median_value
    levels = run.go([low * 1.2] * (ACCEPTED_AFTER + 10) * BLOCK)
    assert [each.rise for each in levels][-1] == ""
    assert run.level.lowest_value == pytest.approx(1.2 * low, rel=0.03)
    levels = run.go([low * 1.5] * 5 * BLOCK)
    assert levels[-1].rise == "sudden", "it judges again"


def test_nothing_is_judged_before_enough_blocks_are_known():
    run = Run()
    levels = run.go([2.0] * BLOCK + [4.0] * (JUDGED_FROM - 2) * BLOCK)
    assert {each.rise for each in levels} == {""}


def test_a_loss_that_falls_no_more_is_stalled_after_its_patience():
    run = Run()
    run.go(falling(0, 500))
    levels = run.go([run.level.median_value] * 2 * PATIENCE)
    at = first(levels, lambda level: level.is_stalled)
    assert at is not None
    assert PATIENCE - 10 * BLOCK <= at <= 2 * PATIENCE, "a block by luck lower begins it anew"


def test_a_long_run_has_as_much_patience_as_half_of_its_steps():
    run = Run()
    run.go(falling(0, 4000))
    levels = run.go([run.level.median_value] * 6000)
    at = first(levels, lambda level: level.is_stalled)
    assert at is not None
    assert 3000 <= at <= 4500, "of 8,000 steps the newest 4,000"


def test_a_stall_is_over_when_the_loss_falls():
    run = Run()
    run.go([2.0] * (PATIENCE + 10 * BLOCK))
    assert run.level.is_stalled
    run.go([1.8] * BLOCK)
    assert not run.level.is_stalled


def test_a_stall_is_not_told_of_if_it_is_not_asked_for():
    level = Level()
    for number in range(3000):
        level = follow(level, 2.0 + number % 2 * 0.01, RATIO, None)
    assert not level.is_stalled


def test_a_loss_that_is_the_very_same_is_told_of_at_once():
    run = Run()
    run.go(falling(0, 50))
    levels = run.go([2.0] * 30, noise=0.0)
    assert first(levels, lambda level: level.is_stalled) == FROZEN_AFTER
    assert run.level.is_frozen
    run.go([2.0], noise=0.01)
    assert not run.level.is_stalled
