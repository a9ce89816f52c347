"""End jobs that were asked to stop and have lost their cluster before they did.

Nobody else would: the coordinator that was asked is gone with its head, and a job that is to stop
is not gone on with.

Process: the one that keeps the history.  Thread: its own.  Blocks: on the history, the disk and the
cluster.
"""

import logging

from trainflow.clock import Clock
from trainflow.coordination import names
from trainflow.coordination.endings import record_ending
from trainflow.coordination.run_state import STOPPED, RunState
from trainflow.errors import HistoryError, TrainFlowError
from trainflow.service.cluster import Cluster
from trainflow.service.heard_of import SILENT_S
from trainflow.service.history.history import History
from trainflow.service.history.records import Job
from trainflow.service.rest import is_at_work, measure_silence_s

logger = logging.getLogger(__name__)


class LostStopWatch:
    """Looks after all jobs that are stopping."""

    def __init__(self, history: History, cluster: Cluster, clock: Clock):
        self._history = history
        self._cluster = cluster
        self._clock = clock

    def look(self) -> None:
        """Look once; what the cluster or the history doesn't answer is looked at next time."""
        try:
            for job in self._history.jobs.unfinished():
                if job.state is RunState.STOPPING:
                    self._look_at(job)
        except HistoryError as error:
            logger.warning("stopping jobs are not looked after: %s", error)

    def _look_at(self, job: Job) -> None:
        if measure_silence_s(job, self._clock) < SILENT_S:  # the usual case: nobody is asked
            return
        try:
            if self._is_lost(job):
                record_ending(names.Attempt(job.job_id, job.attempt), STOPPED, self._clock)
        except (TrainFlowError, OSError) as error:
            logger.warning("job %s is not told as stopped yet: %s", job.job_id, error)

    def _is_lost(self, job: Job) -> bool:
        """Whether a job that the service has submitted is on no cluster any more."""
        newest = self._history.jobs.attempts(job.job_id)[-1:]
        if not any(each.submission_id for each in newest):
            return False  # where it runs isn't known here
        is_seen_to = self._cluster.has_coordinator(job.job_id) or is_at_work(self._cluster, job)
        return not is_seen_to
