"""A sum is rounded once, and whatever is added has one."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainflow.sums import add_exactly


def test_a_sum_is_rounded_once():
    assert add_exactly([1e16, 1.0, -1e16]) == 1.0
    assert add_exactly(iter([0.1] * 10)) == 1.0


@pytest.mark.parametrize(
    ("values", "summed"),
    [
        ([math.inf, -math.inf], math.nan),
        ([math.inf, math.nan], math.nan),
        ([math.inf, 1.0], math.inf),
        ([1e308, 1e308], math.inf),
        ([], 0.0),
    ],
)
def test_what_is_not_finite_has_a_sum(values: list[float], summed: float):
    assert add_exactly(values) == pytest.approx(summed, nan_ok=True)


@given(st.lists(st.floats()))
def test_whatever_is_added_has_a_sum(values: list[float]):
    add_exactly(values)
