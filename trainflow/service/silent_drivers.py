"""Say at the end of a driver's log that the driver is gone, where its job goes on without it.

A driver that was killed says nothing of it, and whoever follows its log would wait for more.

Process: the one that keeps the history.  Thread: its own.  Blocks: on the history, the disk and the
cluster.
"""

import logging
import os
from pathlib import Path

from trainflow.clock import Clock
from trainflow.coordination import names
from trainflow.coordination.run_state import RunState
from trainflow.errors import HistoryError, TrainFlowError
from trainflow.service.cluster import Cluster, DriverState
from trainflow.service.history.history import History
from trainflow.service.history.records import Job
from trainflow.service.log_stream import DRIVER_LOG

logger = logging.getLogger(__name__)

_QUIET_S = 30.0
_FRESH_S = 5.0
_GOES_ON = frozenset({RunState.RUNNING, RunState.WAITING})
_OVER = frozenset({DriverState.ENDED, DriverState.STOPPED})


class SilentDriverWatch:
    """Looks after all jobs that train."""

    def __init__(self, history: History, cluster: Cluster, clock: Clock):
        self._history = history
        self._cluster = cluster
        self._clock = clock

    def look(self) -> None:
        """Look once; what the cluster or the history doesn't answer is looked at next time."""
        try:
            jobs = self._history.jobs.unfinished()
        except HistoryError as error:
            logger.warning("silent drivers are not looked for: %s", error)
            return
        for job in jobs:
            if job.state in _GOES_ON:
                try:
                    self._look_at(job)
                except (TrainFlowError, OSError) as error:
                    logger.info("the driver of %s is not looked for: %s", job.job_id, error)

    def _look_at(self, job: Job) -> None:
        now_s, path = self._clock.unix_s(), names.run_directory(job.job_id) / DRIVER_LOG
        # One that lives prints its progress: the cluster is asked of few.
        if not path.is_file() or now_s - path.stat().st_mtime < _QUIET_S:
            return
        age_s, note = job.find_age_s(now_s), _describe(job)
        if age_s is None or age_s > _FRESH_S or _ends_with(path, note):
            return
        if self._cluster.driver_state(names.submission_id(job.job_id, job.attempt))[0] in _OVER:
            with path.open("ab") as log:
                log.write(note)


def _describe(job: Job) -> bytes:
    return (
        f"\nthe driver of attempt {job.attempt} is gone and prints no more; the job goes on: "
        f"`trainflow events {job.job_id} -f` follows it\n"
    ).encode()


def _ends_with(path: Path, note: bytes) -> bool:
    with path.open("rb") as log:
        log.seek(max(0, log.seek(0, os.SEEK_END) - len(note)))
        return log.read() == note
