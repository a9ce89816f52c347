"""What keeps the history from being kept up, asked of the process that keeps it.

Process: a replica of the service.  Thread: any but its event loop.  Blocks: for as long as what is
asked does; once a second at most, however many ask.
"""

import logging
import threading
from collections.abc import Callable

from trainflow.clock import Clock

logger = logging.getLogger(__name__)

REMEMBERED_S = 1.0
_SILENT = (
    "the process that keeps the history doesn't answer; it may be starting again: "
    "`serve status` and Ray's logs tell"
)


class KeepingProblem:
    """What the process that keeps the history has said last."""

    def __init__(self, ask: Callable[[], str | None], clock: Clock):
        """Ask nothing yet; ``ask`` returns the problem, and raises where nobody answers."""
        self._ask = ask
        self._clock = clock
        self._asking = threading.Lock()
        self._answered_at_s: float | None = None
        self._problem: str | None = None

    def find(self) -> str | None:
        """Return why the history can't be kept up, as of a second ago at most; None if it can."""
        with self._asking:
            answered_at_s, now_s = self._answered_at_s, self._clock.monotonic_s()
            if answered_at_s is None or now_s - answered_at_s >= REMEMBERED_S:
                self._problem = self._look()
                self._answered_at_s = self._clock.monotonic_s()
            return self._problem

    def _look(self) -> str | None:
        try:
            return self._ask()
        except Exception:  # whatever Ray has for it
            logger.info("the process that keeps the history is not heard", exc_info=True)
            return _SILENT
