"""Where values lie and how far they spread, whatever a few of them are. Pure.

The median and the MAD (median absolute deviation) bear it if up to half of the values are wrong;
1.4826 MAD is the standard deviation of a normal distribution. P. J. Rousseeuw and C. Croux,
"Alternatives to the Median Absolute Deviation", JASA 88 (1993), 1273-1283.
"""

import math
from collections.abc import Sequence

_SCALE_OF_MAD = 1.4826
_NEAR_ZERO = 1e-6


def to_log(value: float) -> float:
    """Return the symmetric logarithm of a number, which differs are ratios where it is positive.

    It is ln(value) and a constant above 1e-5 or so; below it goes on through 0 to negative numbers,
    as losses may be. J. B. W. Webber, "A bi-symmetric log transformation for wide-range data",
    Measurement Science and Technology 24 (2013).
    """
    return math.copysign(math.log1p(abs(value) / _NEAR_ZERO), value)


def from_log(value: float) -> float:
    """Return the number that `to_log` makes this of."""
    return math.copysign(math.expm1(abs(value)) * _NEAR_ZERO, value)


def find_median(values: Sequence[float]) -> float:
    """Return the middle value, the mean of the middle two of an even number; of one or more."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return (ordered[middle] + ordered[~middle]) / 2


def find_spread(values: Sequence[float], center: float) -> float:
    """Return what stands for the standard deviation of one or more values about their median."""
    return _SCALE_OF_MAD * find_median([abs(value - center) for value in values])
