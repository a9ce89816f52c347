"""Notice attempts whose driver came to nothing before their coordinator began.

Such an attempt has nobody who would tell its end: its driver was killed, or the head died with the
submission. A driver that was refused has told it itself.

Process: the one that keeps the history.  Thread: its own.  Blocks: on the history and the cluster.
"""

import logging
from dataclasses import dataclass

from trainflow.clock import Clock
from trainflow.coordination import names
from trainflow.coordination.run_state import STOPPED
from trainflow.errors import HistoryError, TrainFlowError
from trainflow.service.cluster import Cluster, DriverState
from trainflow.service.history.history import History
from trainflow.service.history.records import Attempt, Job

logger = logging.getLogger(__name__)

# Clearly longer than a submission takes whose folder is copied, and which goes on where whoever has
# asked for it no longer waits.
_ARRIVES_WITHIN_S = 600.0
_IS_LOST_AFTER_S = 60.0
_TELLS_WITHIN_S = 10.0
_OVER = frozenset({DriverState.ENDED, DriverState.STOPPED})


@dataclass(frozen=True)
class Silence:
    """An attempt of which nothing has been heard but that it was submitted.

    Attributes:
        age_s: since then.
        cluster_age_s: since the cluster began; None if that isn't known.
        driver: how its driver stands.
        ended_for_s: for how long the driver has been known to have ended; None if it has not.
    """

    age_s: float
    cluster_age_s: float | None
    driver: DriverState
    ended_for_s: float | None


def decide_failure(silence: Silence) -> str | None:
    """Return why an attempt has failed; None while it may still begin. Pure.

    A driver may be on its way yet, unless the cluster is newer than the submission: who brought it
    is gone with the one before. One that has ended may have left a record that the history has yet
    to read.
    """
    if silence.driver is DriverState.UNKNOWN and silence.age_s > _find_patience_s(silence):
        return "its driver is not known to the cluster, which was restarted or never heard of it"
    if silence.ended_for_s is not None and silence.ended_for_s > _TELLS_WITHIN_S:
        return "its driver ended before the job began"
    return None


def _find_patience_s(silence: Silence) -> float:
    cluster_age_s = silence.cluster_age_s
    is_newer = cluster_age_s is not None and cluster_age_s < silence.age_s
    return _IS_LOST_AFTER_S if is_newer else _ARRIVES_WITHIN_S


class SubmissionWatch:
    """Looks after all attempts that have not begun."""

    def __init__(self, history: History, cluster: Cluster, clock: Clock):
        self._history = history
        self._cluster = cluster
        self._clock = clock
        self._ended_at_s: dict[str, float] = {}

    def look(self) -> None:
        """Look once; what the cluster or the history doesn't answer is looked at next time."""
        waiting: set[str] = set()
        try:
            for job in self._history.jobs.unfinished():
                attempt = self._history.jobs.attempts(job.job_id)[-1:]
                for each in attempt:
                    if each.submitted_at_s is not None and each.started_at_s is None:
                        named = names.submission_id(job.job_id, each.number)
                        submission_id = each.submission_id or named
                        waiting.add(submission_id)
                        self._judge(job, each, submission_id, each.submitted_at_s)
        except HistoryError as error:
            logger.warning("submissions are not looked after: %s", error)
            return
        self._ended_at_s = {k: v for k, v in self._ended_at_s.items() if k in waiting}

    def _judge(self, job: Job, attempt: Attempt, submission_id: str, submitted_at_s: float) -> None:
        now_s = self._clock.unix_s()
        try:
            driver, said = self._cluster.driver_state(submission_id)
            begin_s = self._cluster.find_begin_s()
            if driver in _OVER and self._cluster.has_coordinator(job.job_id):
                return  # which is slow to begin; or an earlier attempt's, that leaves
        except TrainFlowError as error:
            logger.info("the driver of %s is not seen: %s", job.job_id, error)
            return
        ended_for_s = None
        if driver in _OVER:
            ended_for_s = now_s - self._ended_at_s.setdefault(submission_id, now_s)
        cluster_age_s = None if begin_s is None else now_s - begin_s
        silence = Silence(now_s - submitted_at_s, cluster_age_s, driver, ended_for_s)
        reason = decide_failure(silence)
        if reason is not None and driver is DriverState.STOPPED:
            self._history.submissions.end(job.job_id, attempt.number, STOPPED)
        elif reason is not None:
            self._history.submissions.fail(job.job_id, attempt.number, f"{reason}: {said}"[:2000])
