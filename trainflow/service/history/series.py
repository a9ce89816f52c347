"""Metric series of jobs: loss, gradient norm, learning rate, times, and what the job logs itself.

Process: any that serves the history.  Thread: any.  Blocks: on the database.  Fails: HistoryError.
"""

from collections.abc import Collection
from typing import Any

from sqlalchemy import ColumnElement, Result, Row, select

from trainflow.config.problems import show
from trainflow.errors import ConfigError
from trainflow.service.history import schema
from trainflow.service.history.database import Database
from trainflow.service.history.downsampling import Point, Tally, choose_width, merge_by_grid
from trainflow.service.history.events import require_count
from trainflow.service.history.jobs import require_job
from trainflow.service.history.point_rows import to_point
from trainflow.service.history.record_lines import METRICS_OF_ANY_RUN
from trainflow.service.history.records import Aggregate, SeriesPoint

MAX_POINTS = 10_000
_FEW_AT_ONCE = {"yield_per": 200}
_MOST_TOLD = 10


class MetricSeries:
    """The metrics of all jobs' committed steps.

    A metric's name is that of its field in ``metrics.jsonl``: ``loss``, ``grad_norm``, ``lr``,
    ``compute_s``, ``wait_s``, ``weight``, ``world_size``, ``num_spares``, ...; ``scalars.NAME`` is
    what the training function logs as NAME, and ``sums.link_s`` a field of another.
    """

    def __init__(self, database: Database):
        self._database = database

    def since(
        self,
        job_id: str,
        step: int = 0,
        *,
        metrics: Collection[str] | None = None,
        max_points: int = 1000,
    ) -> tuple[SeriesPoint, ...]:
        """Return the history that counts of a job, by ascending steps.

        Args:
            job_id: of the job.
            step: points that end after it; 0 for all.
            metrics: names of those that are wanted; all if None. One that a step lacks is left out;
                one that no step of the job has is refused, where there are points, unless any job
                may have it.
            max_points: how many at most, 1 to ``MAX_POINTS``: neighbouring steps become one point.
                However many there are, no more than these are in memory, and a few.

        Raises:
            JobNotFoundError: there is none of that id.
            ConfigError: the step, the maximum or a name is wrong.
            HistoryError: the database doesn't answer.
        """
        if not 1 <= max_points <= MAX_POINTS:
            raise ConfigError(f"max_points: got {max_points}, expected 1 to {MAX_POINTS}")
        require_count("step", step)
        wanted = None if metrics is None else frozenset(metrics)
        table = schema.points
        with self._database.read() as connection:
            require_job(connection, job_id)

            def read(*columns: ColumnElement[Any]) -> Result[Any]:
                later = select(*columns).where(table.c.job_id == job_id, table.c.last_step > step)
                return connection.execute(
                    later.order_by(table.c.last_step), execution_options=_FEW_AT_ONCE
                )

            names: set[str] = set()

            def take(row: Row[Any]) -> Point:
                names.update(row.metrics)
                return to_point(row, wanted)

            width = choose_width(read(table.c.last_step).scalars().all(), max_points)
            points = merge_by_grid(map(take, read(*table.c)), width)
            if points and wanted and (missing := wanted - names - METRICS_OF_ANY_RUN):
                earlier = select(table.c.metrics).where(
                    table.c.job_id == job_id, table.c.last_step <= step
                )
                for metrics_then in connection.execute(earlier, execution_options=_FEW_AT_ONCE):
                    names.update(*metrics_then)
                _require_known(missing, names)
        return tuple(map(_describe, points))


def _require_known(wanted: Collection[str], names: Collection[str]) -> None:
    if unknown := sorted(set(wanted) - set(names)):
        raise ConfigError(
            f"name: got {', '.join(map(show, unknown[:_MOST_TOLD]))}, expected what the job has: "
            f"{', '.join(sorted(names))}; change name, or leave it out for all"
        )


def _describe(point: Point) -> SeriesPoint:
    values = {name: _summarise(tally) for name, tally in point.metrics.items()}
    return SeriesPoint(
        point.first_step, point.last_step, point.num_steps, point.committed_at_s, values
    )


def _summarise(tally: Tally) -> Aggregate:
    num = tally.num_values
    if num == 0:
        return Aggregate(None, None, None, 0, tally.num_non_finite)
    # A mean lies between its values, also where the rounding of their sum says otherwise.
    mean = min(max(tally.total / num, tally.minimum), tally.maximum)
    return Aggregate(mean, tally.minimum, tally.maximum, num, tally.num_non_finite)
