"""A value far off is told of when it comes, until values are as they were, or have stayed."""

import math
import random

import pytest

from trainflow.monitoring.anomalies.outliers import (
    ACCEPTED_AFTER,
    AT_ONCE,
    BEGIN_LOW_AFTER,
    END_AFTER,
    JUDGED_FROM,
    LOCAL,
    WINDOW,
    Judged,
    Series,
    borrow_spread,
    judge,
)

BOUND = 6.0
LEARNED = LOCAL + JUDGED_FROM


class Run:
    """Values of about 2, with a noise of two hundredths."""

    def __init__(self, num_values: int = 300, seed: int = 0) -> None:
        self.series = Series()
        self._rng = random.Random(seed)
        for _ in range(num_values):
            self.usual()

    def usual(self, factor: float = 1.0) -> Judged:
        return self.take(2.0 * (1.0 + self._rng.gauss(0.0, 0.02)) * factor)

    def take(self, value: float) -> Judged:
        judged = judge(self.series, value, BOUND)
        self.series = judged.series
        return judged


def test_usual_values_are_not_told_of():
    run = Run(0)
    assert {run.usual().series.side for _ in range(2000)} == {0}


def test_nothing_is_judged_before_enough_is_known():
    run = Run(LEARNED - 1)
    assert (run.take(1e6).series.side, run.series.find_usual() is None) == (0, False)
    run = Run(LEARNED)
    assert run.take(1e6).series.side == 1


def test_one_that_is_far_off_is_told_of_at_once_with_its_score():
    run = Run()
    judged = run.take(6.0)
    assert judged.series.side == 1
    assert judged.expected == pytest.approx(2.0, rel=0.05)
    assert judged.score > AT_ONCE * BOUND


def test_one_that_is_less_far_off_is_told_of_if_the_next_is_too():
    run = Run()
    assert run.take(2.5).series.side == 0
    assert run.usual().series.side == 0
    assert run.take(2.5).series.side == 0
    assert run.take(2.5).series.side == 1


def test_extreme_values_change_nothing_of_what_is_usual():
    run = Run()
    before = run.series
    run.take(2.5)
    assert (run.series.recent, run.series.residuals) == (before.recent, before.residuals)


def test_it_is_over_after_some_usual_values_in_a_row():
    run = Run()
    run.take(6.0)
    sides = [run.usual().series.side for _ in range(END_AFTER)]
    assert sides == [1] * (END_AFTER - 1) + [0]
    run.take(6.0)
    run.usual()
    run.take(6.0)
    sides = [run.usual().series.side for _ in range(END_AFTER)]
    assert sides == [1] * (END_AFTER - 1) + [0], "not in a row"


def test_low_values_are_told_of_when_there_are_many_in_a_row():
    run = Run()
    sides = [run.usual(0.1).series.side for _ in range(BEGIN_LOW_AFTER)]
    assert sides == [0] * (BEGIN_LOW_AFTER - 1) + [-1]


def low_run() -> Run:
    run = Run()
    assert [run.usual(0.1).series.side for _ in range(BEGIN_LOW_AFTER + 2)][-1] == -1
    return run


def test_a_high_value_is_told_of_while_values_are_low():
    run = low_run()
    assert run.take(6.0).series.side == 1
    assert [run.usual().series.side for _ in range(END_AFTER)][-1] == 0


def test_while_values_are_low_one_that_is_less_high_is_told_of_if_the_next_is_too():
    run = low_run()
    sides = [run.take(value).series.side for value in (2.5, 0.2, 2.5, 2.0, 2.5, 2.5)]
    assert sides == [-1] * 5 + [1]


def test_low_values_are_accepted_whatever_single_ones_are_high():
    run = low_run()
    taken = [run.take(0.2 if n % 2 else 2.5) for n in range(ACCEPTED_AFTER - 3)]
    assert {each.series.side for each in taken} == {-1}
    assert run.take(0.2).accepted


def test_high_and_low_values_in_turn_are_not_in_a_row():
    run = Run()
    assert {run.usual(factor).series.side for factor in (1.25, 0.8) * 10} == {0}


