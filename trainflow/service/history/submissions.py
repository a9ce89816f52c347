"""Attempts that the service submits, and the keys by which a request that is repeated is one.

Process: any that serves the history.  Thread: any.  Blocks: on the database.  Fails: HistoryError.
"""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update

from trainflow.clock import Clock
from trainflow.config.masking import mask_variables
from trainflow.coordination.run_state import Ending, RunState
from trainflow.errors import ConfigError, ConflictError, JobNotFoundError
from trainflow.service.history import schema
from trainflow.service.history.database import Database, insert_if_absent
from trainflow.service.history.jobs import (
    is_erased,
    lock_job,
    to_attempt,
    unknown_job,
    write_labels,
)
from trainflow.service.history.records import Attempt, Claim, Submission
from trainflow.service.history.standing import closed
from trainflow.service.history.storable import storable_object, storable_text

KEYS_KEPT_S = 7 * 86_400.0
_MAX_KEY = 255
_MAX_FINGERPRINT = 128
_MAX_OWNER = 64


class Submissions:
    """What is submitted, and under which keys."""

    def __init__(self, database: Database, clock: Clock):
        self._database = database
        self._clock = clock

    def claim(self, key: str, fingerprint: str, job_id: str, *, owner: str = "") -> Claim:
        """Have a key stand for a job that is about to be made; the first who asks is new.

        The claim is there before the job is, so that of two requests at once one makes it. Whoever
        is told an id of which `Jobs.get` knows nothing may make that job: the first has died. A key
        is forgotten after a week.

        Args:
            key: chosen by whoever asks; 1 to 255 characters.
            fingerprint: hash of the request, at most 128 characters.
            job_id: that the job would have.
            owner: whose key it is, such as a token's id: keys of others are others.

        Raises:
            ConfigError: the key is empty or too long.
            ConflictError: it stands for another request.
            HistoryError: the database doesn't answer.
        """
        _require_key(key)
        assert len(fingerprint) <= _MAX_FINGERPRINT, "the caller hashes"
        assert len(owner) <= _MAX_OWNER, "the caller has its id"
        table = schema.idempotency_keys
        now_s = self._clock.unix_s()
        row = {
            "owner": owner,
            "key": key,
            "fingerprint": fingerprint,
            "job_id": job_id,
            "claimed_at_s": now_s,
        }
        with self._database.write() as connection:
            connection.execute(delete(table).where(table.c.claimed_at_s < now_s - KEYS_KEPT_S))
            is_new = insert_if_absent(connection, table, row)
            query = select(table).where(table.c.owner == owner, table.c.key == key)
            known = connection.execute(query).one()
        if known.fingerprint != fingerprint:
            raise ConflictError(
                f"Idempotency-Key: got {key!r}, which stands for another request, that made job "
                f"{known.job_id}; expected one that was not used for a week"
            )
        return Claim(known.job_id, is_new)

    def find_claimed(self, key: str, fingerprint: str, *, owner: str = "") -> str | None:
        """Return the id of the job that a key stands for; None if for none, or another request.

        Args:
            key: chosen by whoever asks.
            fingerprint: hash of the request.
            owner: whose key it is.

        Raises:
            HistoryError: the database doesn't answer.
        """
        table = schema.idempotency_keys.c
        counts = table.claimed_at_s >= self._clock.unix_s() - KEYS_KEPT_S
        is_it = (table.owner == owner) & (table.key == key) & (table.fingerprint == fingerprint)
        query = select(table.job_id).where(is_it, counts)
        with self._database.read() as connection:
            return connection.execute(query).scalar_one_or_none()

    def release(self, key: str, *, owner: str = "") -> None:
        """Let a key stand for nothing again: its job was refused before there was anything of it.

        Raises:
            HistoryError: the database doesn't answer.
        """
        table = schema.idempotency_keys
        with self._database.write() as connection:
            connection.execute(delete(table).where(table.c.owner == owner, table.c.key == key))

    def begin(self, submission: Submission, *, takes_over: int | None = None) -> Attempt:
        """Keep that an attempt is about to be submitted: a job's first, or one that resumes it.

        Args:
            submission: what it is.
            takes_over: the newest attempt, which may be unfinished, since it is known that its
                coordinator is gone.

        Returns:
            The attempt; `Attempt.submission_id` is what it is to be submitted as.

        Raises:
            ConflictError: the job has not finished, or a newer attempt was begun, or it was erased.
            HistoryError: the database doesn't answer.
        """
        now_s = self._clock.unix_s()
        with self._database.write() as connection:
            is_new = insert_if_absent(connection, schema.jobs, _as_row(submission, now_s))
            row = lock_job(connection, submission.job_id)
            assert row is not None, "it was inserted, or there"
            if is_erased(connection, submission.job_id):
                raise ConflictError(
                    f"job: got {submission.job_id}, which was erased; choose another id"
                )
            if takes_over is not None and row["attempt"] != takes_over:
                raise ConflictError(
                    f"job: got {submission.job_id}, of which attempt {row['attempt']} has been "
                    f"begun, expected {takes_over} to be the newest; see what becomes of it"
                )
            if takes_over is None and not (is_new or RunState(row["state"]).is_terminal):
                raise ConflictError(
                    f"job: got {submission.job_id}, which is {row['state']}, expected one that has "
                    "finished; stop it first"
                )
            return _add_attempt(connection, row, submission, now_s)

    def fail(self, job_id: str, number: int, reason: str, exit_code: int = 1) -> None:
        """Keep that an attempt came to nothing before its coordinator began; see `end`."""
        self.end(job_id, number, Ending(RunState.FAILED, reason, exit_code))

    def end(self, job_id: str, number: int, ending: Ending) -> None:
        """Keep how an attempt ended before its coordinator began; else nothing changes.

        Args:
            job_id: of the job.
            number: of the attempt.
            ending: how; with a reason for a person.

        Raises:
            JobNotFoundError: there is no job of that id, or no such attempt.
            HistoryError: the database doesn't answer.
        """
        now_s = self._clock.unix_s()
        ended: dict[str, Any] = {
            "state": str(ending.state),
            "ended_at_s": now_s,
            "exit_code": ending.exit_code,
            "reason": storable_text(ending.reason),
        }
        with self._database.write() as connection:
            row = lock_job(connection, job_id)
            if row is None:
                raise unknown_job(job_id)
            attempt = _find_attempt(connection, job_id, number)
            if attempt.started_at_s is not None or attempt.ended_at_s is not None:
                return
            table = schema.attempts
            is_this = (table.c.job_id == job_id) & (table.c.number == number)
            connection.execute(update(table).where(is_this).values(ended))
            if row["attempt"] == number:
                change = update(schema.jobs).where(schema.jobs.c.job_id == job_id)
                connection.execute(change.values(ended | {"updated_at_s": now_s}))


