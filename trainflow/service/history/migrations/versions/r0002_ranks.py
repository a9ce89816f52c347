"""Of each job, which worker had which rank last: as its events tell."""

from typing import cast

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_ROWS_AT_ONCE = 500


def upgrade() -> None:
    """Add the column, and fill it from the events that are there."""
    op.add_column("jobs", sa.Column("ranks", sa.JSON, nullable=False, server_default="[]"))
    jobs = sa.table("jobs", sa.column("job_id"), sa.column("ranks", sa.JSON))
    for job_id, ranks in _read_ranks().items():
        op.execute(jobs.update().where(jobs.c.job_id == job_id).values(ranks=ranks))


def _read_ranks() -> dict[str, list[str]]:
    events = sa.table(
        "events",
        sa.column("job_id", sa.String),
        sa.column("number"),
        sa.column("kind"),
        sa.column("data", sa.JSON),
    )
    query = sa.select(events.c.job_id, events.c.data).where(events.c.kind == "epoch")
    query = query.order_by(events.c.job_id, events.c.number)
    found: dict[str, list[str]] = {}
    for job_id, data in op.get_bind().execute(query.execution_options(yield_per=_ROWS_AT_ONCE)):
        members: object = data.get("members")
        if isinstance(members, list):
            ids = [str(each) for each in cast("list[object]", members)]
            found[job_id] = ids + found.get(job_id, [])[len(ids) :]
    return found