def test_low_values_are_taken_as_they_are_where_they_are_fine():
    run = Run()
    for _ in range(LOCAL):
        run.series = judge(run.series, 1.0, BOUND, low_is_fine=True).series
    assert run.series.side == 0
    assert judge(run.series, 1.0, BOUND).expected == pytest.approx(1.0, rel=0.1)


def test_what_lasts_is_accepted_and_is_the_norm_from_there_on():
    run = Run()
    run.take(6.0)
    accepted = [run.usual(3.0).accepted for _ in range(ACCEPTED_AFTER)]
    assert accepted == [False] * (ACCEPTED_AFTER - 1) + [True]
    assert {run.usual(3.0).series.side for _ in range(200)} == {0}
    assert run.take(20.0).series.side == 1, "it judges again"


def test_a_loss_that_falls_steeply_is_usual():
    rng, series = random.Random(3), Series()
    for step in range(1, 2000):
        judged = judge(series, 8.0 * step**-0.5 * (1 + rng.gauss(0, 0.01)), BOUND)
        series = judged.series
        assert series.side == 0


@pytest.mark.parametrize("level", [0.0, -3.0, 1e-9, 1e9])
def test_values_of_any_size_and_sign_are_judged(level: float):
    rng, series = random.Random(4), Series()
    for _ in range(200):
        series = judge(series, level * (1 + rng.gauss(0, 0.01)), BOUND).series
    assert series.side == 0
    assert judge(series, 1e12, BOUND).series.side == 1


def test_values_that_never_change_have_some_spread():
    series = Series()
    for _ in range(100):
        series = judge(series, 2.0, BOUND).series
    assert judge(series, 2.02, BOUND).score == pytest.approx(1.0, rel=0.01)


def test_what_is_known_stays_small():
    run = Run(1000)
    assert (len(run.series.recent), len(run.series.residuals)) == (LOCAL, WINDOW)


@pytest.mark.parametrize(("center", "lasts"), [(0.0, 1), (0.5, 1), (-1.0, 1), (0.0, 10)])
def test_of_a_loss_about_zero_spikes_alone_are_told_of(center: float, lasts: int):
    """Noise of one, which may last over some steps."""
    rng, series, noise, sides = random.Random(1), Series(), 0.0, [0]
    carried = 1.0 - 1.0 / lasts
    for _ in range(2000):
        noise = carried * noise + math.sqrt(1.0 - carried**2) * rng.gauss(0.0, 1.0)
        series = judge(series, center + noise, BOUND, low_is_fine=True).series
        sides.append(series.side)
    assert set(sides) == {0}
    judged = judge(series, center + 50.0, BOUND, low_is_fine=True)
    assert judged.series.side == 1
    assert judged.expected == pytest.approx(center, abs=3.0)


def test_what_is_known_of_a_loss_is_kept_when_it_becomes_negative():
    run = Run()
    run.series = judge(run.series, -0.1, BOUND, low_is_fine=True).series
    assert run.series.is_linear
    center, spread = run.series.find_usual() or (0.0, 0.0)
    assert center == pytest.approx(0.0, abs=0.02)
    assert spread == pytest.approx(0.04, rel=0.4)
    assert run.take(2.0).series.side == 0
    judged = run.take(6.0)
    assert judged.series.side == 1
    assert judged.expected == pytest.approx(2.0, rel=0.05)


def test_a_series_that_stands_still_below_zero_has_a_spread_too():
    series = Series()
    for _ in range(100):
        series = judge(series, -3.0, BOUND).series
    assert judge(series, -2.9, BOUND).series.num_beyond == 0
    assert judge(series, -2.0, BOUND).series.side == 1


def test_a_run_that_goes_back_borrows_a_spread_of_the_same_scale():
    early, late = Run(LOCAL + 1), Run()
    late.series = judge(late.series, -0.1, BOUND, low_is_fine=True).series
    borrowed = borrow_spread(early.series, late.series)
    assert (borrowed.is_linear, borrowed.residuals) == (True, late.series.residuals)
    assert borrowed.recent == pytest.approx([2.0] * LOCAL, rel=0.1)
    assert borrow_spread(late.series, early.series) == late.series
