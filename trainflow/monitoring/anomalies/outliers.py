"""Judge whether a value is far off from those just before it. Pure.

A value's residual is how far it is above the median of the newest `LOCAL` values, in the log
domain: so a loss that falls steeply, and a norm that shrinks while the learning rate warms up, have
residuals that stay the same. Its score is by how many spreads (1.4826 MAD) its residual is above
the median of the newest `WINDOW` residuals. Of a series that is ever negative, differences count
instead of ratios: about zero, logarithms are far apart where values are not.

ZClip (A. Kumar, L. Owen, N. R. Chowdhury, F. Güra, "ZClip: Adaptive Spike Mitigation for LLM
Pre-Training", arXiv:2504.02507) judges gradient norms by the z of a moving mean and variance, and
leaves out or clips what is extreme when it updates them. Here both are medians, which spikes don't
move, and what is extreme is left out in any case: losses and norms have heavy tails.
"""

import math
from dataclasses import dataclass, replace

from trainflow.monitoring.anomalies.robust import find_median, find_spread, from_log, to_log

LOCAL, WINDOW = 16, 128
"""Newest values that say where it is, and newest residuals that say how far it spreads."""

JUDGED_FROM = 32
"""Residuals, before which nothing is judged."""

LEAST_SPREAD = 0.01
"""Of residuals: where there is less, a hundredth of the value is one spread."""

BEGIN_AFTER, BEGIN_LOW_AFTER = 2, 8
"""Values in a row above and below the bound after which there is something to tell of."""

AT_ONCE = 3.0
"""A value so many times as far above as the bound is told of by itself."""

END_SHARE, END_AFTER = 0.5, 3
"""Share of the bound within which values are, so many in a row, when it is over."""

ACCEPTED_AFTER = 200
"""Values after which what is told of is the norm, and judging begins anew."""

_TINY = 1e-9  # a spread where all is zero
_STEEPEST = 100.0  # of residuals in the log domain, of which the exponential is taken


@dataclass(frozen=True)
class Series:
    """What is known of one series; plain numbers, so that it can be kept as JSON.

    Attributes:
        recent: newest values, in the log domain unless linear, without those that were extreme.
        residuals: newest residuals of the same.
        is_linear: values are as they are, as one was negative.
        side: 1 while it is too high, -1 while it is too low, 0 while it is neither.
        num_beyond: values in a row beyond the bound, on one side; negative if below. While there is
            something to tell of only those on its other side.
        num_calm: values in a row near what is usual, while there is something to tell of.
        num_open: values for which there has been.
    """

    recent: tuple[float, ...] = ()
    residuals: tuple[float, ...] = ()
    is_linear: bool = False
    side: int = 0
    num_beyond: int = 0
    num_calm: int = 0
    num_open: int = 0

    def find_usual(self) -> tuple[float, float] | None:
        """Return the median of residuals and their spread; None while too few are known."""
        if len(self.residuals) < JUDGED_FROM:
            return None
        # Of what is sorted, the median is found at once, and distances from it fall and then rise.
        ordered = sorted(self.residuals)
        center = find_median(ordered)
        return center, max(self._least_spread, find_spread(ordered, center))

    def place(self, value: float) -> float:
        """Return where a value lies among the recent ones."""
        return value if self.is_linear else to_log(value)

    def value_at(self, placed: float) -> float:
        """Return the value that `place` puts there."""
        return placed if self.is_linear else from_log(placed)

    def make_linear(self) -> "Series":
        """Return the same series with values and residuals as they are, out of the log domain."""
        if self.is_linear:
            return self
        recent = tuple(map(from_log, self.recent))
        typical = abs(find_median(recent)) if recent else 0.0
        residuals = tuple(typical * math.expm1(min(each, _STEEPEST)) for each in self.residuals)
        return replace(self, recent=recent, residuals=residuals, is_linear=True)

    @property
    def _least_spread(self) -> float:
        if not self.is_linear:
            return LEAST_SPREAD
        return max(_TINY, LEAST_SPREAD * find_median([abs(value) for value in self.recent]))


