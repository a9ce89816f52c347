"""Points of metric series as rows of a table, and back. Pure.

A single step's value is a number, or the name of one that JSON lacks. Of several steps it is a
list: total, least, greatest, how many, and how many were not finite.
"""

import math
from typing import Any, cast

from sqlalchemy import Row

from trainflow.service.history.downsampling import Point, Tally
from trainflow.service.history.storable import name_non_finite


def to_row(job_id: str, point: Point) -> dict[str, Any]:
    """Return a point as a row of `schema.points`."""
    metrics = {name: _pack(tally) for name, tally in point.metrics.items()}
    return vars(point) | {"job_id": job_id, "metrics": metrics}


def to_point(row: Row[tuple[Any, ...]], wanted: frozenset[str] | None = None) -> Point:
    """Return what a row of `schema.points` says, of some metrics or, if None, of all."""
    return Point(
        first_step=row.first_step,
        last_step=row.last_step,
        width=row.width,
        num_steps=row.num_steps,
        first_epoch=row.first_epoch,
        last_epoch=row.last_epoch,
        committed_at_s=row.committed_at_s,
        metrics={
            name: _unpack(packed)
            for name, packed in row.metrics.items()
            if wanted is None or name in wanted
        },
    )


def _pack(tally: Tally) -> float | str | list[float | None]:
    if tally.num_values == 1 and tally.num_non_finite == 0:
        return tally.total
    if tally.num_values == 0 and tally.num_non_finite == 1:
        return name_non_finite(math.nan)
    least = tally.minimum if tally.num_values else None
    greatest = tally.maximum if tally.num_values else None
    return [tally.total, least, greatest, tally.num_values, tally.num_non_finite]


def _unpack(packed: object) -> Tally:
    if isinstance(packed, int | float):
        return Tally.of(float(packed))
    if isinstance(packed, str):
        return Tally.of(math.nan)
    total, least, greatest, num_values, num_non_finite = cast("list[Any]", packed)
    return Tally(
        total,
        math.inf if least is None else least,
        -math.inf if greatest is None else greatest,
        num_values,
        num_non_finite,
    )