def _require_key(key: str) -> None:
    if not (1 <= len(key) <= _MAX_KEY and key.isprintable() and key.isascii()):
        raise ConfigError(
            f"Idempotency-Key: got {key[:40]!r}, expected 1 to {_MAX_KEY} printable ASCII ones"
        )


def _as_row(submission: Submission, now_s: float) -> dict[str, Any]:
    """Return the row of a job of which nothing else is known yet."""
    config = storable_object(mask_variables(dict(submission.config)))
    return {
        "job_id": submission.job_id,
        "name": submission.name,
        "state": str(RunState.PENDING),
        "config": config,
        "labels": config.get("labels", {}),
        "directory": submission.directory,
        "attempt": 1,
        "created_at_s": now_s,
        "updated_at_s": now_s,
        "last_event": 0,
        "last_step": 0,
        "farthest_step": 0,
        "cuts": [],
        "workers": [],
    }


def _add_attempt(
    connection: Connection, job: Mapping[str, Any], submission: Submission, now_s: float
) -> Attempt:
    job_id, newest = submission.job_id, job["attempt"]
    number = newest if _is_untried(connection, job_id) else newest + 1
    if number > newest:
        _close_newest(connection, job)
    known = _as_row(submission, now_s)
    pending = {key: known[key] for key in ("state", "config", "labels", "updated_at_s")}
    ended = {"ended_at_s": None, "exit_code": None, "reason": None, "result": None}
    change = update(schema.jobs).where(schema.jobs.c.job_id == job_id)
    connection.execute(change.values(pending | ended | {"attempt": number}))
    write_labels(connection, job_id, known["labels"])
    connection.execute(
        insert(schema.attempts).values(
            job_id=job_id,
            number=number,
            submission_id=f"{job_id}-a{number}",
            submitted_at_s=now_s,
        )
    )
    return _find_attempt(connection, job_id, number)


def _close_newest(connection: Connection, job: Mapping[str, Any]) -> None:
    """Keep how the newest attempt ended, if nothing in the history says so.

    It has ended as the job has; or it was lost, and is over since another takes over.
    """
    table = schema.attempts
    is_newest = (table.c.job_id == job["job_id"]) & (table.c.number == job["attempt"])
    row = connection.execute(select(table).where(is_newest)).one_or_none()
    if row is None or row.ended_at_s is not None:
        return
    if RunState(job["state"]).is_terminal:
        ended = {key: job[key] for key in ("state", "ended_at_s", "exit_code", "reason")}
        started_at_s = job["ended_at_s"] if row.started_at_s is None else row.started_at_s
        ended["started_at_s"] = started_at_s
    else:
        times = (job["published_at_s"], job["event_at_s"])
        heard_at_s = max((each for each in times if each is not None), default=None)
        ended = vars(closed(to_attempt(row), heard_at_s))
    connection.execute(update(table).where(is_newest).values(ended))


def _is_untried(connection: Connection, job_id: str) -> bool:
    table = schema.attempts.c
    return connection.execute(select(table.number).where(table.job_id == job_id)).first() is None


def _find_attempt(connection: Connection, job_id: str, number: int) -> Attempt:
    table = schema.attempts
    query = select(table).where(table.c.job_id == job_id, table.c.number == number)
    row = connection.execute(query).one_or_none()
    if row is None:
        raise JobNotFoundError(f"attempt: got {number}, expected one of job {job_id}")
    return to_attempt(row)
