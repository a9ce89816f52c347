"""The first tables: jobs, what happened in them, and who may ask."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_ID = sa.String(63)
_TIME: sa.Double[float] = sa.Double()


def upgrade() -> None:
    """Make the tables."""
    _make_jobs()
    _make_attempts()
    _make_events()
    _make_points()
    _make_checkpoints()
    _make_sources()
    _make_tokens()
    _make_idempotency_keys()


def _make_jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("job_id", _ID, nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("config", sa.JSON, nullable=False),
        sa.Column("labels", sa.JSON, nullable=False),
        sa.Column("directory", sa.Text, nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("created_at_s", _TIME, nullable=False),
        sa.Column("updated_at_s", _TIME, nullable=False),
        sa.Column("ended_at_s", _TIME),
        sa.Column("exit_code", sa.Integer),
        sa.Column("reason", sa.Text),
        sa.Column("last_event", sa.BigInteger, nullable=False),
        sa.Column("last_step", sa.BigInteger, nullable=False),
        sa.Column("farthest_step", sa.BigInteger, nullable=False),
        sa.Column("cuts", sa.JSON, nullable=False),
        sa.Column("event_state", sa.String(16)),
        sa.Column("event_at_s", _TIME),
        sa.Column("result", sa.JSON(none_as_null=True)),
        sa.Column("published_at_s", _TIME),
        sa.Column("status", sa.JSON(none_as_null=True)),
        sa.Column("workers", sa.JSON, nullable=False),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_jobs")),
    )
    op.create_index(op.f("ix_jobs_created_at_s_job_id"), "jobs", ["created_at_s", "job_id"])
    op.create_index(op.f("ix_jobs_name"), "jobs", ["name"])
    op.create_index(op.f("ix_jobs_state"), "jobs", ["state"])
    op.create_table(
        "job_labels",
        *_of_job("job_labels", sa.Column("digest", sa.String(64), nullable=False)),
    )
    op.create_index(op.f("ix_job_labels_digest"), "job_labels", ["digest"])
    op.create_table(
        "erased_jobs",
        sa.Column("job_id", _ID, nullable=False),
        sa.Column("directory", sa.Text, nullable=False),
        sa.Column("erased_at_s", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("job_id", name=op.f("pk_erased_jobs")),
    )


def _make_attempts() -> None:
    op.create_table(
        "attempts",
        *_of_job("attempts", sa.Column("number", sa.Integer, autoincrement=False, nullable=False)),
        sa.Column("submission_id", sa.Text),
        sa.Column("submitted_at_s", _TIME),
        sa.Column("started_at_s", _TIME),
        sa.Column("ended_at_s", _TIME),
        sa.Column("state", sa.String(16)),
        sa.Column("exit_code", sa.Integer),
        sa.Column("reason", sa.Text),
    )


def _make_events() -> None:
    number = sa.Column("number", sa.BigInteger, autoincrement=False, nullable=False)
    op.create_table(
        "events",
        *_of_job("events", number),
        sa.Column("at_s", _TIME, nullable=False),
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("text", sa.Text, nullable=False),
        sa.Column("data", sa.JSON, nullable=False),
    )


def _make_points() -> None:
    last_step = sa.Column("last_step", sa.BigInteger, autoincrement=False, nullable=False)
    op.create_table(
        "points",
        *_of_job("points", last_step),
        sa.Column("first_step", sa.BigInteger, nullable=False),
        sa.Column("width", sa.BigInteger, nullable=False),
        sa.Column("num_steps", sa.BigInteger, nullable=False),
        sa.Column("first_epoch", sa.BigInteger, nullable=False),
        sa.Column("last_epoch", sa.BigInteger, nullable=False),
        sa.Column("committed_at_s", _TIME, nullable=False),
        sa.Column("metrics", sa.JSON, nullable=False),
    )
    index = op.f("ix_points_job_id_width_last_step")
    op.create_index(index, "points", ["job_id", "width", "last_step"])


def _make_checkpoints() -> None:
    op.create_table(
        "checkpoints",
        *_of_job(
            "checkpoints",
            sa.Column("step", sa.BigInteger, autoincrement=False, nullable=False),
        ),
        sa.Column("made_at_s", _TIME, nullable=False),
        sa.Column("num_bytes", sa.BigInteger, nullable=False),
        sa.Column("num_bytes_written", sa.BigInteger, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("verified_at_s", _TIME),
    )


def _make_sources() -> None:
    op.create_table(
        "sources",
        *_of_job("sources", sa.Column("file", sa.String(64), nullable=False)),
        sa.Column("offset", sa.BigInteger, nullable=False),
        sa.Column("inode", sa.BigInteger, nullable=False),
        sa.Column("tail", sa.String(64), nullable=False),
        sa.Column("stamp_inode", sa.BigInteger, nullable=False),
        sa.Column("size", sa.BigInteger, nullable=False),
        sa.Column("modified_ns", sa.BigInteger, nullable=False),
        sa.Column("num_unreadable", sa.BigInteger, nullable=False),
    )


def _make_tokens() -> None:
    op.create_table(
        "tokens",
        sa.Column("token_id", sa.String(32), nullable=False),
        sa.Column("name", sa.Text, nullable=False),
        sa.Column("digest", sa.String(64), nullable=False),
        sa.Column("may_read", sa.Boolean, nullable=False),
        sa.Column("may_submit", sa.Boolean, nullable=False),
        sa.Column("created_at_s", _TIME, nullable=False),
        sa.Column("expires_at_s", _TIME),
        sa.Column("revoked_at_s", _TIME),
        sa.Column("last_used_at_s", _TIME),
        sa.PrimaryKeyConstraint("token_id", name=op.f("pk_tokens")),
    )


def _make_idempotency_keys() -> None:
    table = "idempotency_keys"
    op.create_table(
        table,
        sa.Column("owner", sa.String(64), nullable=False),
        sa.Column("key", sa.String(255), nullable=False),
        sa.Column("fingerprint", sa.String(128), nullable=False),
        sa.Column("job_id", _ID, nullable=False),
        sa.Column("claimed_at_s", _TIME, nullable=False),
        sa.PrimaryKeyConstraint("owner", "key", name=op.f(f"pk_{table}")),
    )
    op.create_index(op.f(f"ix_{table}_claimed_at_s"), table, ["claimed_at_s"])
    op.create_index(op.f(f"ix_{table}_job_id"), table, ["job_id"])


def _of_job(table: str, key: "sa.Column[int] | sa.Column[str]") -> tuple[sa.schema.SchemaItem, ...]:
    """Return the columns and constraints of rows that belong to a job and go with it."""
    return (
        sa.Column("job_id", _ID, nullable=False),
        key,
        sa.ForeignKeyConstraint(
            ["job_id"], ["jobs.job_id"], name=op.f(f"fk_{table}_jobs"), ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("job_id", key.name, name=op.f(f"pk_{table}")),
    )
