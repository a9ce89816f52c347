"""Go on by itself with a job that has lost its cluster, if its configuration says so.

A head that died took the job's coordinator with it, so nobody is left who would. The service that
has submitted the job sees it once it runs on a cluster again, and resumes it as a person would:
from its newest checkpoint, as the next attempt, once over all replicas. Jobs that others have begun
are left alone: where they run isn't known here.

Process: the one that keeps the history.  Thread: its own.  Blocks: on the history, the disk and the
cluster.
"""

import logging
from dataclasses import dataclass

from trainflow.clock import Clock
from trainflow.coordination import names
from trainflow.coordination.resumptions import count_resumptions, record_resumption
from trainflow.coordination.run_state import RunState
from trainflow.errors import ConflictError, HistoryError, TrainFlowError, UnreachableError
from trainflow.service.cluster import Cluster, DriverState
from trainflow.service.heard_of import SILENT_S
from trainflow.service.history.history import History
from trainflow.service.history.records import Job
from trainflow.service.job_desk import JobDesk
from trainflow.service.problems import ProblemError, ProblemType
from trainflow.service.rest import measure_silence_s

logger = logging.getLogger(__name__)

_FORGOTTEN_S = 7 * 86_400.0
_GONE = frozenset({DriverState.STOPPED, DriverState.ENDED, DriverState.UNKNOWN})


@dataclass(frozen=True)
class Lost:
    """What is known of a job that may have lost its cluster.

    Attributes:
        silent_s: for how long nothing was heard of it.
        has_coordinator: the cluster has one of it.
        driver: how its newest attempt's stands there.
        num_resumed: how often it was gone on with by itself.
        at_most: how often it may be.
    """

    silent_s: float
    has_coordinator: bool
    driver: DriverState
    num_resumed: int
    at_most: int


def decide_resumption(lost: Lost) -> bool:
    """Whether to go on with a job now. Pure.

    What was not heard of for a minute (`heard_of`), and isn't on the cluster, is gone. What was
    silent for a week is left to people: they may have forgotten it.
    """
    is_gone = not lost.has_coordinator and lost.driver in _GONE
    is_time = SILENT_S <= lost.silent_s <= _FORGOTTEN_S
    return is_gone and is_time and lost.num_resumed < lost.at_most


class ResumptionWatch:
    """Looks after all jobs that are to be gone on with by themselves."""

    def __init__(self, history: History, cluster: Cluster, desk: JobDesk, clock: Clock):
        self._history = history
        self._cluster = cluster
        self._desk = desk
        self._clock = clock
        self._given_up: set[tuple[str, int]] = set()

    def look(self) -> None:
        """Look once; what the cluster or the history doesn't answer is looked at next time."""
        try:
            for job in self._history.jobs.unfinished():
                if find_limit(job) and (job.job_id, job.attempt) not in self._given_up:
                    self._look_at(job)
        except HistoryError as error:
            logger.warning("lost jobs are not looked after: %s", error)

    def _look_at(self, job: Job) -> None:
        try:
            if self._is_lost(job):
                self._desk.resume(job.job_id, self._tell)
                logger.info("%s had lost its cluster, and is gone on with", job.job_id)
        except (TrainFlowError, ProblemError, OSError) as error:
            if _may_pass(error):
                logger.info("%s is not gone on with yet: %s", job.job_id, error)
                return
            logger.warning("%s can't be gone on with, and is left to people: %s", job.job_id, error)
            self._given_up.add((job.job_id, job.attempt))

    def _tell(self, job: Job) -> None:
        """Write it down, now that nobody else resumes the job; if it is still so.

        Raises:
            ConflictError: it isn't.
        """
        if not self._is_lost(job):
            raise ConflictError(f"job {job.job_id}: got one that is heard of again")
        record_resumption(job.job_id, job.attempt + 1, find_limit(job), self._clock)

    def _is_lost(self, job: Job) -> bool:
        if job.state is RunState.STOPPING or not self._was_begun_here(job):
            return False
        silent_s = measure_silence_s(job, self._clock)
        if silent_s < SILENT_S:  # the usual case: nobody is asked
            return False
        driver, _ = self._cluster.driver_state(names.submission_id(job.job_id, job.attempt))
        lost = Lost(
            silent_s=silent_s,
            has_coordinator=self._cluster.has_coordinator(job.job_id),
            driver=driver,
            num_resumed=count_resumptions(job.job_id, job.attempt),
            at_most=find_limit(job),
        )
        return decide_resumption(lost)

    def _was_begun_here(self, job: Job) -> bool:
        """Whether the newest attempt was submitted by the service, and has begun."""
        newest = self._history.jobs.attempts(job.job_id)[-1:]
        return any(each.submission_id and each.started_at_s is not None for each in newest)


def _may_pass(error: Exception) -> bool:
    """Whether the next look may come further. Pure.

    Somebody else is at work on the job, or it has come back; or what is asked doesn't answer now.
    """
    if isinstance(error, ProblemError):
        return error.problem is ProblemType.DISK_UNAVAILABLE
    return isinstance(error, ConflictError | UnreachableError | HistoryError | OSError)


def find_limit(job: Job) -> int:
    """Return how often a job may be gone on with by itself, by its configuration. Pure."""
    said = job.config.get("failures", {}).get("max_lost_clusters", 0)
    return said if isinstance(said, int) else 0
