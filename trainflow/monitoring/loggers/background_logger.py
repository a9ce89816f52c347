"""Let a logger work on a thread of its own, so that nothing that it does holds anybody up.

What waits for it is bounded. What it has no room for, and what it raises at, is dropped, counted,
and told by whoever asks. One that raises again and again is left alone for a while and opened anew:
a disk that was full, say, is not for ever. Its thread wakes once a second, and takes what has come
by then: to wake for each step costs several times what a point costs.

Process: coordinator.  Thread: its own, which ends with the process at the latest.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable

from trainflow.monitoring.loggers.run_logger import Outcome, Point, RunLogger

logger = logging.getLogger(__name__)

MOST_WAITING = 1000
LEFT_AFTER = 20
"""Points in a row that a logger raises at, after which it is left alone for `REST_S`."""

REST_S = 60.0
PAUSE_S = 1.0
"""For so long points come together before they are taken, unless half of those that may wait do."""


class BackgroundLogger:
    """One logger behind its thread.

    Attributes:
        name: for messages.
    """

    def __init__(
        self,
        name: str,
        open_logger: Callable[[], RunLogger],
        rest_s: float = REST_S,
        pause_s: float = PAUSE_S,
    ):
        """Begin; the logger is opened on its thread, since that may take long, and may fail.

        Args:
            name: for messages.
            open_logger: opens it, also once more; what it was given before is there.
            rest_s: for how long one that fails is left alone.
            pause_s: for how long points come together, once all before are taken.
        """
        self.name = name
        self._open = open_logger
        self._rest_s = rest_s
        self._pause_s = pause_s
        self._waiting: deque[Point] = deque()
        self._changed = threading.Condition()
        self._is_closing = False
        self._outcome: Outcome | None = None
        self._num_unsure = 0  # taken from what waits, and not known to be written
        self._is_given_up = False
        self._num_dropped = 0
        self._trouble = ""
        self._thread = threading.Thread(target=self._run, name=f"logger {name}", daemon=True)
        self._thread.start()

    @property
    def num_dropped(self) -> int:
        """Points that it has not taken, or may not have written."""
        with self._changed:
            return self._num_dropped

    @property
    def trouble(self) -> str:
        """What went wrong at first; empty if nothing did."""
        with self._changed:
            return self._trouble

    def log(self, point: Point) -> None:
        """Have a point taken within a second or so; never waits."""
        with self._changed:
            if self._is_closing:
                self._num_dropped += 1
            elif len(self._waiting) >= MOST_WAITING:
                self._drop(f"it is slow: {MOST_WAITING} points wait for it")
            else:
                self._waiting.append(point)
                if len(self._waiting) in {1, MOST_WAITING // 2}:  # see `_wait_for_points`
                    self._changed.notify_all()

    def begin_closing(self, outcome: Outcome) -> None:
        """Have it end once it has taken what waits, and write what the run came to; never waits."""
        with self._changed:
            self._outcome = outcome
            self._is_closing = True
            self._changed.notify_all()

    def wait_closed(self, timeout_s: float) -> bool:
        """Wait until it has ended; False if it has not in time, and what isn't written is lost."""
        self._thread.join(timeout_s)
        if not self._thread.is_alive():
            return True
        with self._changed:
            self._drop_rest("it did not end in time")
            self._is_given_up = True
        return False

    def _drop(self, trouble: str, number: int = 1) -> None:
        self._num_dropped += number
        self._trouble = self._trouble or trouble

    def _drop_rest(self, trouble: str) -> None:
        self._drop(trouble, len(self._waiting) + self._num_unsure)
        self._waiting.clear()
        self._num_unsure = 0

    # On its thread

    def _run(self) -> None:
        is_last = False
        while not self._serve():
            if is_last:
                break
            is_last = self._rest()
        with self._changed:
            self._drop_rest(self._trouble)

    def _serve(self) -> bool:
        """Open it and pass points on until there are no more; False if it fails at that."""
        try:
            opened = self._open()
        except BaseException as error:  # whatever its library raises, SystemExit among it
            logger.exception("%s could not be opened", self.name)
            self._note(f"it could not be opened: {_describe(error)}")
            return False
        num_failed = 0
        while num_failed < LEFT_AFTER:
            point = self._take()
            if point is None:
                break
            num_failed = 0 if self._pass_on(opened, point) else num_failed + 1
        self._close(opened)
        return num_failed < LEFT_AFTER

    def _rest(self) -> bool:
        """Leave it alone for a while; whether it is to end meanwhile, after one more try."""
        logger.error("%s is left alone for %.0f s", self.name, self._rest_s)
        with self._changed:
            return self._changed.wait_for(lambda: self._is_closing, self._rest_s)

    def _take(self) -> Point | None:
        """Wait for the next point; None once there are no more."""
        with self._changed:
            if not self._waiting:
                self._wait_for_points()
            if not self._waiting:
                return None
            self._num_unsure += 1
            return self._waiting.popleft()

    def _wait_for_points(self) -> None:
        """Wait until there is one, and then for what comes soon after it, unless it is to end."""
        self._changed.wait_for(lambda: self._waiting or self._is_closing)
        self._changed.wait_for(
            lambda: len(self._waiting) >= MOST_WAITING // 2 or self._is_closing, self._pause_s
        )

    def _pass_on(self, opened: RunLogger, point: Point) -> bool:
        try:
            is_written = opened.log(point)
        except BaseException as error:  # as above
            logger.exception("%s raised", self.name)
            self._note(_describe(error), 1)
            return False
        if is_written:
            self._settle(1)
        return True

    def _close(self, opened: RunLogger) -> None:
        with self._changed:
            outcome, num_unsure = self._outcome, self._num_unsure
        try:
            opened.close(outcome)
        except BaseException as error:  # as above
            logger.exception("%s could not be closed", self.name)
            self._note(f"it could not be closed: {_describe(error)}", num_unsure)
        else:
            self._settle(num_unsure)

    def _settle(self, number: int) -> None:
        """So many are written, or dropped."""
        with self._changed:
            if not self._is_given_up:  # else they have been counted
                self._num_unsure -= number

    def _note(self, trouble: str, num_lost: int = 0) -> None:
        with self._changed:
            if not self._is_given_up:  # as above
                self._num_unsure -= num_lost
                self._drop(trouble, num_lost)


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
