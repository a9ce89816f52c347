"""Keep the history: read in what jobs write, and see to those that came to nothing or are lost.

One process does it, whatever the number of replicas that answer. It holds nothing: what it has read
is in the database, and another one goes on where it was.

Process: the one that keeps the history.  Thread: two of its own.  Blocks: nobody but them.
"""

import logging
import os
import threading
from pathlib import Path

from trainflow.clock import Clock
from trainflow.coordination import names
from trainflow.errors import TrainFlowError
from trainflow.service.cluster import Cluster
from trainflow.service.history.history import History
from trainflow.service.history.ingest import Ingester
from trainflow.service.history.ingest_thread import IngestThread
from trainflow.service.job_desk import JobDesk
from trainflow.service.lost_stops import LostStopWatch
from trainflow.service.resumption_watch import ResumptionWatch
from trainflow.service.settings import ServiceSettings
from trainflow.service.silent_drivers import SilentDriverWatch
from trainflow.service.submission_watch import SubmissionWatch

logger = logging.getLogger(__name__)

_WATCH_EVERY_S = 5.0
_LEAST_ROOM_BYTES = 64 * 1024  # for a status, which is replaced whole


class HistoryKeeping:
    """What keeps one history."""

    def __init__(self, history: History, cluster: Cluster, clock: Clock, settings: ServiceSettings):
        ingester = Ingester(history.database, clock=clock)
        desk = JobDesk(history, cluster, tuple(settings.roots), clock)
        self._lost_stops = LostStopWatch(history, cluster, clock)
        self._silent_drivers = SilentDriverWatch(history, cluster, clock)
        self._resumptions = ResumptionWatch(history, cluster, desk, clock)
        self._reading = IngestThread(ingester, settings.history.poll_every_s)
        self._watch = SubmissionWatch(history, cluster, clock)
        self._stopping = threading.Event()
        self._watching = threading.Thread(
            target=self._keep_watch, name="submission-watch", daemon=True
        )

    def start(self) -> None:
        """Begin."""
        self._reading.start()
        self._watching.start()

    def require_running(self) -> None:
        """Raise TrainFlowError if one of its threads has ended."""
        running = {"reads": self._reading.is_running, "watches": self._watching.is_alive()}
        ended = [does for does, is_running in running.items() if not is_running]
        if ended:
            raise TrainFlowError(
                f"the history is no longer kept: the thread has ended that {' and '.join(ended)}; "
                "its log says why"
            )

    def find_problem(self) -> str | None:
        """Return why the history can't be kept for now, with what to do; None if it can."""
        try:
            self.require_running()
        except TrainFlowError as error:
            return str(error)
        return _find_lack_of_room(names.home()) or self._reading.trouble

    def stop(self) -> None:
        """End, and wait for what is under way."""
        self._stopping.set()
        self._reading.stop()
        self._watching.join()

    def _keep_watch(self) -> None:
        watches = self._watch, self._lost_stops, self._silent_drivers, self._resumptions
        while not self._stopping.wait(_WATCH_EVERY_S):
            for watch in watches:
                try:
                    watch.look()
                except Exception:
                    logger.exception("jobs were not looked after")


def _find_lack_of_room(home: Path) -> str | None:
    """Return that jobs can't write what they have to tell, if so."""
    try:
        found = os.statvfs(home)
    except OSError as error:
        return f"{home}: got {error}, expected the folder of the service's records; mend it"
    room_bytes = found.f_bavail * found.f_frsize
    if room_bytes >= _LEAST_ROOM_BYTES:
        return None
    return (
        f"{home}: got a disk with room for {room_bytes} bytes, expected some for what jobs and the "
        "service write there; free some space"
    )
