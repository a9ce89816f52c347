"""Whether a job is at rest, so that it can be ended or gone on with: nobody may be at work on it.

A record has one writer. Who ends or begins an attempt must know that nobody else does, also not on
another cluster.

Process: a replica of the service, on the cluster's head.  Thread: any.  Blocks: on the history, the
disk and the cluster, for seconds at most.
"""

from dataclasses import dataclass

from trainflow.clock import Clock
from trainflow.coordination import names
from trainflow.coordination.ending_file import read_ending
from trainflow.coordination.run_state import RunState
from trainflow.coordination.status_file import read_published
from trainflow.errors import ConflictError
from trainflow.service.cluster import Cluster, DriverState
from trainflow.service.heard_of import SILENT_S, find_silence_s, is_closing, is_heard_of
from trainflow.service.history import records
from trainflow.service.history.history import History
from trainflow.service.problems import ProblemError, ProblemType

_AT_WORK = frozenset({DriverState.PENDING, DriverState.RUNNING})


def is_at_work(cluster: Cluster, job: records.Job) -> bool:
    """Whether the driver of a job's newest attempt is on the cluster, and has not ended."""
    submission_id = names.submission_id(job.job_id, job.attempt)
    return cluster.driver_state(submission_id)[0] in _AT_WORK


def measure_silence_s(job: records.Job, clock: Clock) -> float:
    """Return for how long nothing was heard of a job, by the history and by its own record."""
    status = read_published(names.run_directory(job.job_id))
    return find_silence_s(job, status, clock.unix_s())


@dataclass(frozen=True)
class Rest:
    """What tells whether a job is at rest.

    Attributes:
        history: where jobs are remembered.
        cluster: where they run.
        clock: tells the time.
    """

    history: History
    cluster: Cluster
    clock: Clock

    def require_resumable(self, job: records.Job) -> None:
        """Refuse a job that can't be gone on with.

        Raises:
            ConflictError: it has succeeded, or somebody may be at work on it.
            ProblemError: NOT_RESUMABLE: nothing of it was kept.
            UnreachableError: the cluster doesn't answer.
        """
        if job.state is RunState.SUCCEEDED:
            raise ConflictError(
                f"job {job.job_id}: got one that has succeeded, expected one with steps left; "
                "submit it anew with more training.max_steps"
            )
        if not job.is_finished and self._goes_on(job):
            raise ConflictError(
                f"job {job.job_id}: got one that is {job.state}, expected one that has ended; "
                "stop it, and wait until it has stopped"
            )
        if job.is_finished:
            self.require_closed(job)
        else:
            self.require_gone(job)
            self._require_unended(job)
        if job.config.get("checkpoint", {}).get("url") is None:
            raise ProblemError(
                ProblemType.NOT_RESUMABLE,
                f"job {job.job_id}: got no checkpoint.url, expected one: nothing of its training "
                "was kept; submit it anew, with checkpoint.url",
            )

    def require_closed(self, job: records.Job) -> None:
        """Refuse a job that has ended and is yet being closed on another cluster with this home.

        What this cluster closes is waited for, or refused, by whoever asks its coordinator.

        Raises:
            ConflictError: it is.
            UnreachableError: the cluster doesn't answer.
        """
        status = read_published(names.run_directory(job.job_id))
        if not is_closing(status, self.clock.unix_s()) or self._is_here(job):
            return
        raise ConflictError(
            f"job {job.job_id}: got one that has {job.state}, and of which not all is closed yet "
            "on another cluster; expected nothing of it at work; ask again once it is, or, if "
            f"that cluster is gone, once nothing was heard of the job for {SILENT_S:g} s"
        )

    def _is_here(self, job: records.Job) -> bool:
        """Whether this cluster runs a job's newest attempt, or has run it."""
        submission_id = names.submission_id(job.job_id, job.attempt)
        is_known = self.cluster.driver_state(submission_id)[0] is not DriverState.UNKNOWN
        return is_known or self.cluster.has_coordinator(job.job_id)

    def _require_unended(self, job: records.Job) -> None:
        """Refuse one that has ended by its record, as the history is about to read."""
        newest = self.history.jobs.attempts(job.job_id)[-1:]
        is_begun = any(each.started_at_s is not None for each in newest)
        ending = read_ending(names.run_directory(job.job_id)) if is_begun else None
        if ending is not None:
            raise ConflictError(
                f"job {job.job_id}: got one that has just {ending.state}, expected one whose end "
                "is in the history; ask again in a second"
            )

    def _goes_on(self, job: records.Job) -> bool:
        """Whether an unfinished job has somebody who sees to it; its cluster may be a new one."""
        if self.cluster.has_coordinator(job.job_id):
            return True
        return is_at_work(self.cluster, job)

    def require_gone(self, job: records.Job) -> None:
        """Refuse an unfinished job without a coordinator here that may have one on another cluster.

        Where the cluster knows the driver, the job is nowhere else.

        Raises:
            ConflictError: somebody may be at work on it.
            UnreachableError: the cluster doesn't answer.
        """
        driver, _ = self.cluster.driver_state(names.submission_id(job.job_id, job.attempt))
        if driver is not DriverState.UNKNOWN:
            return
        attempts = self.history.jobs.attempts(job.job_id)
        silent_s = measure_silence_s(job, self.clock)
        if is_heard_of(attempts, silent_s):
            left_s = SILENT_S - silent_s
            raise ConflictError(
                f"job {job.job_id}: got one that is {job.state}, and heard of, but not on this "
                "cluster; expected one that is here, or of which nothing was heard for "
                f"{SILENT_S:g} s; stop it where it runs (`trainflow stop --address ...`), or, if "
                f"its cluster is gone, ask again in {left_s:.0f} s"
            )
