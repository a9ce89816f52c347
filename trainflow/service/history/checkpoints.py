"""Checkpoints that jobs have made, as far as their events tell.

Process: any that serves the history.  Thread: any.  Blocks: on the database.  Fails: HistoryError.
"""

from sqlalchemy import select

from trainflow.service.history import schema
from trainflow.service.history.database import Database
from trainflow.service.history.jobs import require_job
from trainflow.service.history.records import CheckpointRecord, CheckpointState


class Checkpoints:
    """The checkpoints of all jobs."""

    def __init__(self, database: Database):
        self._database = database

    def of(self, job_id: str) -> tuple[CheckpointRecord, ...]:
        """Return a job's checkpoints, the newest first; those that are gone are among them.

        Raises:
            JobNotFoundError: there is none of that id.
            HistoryError: the database doesn't answer.
        """
        table = schema.checkpoints
        query = select(table).where(table.c.job_id == job_id).order_by(table.c.step.desc())
        with self._database.read() as connection:
            require_job(connection, job_id)
            return tuple(
                CheckpointRecord(
                    step=row.step,
                    made_at_s=row.made_at_s,
                    num_bytes=row.num_bytes,
                    num_bytes_written=row.num_bytes_written,
                    state=CheckpointState(row.state),
                    verified_at_s=row.verified_at_s,
                )
                for row in connection.execute(query)
            )
