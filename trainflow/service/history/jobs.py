"""Jobs: list them, find one, erase one.

Process: any that serves or keeps the history.  Thread: any.  Blocks: on the database.
Fails: HistoryError.
"""

import hashlib
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, Row, Select, and_, delete, insert, or_, select

from trainflow.clock import Clock
from trainflow.coordination.run_state import RunState
from trainflow.errors import ConfigError, ConflictError, JobNotFoundError
from trainflow.service.history import schema
from trainflow.service.history.cursors import Position, read_cursor, write_cursor
from trainflow.service.history.database import Database
from trainflow.service.history.records import (
    UNFINISHED_STATES,
    Attempt,
    AttemptState,
    ErasedJob,
    Job,
    JobFilter,
    JobHead,
    JobPage,
    JobStatus,
)
from trainflow.service.history.storable import storable_text

_T = schema.jobs.c
_JOB_COLUMNS = (
    _T.job_id,
    _T.name,
    _T.state,
    _T.config,
    _T.labels,
    _T.attempt,
    _T.directory,
    _T.created_at_s,
    _T.updated_at_s,
    _T.ended_at_s,
    _T.exit_code,
    _T.reason,
    _T.last_event,
    _T.last_step,
    _T.published_at_s,
)
MAX_LISTED = 1000


class Jobs:
    """All jobs of the history."""

    def __init__(self, database: Database, clock: Clock):
        self._database = database
        self._clock = clock

    def list(
        self, wanted: JobFilter | None = None, *, limit: int = 100, cursor: str | None = None
    ) -> JobPage:
        """Return jobs, the newest first.

        Args:
            wanted: which; all if None.
            limit: how many at most, 1 to ``MAX_LISTED``.
            cursor: of the page before this one; None for the first.

        Raises:
            ConfigError: the limit or the cursor is wrong.
            HistoryError: the database doesn't answer.
        """
        if not 1 <= limit <= MAX_LISTED:
            raise ConfigError(f"limit: got {limit}, expected 1 to {MAX_LISTED}")
        query = _matching(wanted or JobFilter())
        if cursor is not None:
            query = query.where(_is_after(read_cursor(cursor)))
        query = query.order_by(_T.created_at_s.desc(), _T.job_id.desc()).limit(limit + 1)
        with self._database.read() as connection:
            found = [_to_job(row) for row in connection.execute(query)]
        shown = tuple(found[:limit])
        is_last = len(found) <= limit
        last = shown[-1] if shown else None
        if is_last or last is None:
            return JobPage(shown, None)
        return JobPage(shown, write_cursor(Position(last.created_at_s, last.job_id)))

    def get(self, job_id: str) -> JobStatus:
        """Return a job and its newest status.

        Raises:
            JobNotFoundError: there is none of that id.
            HistoryError: the database doesn't answer.
        """
        query = select(*_JOB_COLUMNS, _T.status, _T.workers, _T.ranks).where(_T.job_id == job_id)
        with self._database.read() as connection:
            row = connection.execute(query).one_or_none()
        if row is None:
            raise unknown_job(job_id)
        job = _to_job(row)
        workers = () if job.is_finished else tuple(row.workers)
        stale_s = job.find_age_s(self._clock.unix_s())
        return JobStatus(job, row.status, workers, tuple(row.ranks), stale_s)

    def attempts(self, job_id: str) -> tuple[Attempt, ...]:
        """Return a job's attempts, the first one first.

        Where the job has ended and no event tells so, or not yet, its newest attempt has ended as
        the job has.

        Raises:
            JobNotFoundError: there is none of that id.
            HistoryError: the database doesn't answer.
        """
        table = schema.attempts
        query = select(table).where(table.c.job_id == job_id).order_by(table.c.number)
        with self._database.read() as connection:
            job = connection.execute(select(*_JOB_COLUMNS).where(_T.job_id == job_id)).one_or_none()
            attempts = [to_attempt(row) for row in connection.execute(query)]
        if job is None:
            raise unknown_job(job_id)
        if attempts:
            attempts[-1] = _ended_with(_to_job(job), attempts[-1])
        return tuple(attempts)

    def heads(self, job_ids: Collection[str]) -> Mapping[str, JobHead]:
        """Return how far jobs go, in one query; ids that are unknown are left out.

        Raises:
            HistoryError: the database doesn't answer.
        """
        known = _T.state, _T.ended_at_s, _T.last_event, _T.last_step, _T.published_at_s
        with self._database.read() as connection:
            query = select(_T.job_id, *known).where(_T.job_id.in_(job_ids))
            rows = connection.execute(query).all()
        return {
            row.job_id: JobHead(
                RunState(row.state),
                row.ended_at_s,
                row.last_event,
                row.last_step,
                row.published_at_s,
            )
            for row in rows
        }

    def unfinished(self) -> tuple[Job, ...]:
        """Return all jobs whose newest attempt has not ended, the oldest first.

        One whose coordinator is gone with its cluster is among them: whoever knows that it is may
        resume it, by `Submissions.begin` with ``takes_over``.

        Raises:
            HistoryError: the database doesn't answer.
        """
        query = _matching(JobFilter(states=UNFINISHED_STATES))
        with self._database.read() as connection:
            rows = connection.execute(query.order_by(_T.created_at_s, _T.job_id))
            return tuple(_to_job(row) for row in rows)

    def erase(self, job_id: str) -> str:
        """Erase all that the history has of a finished job, for good.

        What its folder holds is not read in again; to remove that is for the caller.

        Returns:
            That folder's path.

        Raises:
            JobNotFoundError: there is none of that id.
            ConflictError: it has not finished.
            HistoryError: the database doesn't answer.
        """
        keys = schema.idempotency_keys
        with self._database.write() as connection:
            row = lock_job(connection, job_id)
            if row is None:
                raise unknown_job(job_id)
            if not RunState(row["state"]).is_terminal:
                raise ConflictError(
                    f"job: got {job_id}, which is {row['state']}, expected one that has finished; "
                    "stop it first"
                )
            connection.execute(
                insert(schema.erased_jobs).values(
                    job_id=job_id, directory=row["directory"], erased_at_s=self._clock.unix_s()
                )
            )
            connection.execute(delete(keys).where(keys.c.job_id == job_id))
            connection.execute(delete(schema.jobs).where(_T.job_id == job_id))
            return row["directory"]

    def find_erased(self, job_id: str) -> ErasedJob | None:
        """Return what is known of a job that was erased; None if none of that id was.

        Raises:
            HistoryError: the database doesn't answer.
        """
        table = schema.erased_jobs
        with self._database.read() as connection:
            row = connection.execute(select(table).where(table.c.job_id == job_id)).one_or_none()
        return None if row is None else ErasedJob(row.directory, row.erased_at_s)


