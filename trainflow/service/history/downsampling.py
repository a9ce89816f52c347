"""How the metrics of steps are kept in less detail the farther back they are. Pure.

The newest ``KEPT_SINGLY`` steps are points of their own. Those before become points of ten steps;
of those that are ten times as far back, ten become one of a hundred; and so on without an end. So
each power of ten in length adds nine thousand points to what a run takes.

Distance is counted in steps, from the greatest that there ever was, not in time: the same record
gives the same points, whenever and in however many passes it is read.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

KEPT_SINGLY = 10_000
FACTOR = 10


@dataclass(frozen=True)
class Tally:
    """The values of one metric over some steps.

    Attributes:
        total: sum of the finite ones.
        minimum: the least of them; infinity if there is none.
        maximum: the greatest of them; minus infinity if there is none.
        num_values: how many there are.
        num_non_finite: how many values were NaN or an infinity.
    """

    total: float
    minimum: float
    maximum: float
    num_values: int
    num_non_finite: int

    @classmethod
    def of(cls, value: float) -> "Tally":
        """Return that of one step."""
        if math.isfinite(value):
            return cls(value, value, value, 1, 0)
        return cls(0.0, math.inf, -math.inf, 0, 1)


@dataclass(frozen=True)
class Point:
    """One committed step, or several neighbouring ones.

    Attributes:
        first_step: that it stands for.
        last_step: that it stands for.
        width: 1, or the power of ten whose grid its steps lie in.
        num_steps: how many there are; less than ``width`` if some were not recorded.
        first_epoch: the least of the epochs that committed them, by its order.
        last_epoch: the greatest of them.
        committed_at_s: CLOCK_REALTIME when the last one was.
        metrics: by name.
    """

    first_step: int
    last_step: int
    width: int
    num_steps: int
    first_epoch: int
    last_epoch: int
    committed_at_s: float
    metrics: Mapping[str, Tally]


class Merge(NamedTuple):
    """What is due: points of one width become such of the next.

    Attributes:
        narrow: width of those that go.
        wide: of those that come.
        up_to_step: they end there or before.
    """

    narrow: int
    wide: int
    up_to_step: int


def plan_merges(farthest_step: int, newest_step: int) -> Iterator[Merge]:
    """Yield the merges that are due, the narrow points first.

    A wide point is made once, when no step of it can come any more.

    Args:
        farthest_step: the greatest step that the run has ever committed.
        newest_step: the newest one that counts; less than that if the run went back.
    """
    wide = FACTOR
    while (behind := farthest_step - KEPT_SINGLY * wide // FACTOR) > 0:
        up_to_step = min(behind, newest_step) // wide * wide
        if up_to_step > 0:
            yield Merge(wide // FACTOR, wide, up_to_step)
        wide *= FACTOR


def merge_by_grid(points: Iterable[Point], width: int) -> list[Point]:
    """Return points, by ascending steps, with those in one cell of a grid made one.

    Args:
        points: by ascending steps; no more than one of them is held beside what is returned.
        width: of the cells; one ends at each of its multiples. A point that is wider stays.
    """
    cells = groupby(points, key=lambda point: _find_cell(point.last_step, width))
    return [merge(cell, width) for _, cell in cells]


def merge(points: Iterable[Point], width: int) -> Point:
    """Return one point that stands for the steps of all; they are in ascending order."""
    coming = iter(points)
    first = last = next(coming)
    num_steps, first_epoch, last_epoch = first.num_steps, first.first_epoch, first.last_epoch
    tallies = dict(first.metrics)
    for last in coming:
        num_steps += last.num_steps
        first_epoch = min(first_epoch, last.first_epoch)
        last_epoch = max(last_epoch, last.last_epoch)
        for name, tally in last.metrics.items():
            known = tallies.get(name)
            tallies[name] = tally if known is None else _add(known, tally)
    return Point(
        first_step=first.first_step,
        last_step=last.last_step,
        width=max(first.width, width) if last is first else width,
        num_steps=num_steps,
        first_epoch=first_epoch,
        last_epoch=last_epoch,
        committed_at_s=last.committed_at_s,
        metrics=tallies,
    )


def choose_width(last_steps: Sequence[int], max_points: int) -> int:
    """Return how wide the cells are in which points become at most ``max_points``.

    They are 1, 2, 5, 10, 20, ... steps wide, and lie alike whichever step is the first: who asks
    again for more gets points that fit those before.

    Args:
        last_steps: of the points, ascending.
        max_points: at least 1.
    """
    for width in _nice_widths():
        if len({_find_cell(step, width) for step in last_steps}) <= max_points:
            return width
    raise AssertionError("it becomes wider without an end")


def _find_cell(last_step: int, width: int) -> int:
    return (last_step - 1) // width


def _nice_widths() -> Iterator[int]:
    magnitude = 1
    while True:
        yield from (magnitude, 2 * magnitude, 5 * magnitude)
        magnitude *= 10


def _add(one: Tally, other: Tally) -> Tally:
    return Tally(
        one.total + other.total,
        min(one.minimum, other.minimum),
        max(one.maximum, other.maximum),
        one.num_values + other.num_values,
        one.num_non_finite + other.num_non_finite,
    )
