"""Which steps are skipped for their gradient's norm, and for how long."""

import json
import random
from typing import Any

import pytest

from trainflow.config.anomalies import AnomaliesConfig
from trainflow.monitoring.anomalies.norm_guard import NormGuard, judge_norm, make_guard
from trainflow.monitoring.anomalies.outliers import JUDGED_FROM, LOCAL

LIMITS = AnomaliesConfig(action="skip", norm_z=8.0, max_skips=3)
FAR, BEYOND = 50.0, 1.8  # beyond the bound three times as far, and just so


def norm_of(step: int) -> float:
    """A norm of about 1, of which 5% is chance."""
    return 1.0 + random.Random(step).gauss(0, 0.05)


def after(num_steps: int) -> NormGuard:
    """What is known after so many usual steps."""
    guard = NormGuard()
    for step in range(num_steps):
        guard, odd = judge_norm(guard, norm_of(step), LIMITS)
        assert odd is None
    return guard


def take(guard: NormGuard, *norms: float) -> tuple[NormGuard, list[bool]]:
    """Take norms; returns what is known, and which steps were skipped."""
    skipped: list[bool] = []
    for norm in norms:
        guard, odd = judge_norm(guard, norm, LIMITS)
        skipped.append(odd is not None)
    return guard, skipped


def test_a_norm_that_is_far_off_is_skipped_with_figures():
    guard, odd = judge_norm(after(100), FAR, LIMITS)
    assert odd is not None
    assert odd.expected == pytest.approx(1.0, abs=0.1)
    assert odd.score > 3 * LIMITS.norm_z
    assert odd.num_in_a_row == guard.num_skipped == 1


def test_one_that_is_just_beyond_is_skipped_the_second_time():
    assert take(after(100), BEYOND, BEYOND, 1.0)[1] == [False, True, False]
    assert take(after(100), BEYOND, 1.0, BEYOND)[1] == [False, False, False]


def test_usual_steps_between_are_applied_and_so_are_low_norms():
    low = [0.001] * 10
    assert not any(take(after(100), *low)[1])
    assert take(after(100), FAR, 1.0, FAR, 1.0)[1] == [True, False, True, False]


def test_norms_that_are_far_off_after_low_ones_are_skipped():
    limits = AnomaliesConfig(action="skip")
    guard = NormGuard()
    norms = [norm_of(step) for step in range(200)] + [0.1 * norm_of(step) for step in range(10)]
    for norm in norms:
        guard, odd = judge_norm(guard, norm, limits)
        assert odd is None
    assert guard.series.side == -1
    for number in range(1, 6):
        guard, odd = judge_norm(guard, 10_000.0, limits)
        assert odd is not None
        assert odd.num_in_a_row == number


def test_nothing_is_skipped_before_norms_are_known():
    known = LOCAL + JUDGED_FROM
    assert take(after(known - 1), FAR)[1] == [False]
    assert take(after(known), FAR)[1] == [True]


def test_what_lasts_is_usual_after_a_bound():
    guard, skipped = take(after(100), *[FAR] * 60)
    assert skipped == [True] * 3 + [False] * 57
    assert guard.num_skipped == 0
    assert take(guard, FAR, 1000 * FAR)[1] == [False, True]


def test_a_row_ends_with_a_step_that_is_applied():
    guard, skipped = take(after(100), *[FAR, FAR, 1.0] * 4)
    assert skipped == [True, True, False] * 4
    assert guard.num_skipped == 0


@pytest.mark.parametrize("num_steps", [0, 5, 40, 200])
def test_a_guard_comes_back_as_it_was_and_goes_on_alike(num_steps: int):
    guard, _ = take(after(num_steps), FAR)
    kept: Any = json.loads(json.dumps(guard.to_tree()))
    assert NormGuard.from_tree(kept) == guard
    assert take(NormGuard.from_tree(kept), FAR, FAR, 1.0) == take(guard, FAR, FAR, 1.0)


def test_only_a_job_that_asks_for_it_has_one():
    assert make_guard(AnomaliesConfig()) is None
    assert make_guard(LIMITS) == NormGuard()
