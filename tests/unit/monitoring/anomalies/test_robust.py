"""Medians, spreads and logarithms of any numbers."""

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainflow.monitoring.anomalies.robust import find_median, find_spread, from_log, to_log

NUMBERS = st.floats(-1e12, 1e12)


@given(st.lists(NUMBERS, min_size=1))
def test_a_median_is_that_of_the_standard_library(values: list[float]):
    assert find_median(values) == pytest.approx(statistics.median(values), rel=1e-12, abs=1e-300)


def test_a_spread_is_a_standard_deviation_and_minds_few_wrong_values_little():
    rng = random.Random(1)
    values = [rng.gauss(3.0, 2.0) for _ in range(20_000)]
    assert find_spread(values, find_median(values)) == pytest.approx(2.0, rel=0.05)
    wrong = values + [1e9] * 2000
    assert find_spread(wrong, find_median(wrong)) == pytest.approx(2.0, rel=0.2)


@given(NUMBERS)
def test_a_logarithm_can_be_undone(value: float):
    assert from_log(to_log(value)) == pytest.approx(value, rel=1e-9, abs=1e-15)


@given(NUMBERS, NUMBERS)
def test_a_logarithm_keeps_the_order(one: float, other: float):
    if one < other:
        assert to_log(one) <= to_log(other)


@given(st.floats(1e-3, 1e6), st.floats(1.0, 100.0))
def test_differences_are_ratios_where_numbers_are_positive(value: float, ratio: float):
    difference = to_log(value * ratio) - to_log(value)
    assert difference == pytest.approx(math.log(ratio), abs=2e-3)