def borrow_spread(series: Series, other: Series) -> Series:
    """Return ``series`` with the residuals of a later time of it, where it has too few to judge by.

    A run that goes back to its first steps has seen how far its values spread: with that forgotten,
    it would learn whatever comes next as usual, and most of all what it has gone back for.
    """
    if len(series.residuals) >= min(JUDGED_FROM, len(other.residuals)):
        return series
    if other.is_linear != series.is_linear:
        series, other = series.make_linear(), other.make_linear()
    return replace(series, residuals=other.residuals)


@dataclass(frozen=True)
class Judged:
    """What came of a value.

    Attributes:
        series: what is known now.
        score: by how many spreads it is above what was expected; 0 while nothing is judged.
        expected: the value that was.
        accepted: what was told of has lasted so long that it is the norm now.
    """

    series: Series
    score: float = 0.0
    expected: float = 0.0
    accepted: bool = False


def judge(series: Series, value: float, bound: float, *, low_is_fine: bool = False) -> Judged:
    """Take the next value.

    Args:
        series: what is known of those before.
        value: finite.
        bound: score beyond which a value is extreme.
        low_is_fine: one that is far below what was expected is what is hoped for.
    """
    if value < 0:
        series = series.make_linear()
    placed = series.place(value)
    if len(series.recent) < LOCAL:
        return Judged(replace(series, recent=(*series.recent, placed)))
    typical = find_median(series.recent)
    residual = placed - typical
    usual = series.find_usual()
    if usual is None:
        return Judged(_learn(series, placed, residual))
    center, spread = usual
    score, expected = (residual - center) / spread, series.value_at(typical + center)
    if series.side:
        return _judge_open(series, placed, score, bound, expected)
    is_extreme = score >= bound or (score <= -bound and not low_is_fine)
    learned = series if is_extreme else _learn(series, placed, residual)
    num_beyond = _count(series.num_beyond, score) if is_extreme else 0
    if num_beyond != learned.num_beyond:  # as a rule it is 0, and a copy costs as much as judging
        learned = replace(learned, num_beyond=num_beyond)
    return Judged(_begin(learned, score, bound), score, expected)


def _learn(series: Series, placed: float, residual: float) -> Series:
    return replace(
        series,
        recent=(*series.recent[-LOCAL + 1 :], placed),
        residuals=(*series.residuals[-WINDOW + 1 :], residual),
    )


def _count(num_beyond: int, score: float) -> int:
    """Return how many in a row are beyond the bound, with this extreme one; negative if below."""
    return max(0, num_beyond) + 1 if score > 0 else min(0, num_beyond) - 1


def _begin(series: Series, score: float, bound: float) -> Series:
    if series.num_beyond >= BEGIN_AFTER or score >= AT_ONCE * bound:
        return replace(series, side=1, num_calm=0, num_open=0)
    if series.num_beyond <= -BEGIN_LOW_AFTER:
        return replace(series, side=-1, num_calm=0, num_open=0)
    return series


def _judge_open(
    series: Series, placed: float, score: float, bound: float, expected: float
) -> Judged:
    """Take a value while there is something to tell of; only calm ones are learned from.

    While values are too low, one that is too high counts as ever, so that they hide none.
    """
    is_high = series.side < 0 and score >= bound
    series = replace(series, num_beyond=_count(series.num_beyond, score) if is_high else 0)
    series = _begin(series, score, bound) if is_high else series
    if is_high and series.side > 0:
        return Judged(series, score, expected)
    num_open = series.num_open + 1
    if num_open >= ACCEPTED_AFTER:
        fresh = Series(recent=(placed,), is_linear=series.is_linear)
        return Judged(fresh, score, expected, accepted=True)
    is_calm = abs(score) < END_SHARE * bound
    num_calm = series.num_calm + 1 if is_calm else 0
    if is_calm:
        series = _learn(series, placed, placed - find_median(series.recent))
    if num_calm >= END_AFTER:
        return Judged(replace(series, side=0, num_beyond=0, num_calm=0), score, expected)
    return Judged(replace(series, num_open=num_open, num_calm=num_calm), score, expected)