def lock_job(connection: Connection, job_id: str) -> Mapping[str, Any] | None:
    """Return a job's row, which no other transaction changes before this one is over."""
    query = select(schema.jobs).where(_T.job_id == job_id).with_for_update()
    row = connection.execute(query).mappings().one_or_none()
    return None if row is None else {str(key): value for key, value in row.items()}


def require_job(connection: Connection, job_id: str) -> None:
    """Raise JobNotFoundError if there is no job of that id."""
    if connection.execute(select(_T.job_id).where(_T.job_id == job_id)).first() is None:
        raise unknown_job(job_id)


def is_erased(connection: Connection, job_id: str) -> bool:
    """Whether a job of that id was erased."""
    table = schema.erased_jobs
    query = select(table.c.job_id).where(table.c.job_id == job_id)
    return connection.execute(query).first() is not None


def unknown_job(job_id: str) -> JobNotFoundError:
    """Return the error for an id that no job has."""
    return JobNotFoundError(
        f"job: got {job_id[:80]!r}, expected the id of a job in the history; list them, or wait a "
        "second if it was submitted just now"
    )


def write_labels(connection: Connection, job_id: str, labels: Mapping[str, str]) -> None:
    """Have a job found by these labels, and by no others."""
    table = schema.job_labels
    connection.execute(delete(table).where(table.c.job_id == job_id))
    rows = [{"job_id": job_id, "digest": _digest_label(*each)} for each in labels.items()]
    if rows:
        connection.execute(insert(table), rows)


def to_attempt(row: Row[tuple[Any, ...]]) -> Attempt:
    """Return what a row of `schema.attempts` says."""
    return Attempt(
        number=row.number,
        submission_id=row.submission_id,
        submitted_at_s=row.submitted_at_s,
        started_at_s=row.started_at_s,
        ended_at_s=row.ended_at_s,
        state=None if row.state is None else AttemptState(row.state),
        exit_code=row.exit_code,
        reason=row.reason,
    )


def _matching(wanted: JobFilter) -> Select[tuple[Any, ...]]:
    query = select(*_JOB_COLUMNS)
    if wanted.states:
        query = query.where(_T.state.in_(sorted(map(str, wanted.states))))
    if wanted.name is not None:
        query = query.where(_T.name == storable_text(wanted.name))
    found = schema.job_labels.c
    for label in wanted.labels.items():
        having = select(found.job_id).where(found.digest == _digest_label(*label))
        query = query.where(_T.job_id.in_(having))
    return query


def _is_after(position: Position):  # noqa: ANN202  SQLAlchemy's own
    same_time = and_(_T.created_at_s == position.created_at_s, _T.job_id < position.job_id)
    return or_(_T.created_at_s < position.created_at_s, same_time)


def _digest_label(key: str, value: str) -> str:
    return hashlib.sha256(f"{len(key)}:{key}{value}".encode()).hexdigest()


def _ended_with(job: Job, newest: Attempt) -> Attempt:
    if not job.is_finished or newest.ended_at_s is not None:
        return newest
    return replace(
        newest,
        started_at_s=job.ended_at_s if newest.started_at_s is None else newest.started_at_s,
        ended_at_s=job.ended_at_s,
        state=AttemptState(job.state),
        exit_code=job.exit_code,
        reason=job.reason,
    )


def _to_job(row: Row[tuple[Any, ...]]) -> Job:
    return Job(
        job_id=row.job_id,
        name=row.name,
        state=RunState(row.state),
        config=row.config,
        labels=row.labels,
        attempt=row.attempt,
        directory=row.directory,
        created_at_s=row.created_at_s,
        updated_at_s=row.updated_at_s,
        ended_at_s=row.ended_at_s,
        exit_code=row.exit_code,
        reason=row.reason,
        last_event=row.last_event,
        last_step=row.last_step,
        published_at_s=row.published_at_s,
    )
