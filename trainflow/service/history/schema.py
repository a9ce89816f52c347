"""The tables. A change here needs a migration beside those in `migrations.versions`.

Times are CLOCK_REALTIME in seconds. Nothing is computed by the database: what a row means is
decided in Python, alike on SQLite and PostgreSQL.
"""

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Double,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
)

metadata = MetaData(
    naming_convention={
        "pk": "pk_%(table_name)s",
        "fk": "fk_%(table_name)s_%(referred_table_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    }
)

_ID = String(63)
_TIME: Double[float] = Double()


def _of_job() -> Column[str]:
    """Return a column that names the job a row belongs to, and goes with it."""
    return Column("job_id", _ID, ForeignKey("jobs.job_id", ondelete="CASCADE"), primary_key=True)


jobs = Table(
    "jobs",
    metadata,
    Column("job_id", _ID, primary_key=True),
    Column("name", Text, nullable=False),
    Column("state", String(16), nullable=False),
    Column("config", JSON, nullable=False),
    Column("labels", JSON, nullable=False),
    Column("directory", Text, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("created_at_s", _TIME, nullable=False),
    Column("updated_at_s", _TIME, nullable=False),
    Column("ended_at_s", _TIME),
    Column("exit_code", Integer),
    Column("reason", Text),
    Column("last_event", BigInteger, nullable=False),
    Column("last_step", BigInteger, nullable=False),
    # The greatest step there ever was: what is far behind it is kept in less detail.
    Column("farthest_step", BigInteger, nullable=False),
    # Where the run went back: pairs of an epoch's order and the step that it began after.
    Column("cuts", JSON, nullable=False),
    # What it is by the events alone, and since when.
    Column("event_state", String(16)),
    Column("event_at_s", _TIME),
    # How the newest run of its coordinator ended, as result.json has it.
    Column("result", JSON(none_as_null=True)),
    Column("published_at_s", _TIME),
    Column("status", JSON(none_as_null=True)),
    Column("workers", JSON, nullable=False),
    # By rank, the id of the worker that had it last: a list.
    Column("ranks", JSON, nullable=False, server_default="[]"),
    Index(None, "created_at_s", "job_id"),
    Index(None, "name"),
    Index(None, "state"),
)

# What a job is found by; the labels themselves are in `jobs`. Of any length, so by their hash.
job_labels = Table(
    "job_labels",
    metadata,
    _of_job(),
    Column("digest", String(64), primary_key=True),
    Index(None, "digest"),
)

attempts = Table(
    "attempts",
    metadata,
    _of_job(),
    Column("number", Integer, primary_key=True, autoincrement=False),
    Column("submission_id", Text),
    Column("submitted_at_s", _TIME),
    Column("started_at_s", _TIME),
    Column("ended_at_s", _TIME),
    Column("state", String(16)),
    Column("exit_code", Integer),
    Column("reason", Text),
)

events = Table(
    "events",
    metadata,
    _of_job(),
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("at_s", _TIME, nullable=False),
    Column("kind", Text, nullable=False),
    Column("text", Text, nullable=False),
    Column("data", JSON, nullable=False),
)

points = Table(
    "points",
    metadata,
    _of_job(),
    Column("last_step", BigInteger, primary_key=True, autoincrement=False),
    Column("first_step", BigInteger, nullable=False),
    # 1 of a single step, else how many step numbers the point stands for.
    Column("width", BigInteger, nullable=False),
    Column("num_steps", BigInteger, nullable=False),
    # Of the epochs that committed the first and the last of them; see `steps.epoch_order`.
    Column("first_epoch", BigInteger, nullable=False),
    Column("last_epoch", BigInteger, nullable=False),
    Column("committed_at_s", _TIME, nullable=False),
    Column("metrics", JSON, nullable=False),
    Index(None, "job_id", "width", "last_step"),
)

checkpoints = Table(
    "checkpoints",
    metadata,
    _of_job(),
    Column("step", BigInteger, primary_key=True, autoincrement=False),
    Column("made_at_s", _TIME, nullable=False),
    Column("num_bytes", BigInteger, nullable=False),
    Column("num_bytes_written", BigInteger, nullable=False),
    Column("state", String(16), nullable=False),
    Column("verified_at_s", _TIME),
)

# How far each file of a run's record has been read, and what it looked like then.
sources = Table(
    "sources",
    metadata,
    _of_job(),
    Column("file", String(64), primary_key=True),
    Column("offset", BigInteger, nullable=False),
    Column("inode", BigInteger, nullable=False),
    # Hash of the bytes just before the offset: they are the same unless the file was replaced.
    Column("tail", String(64), nullable=False),
    Column("stamp_inode", BigInteger, nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("modified_ns", BigInteger, nullable=False),
    Column("num_unreadable", BigInteger, nullable=False),
)

# What was erased must not be read in again.
erased_jobs = Table(
    "erased_jobs",
    metadata,
    Column("job_id", _ID, primary_key=True),
    Column("directory", Text, nullable=False),
    Column("erased_at_s", _TIME, nullable=False),
)

tokens = Table(
    "tokens",
    metadata,
    Column("token_id", String(32), primary_key=True),
    Column("name", Text, nullable=False),
    Column("digest", String(64), nullable=False),
    Column("may_read", Boolean, nullable=False),
    Column("may_submit", Boolean, nullable=False),
    Column("created_at_s", _TIME, nullable=False),
    Column("expires_at_s", _TIME),
    Column("revoked_at_s", _TIME),
    Column("last_used_at_s", _TIME),
)

idempotency_keys = Table(
    "idempotency_keys",
    metadata,
    # Of whom the key is: two bearers may choose the same one.
    Column("owner", String(64), primary_key=True),
    Column("key", String(255), primary_key=True),
    Column("fingerprint", String(128), nullable=False),
    Column("job_id", _ID, nullable=False),
    Column("claimed_at_s", _TIME, nullable=False),
    Index(None, "job_id"),
    Index(None, "claimed_at_s"),
)
