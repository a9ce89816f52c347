"""The history of all jobs: what is asked of it, and by which name.

Process: any that serves or keeps the history.  Thread: any; each call takes a connection of its
own.  Blocks: on the database.  Fails: HistoryError if that doesn't answer.
"""

from types import TracebackType
from typing import Self

from trainflow.clock import SYSTEM_CLOCK, Clock
from trainflow.service.history.checkpoints import Checkpoints
from trainflow.service.history.database import Database, open_database
from trainflow.service.history.events import Events
from trainflow.service.history.jobs import Jobs
from trainflow.service.history.series import MetricSeries
from trainflow.service.history.submissions import Submissions
from trainflow.service.history.tokens import Tokens


class History:
    """A database of jobs.

    Attributes:
        jobs: what they are and how they stand.
        submissions: attempts that the service submits, and the keys that make them happen once.
        events: what happened in them.
        series: the metrics of their steps.
        checkpoints: that they have made.
        tokens: who may ask.
    """

    def __init__(self, database: Database, clock: Clock):
        self.database = database
        self.jobs = Jobs(database, clock)
        self.submissions = Submissions(database, clock)
        self.events = Events(database)
        self.series = MetricSeries(database)
        self.checkpoints = Checkpoints(database)
        self.tokens = Tokens(database, clock)

    def check(self) -> None:
        """Raise HistoryError if the database doesn't answer."""
        self.database.check()

    def close(self) -> None:
        """Let go of the database's connections."""
        self.database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def open_history(url: str | None = None, clock: Clock = SYSTEM_CLOCK) -> History:
    """Open the history, and bring its tables to this release's form first.

    Several processes may do so at once.

    Args:
        url: of the database: ``sqlite:////path/history.db`` or ``postgresql://user@host/name``;
            ``TRAINFLOW_HOME/history.db`` if None.
        clock: tells when tokens expire and how old a status is.

    Raises:
        ConfigError: the URL is of another kind of database, or its driver is not installed.
        HistoryError: the database doesn't answer, or was written by a newer release.
    """
    return History(open_database(url), clock)
