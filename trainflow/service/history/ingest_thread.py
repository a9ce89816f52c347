"""Keep the history up to the runs' records, beside whatever else a process does.

Process: one that keeps the history.  Thread: one of its own.  Blocks: nobody but itself.
Fails: never; while the database doesn't answer it tries again, and the log says so once.
"""

import logging
import threading

from trainflow.errors import HistoryError
from trainflow.service.history.ingest import Ingester

logger = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.5
_TRY_AGAIN_AFTER_S = 5.0


class IngestThread:
    """A thread that polls an `Ingester`, which is no one else's from then on."""

    def __init__(self, ingester: Ingester, look_every_s: float = _LOOK_EVERY_S):
        self._ingester = ingester
        self._look_every_s = look_every_s
        self._stopping = threading.Event()
        self._trouble: str | None = None
        self._thread = threading.Thread(target=self._run, name="history-ingest", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """Whether it still looks."""
        return self._thread.is_alive()

    @property
    def trouble(self) -> str | None:
        """Why it can't keep the history up for now; None if it can."""
        return self._trouble or self._ingester.trouble

    def stop(self) -> None:
        """End, and wait for the pass that is under way."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        pause_s = 0.0
        while not self._stopping.wait(pause_s):
            pause_s = self._look()

    def _look(self) -> float:
        """Take what is new; returns for how long to rest."""
        try:
            has_more = self._ingester.poll().has_more
        except Exception as error:
            if self._trouble is None:
                trace = None if isinstance(error, HistoryError) else error
                logger.warning("the history is not kept up for now: %s", error, exc_info=trace)
            self._trouble = str(error) or type(error).__name__
            return _TRY_AGAIN_AFTER_S
        if self._trouble is not None:
            logger.warning("the history is kept up again")
            self._trouble = None
        return 0.0 if has_more else self._look_every_s
