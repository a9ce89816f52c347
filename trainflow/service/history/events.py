"""Events of jobs, in their order.

Process: any that serves the history.  Thread: any.  Blocks: on the database.  Fails: HistoryError.
"""

from collections.abc import Collection

from sqlalchemy import ColumnElement, select

from trainflow.errors import ConfigError
from trainflow.service.history import schema
from trainflow.service.history.database import Database
from trainflow.service.history.jobs import require_job
from trainflow.service.history.records import EventRecord

MAX_EVENTS = 10_000

_TABLE = schema.events.c


class Events:
    """What happened in all jobs."""

    def __init__(self, database: Database):
        self._database = database

    def after(self, job_id: str, number: int = 0, *, limit: int = 1000) -> tuple[EventRecord, ...]:
        """Return a job's events after the one of that number, the oldest first.

        Args:
            job_id: of the job.
            number: 0 for all.
            limit: how many at most, 1 to ``MAX_EVENTS``; the rest is had by asking again, after
                the last number.

        Raises:
            JobNotFoundError: there is none of that id.
            ConfigError: the number or the limit is wrong.
            HistoryError: the database doesn't answer.
        """
        if not 1 <= limit <= MAX_EVENTS:
            raise ConfigError(f"limit: got {limit}, expected 1 to {MAX_EVENTS}")
        require_count("number", number)
        return self._read(job_id, _TABLE.number > number, limit)

    def of_kinds(self, job_id: str, kinds: Collection[str]) -> tuple[EventRecord, ...]:
        """Return a job's events of some kinds, the oldest first; of very many the oldest.

        Raises:
            JobNotFoundError: there is none of that id.
            HistoryError: the database doesn't answer.
        """
        return self._read(job_id, _TABLE.kind.in_(kinds), MAX_EVENTS)

    def _read(self, job_id: str, which: ColumnElement[bool], limit: int) -> tuple[EventRecord, ...]:
        query = select(_TABLE.number, _TABLE.at_s, _TABLE.kind, _TABLE.text, _TABLE.data)
        query = query.where(_TABLE.job_id == job_id, which)
        with self._database.read() as connection:
            require_job(connection, job_id)
            rows = connection.execute(query.order_by(_TABLE.number).limit(limit))
            return tuple(
                EventRecord(row.number, row.at_s, row.kind, row.text, row.data) for row in rows
            )


def require_count(name: str, value: int) -> None:
    """Raise ConfigError unless a number is one that a database counts with."""
    if not 0 <= value < 2**63:
        raise ConfigError(f"{name}: got {value}, expected 0 or more, and less than 2**63")
