"""Sums that are the same on every rank, and that numbers without an end don't break. Pure."""

import math
from collections.abc import Iterable


def add_exactly(values: Iterable[float]) -> float:
    """Return the sum, rounded once; NaN of infinities of both signs, infinite where it overflows.

    `math.fsum` raises then, and what raises on every rank at once ends a run: a value that is not
    finite is for whoever judges the step.
    """
    found = list(values)
    try:
        return math.fsum(found)
    except (ValueError, OverflowError):
        return sum(found)
