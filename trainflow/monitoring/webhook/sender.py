"""Send documents one after the other on a thread of its own, so that nobody waits for a server.

What waits is bounded. What there is no room for, and what is not taken however often it is tried,
is dropped, counted, and told by whoever asks.

Process: coordinator.  Thread: its own, which ends with the process at the latest.
"""

import logging
import threading
from collections import deque

from trainflow.monitoring.webhook.backoff import Backoff
from trainflow.monitoring.webhook.post import Post, PostError

logger = logging.getLogger(__name__)

MOST_WAITING = 200


class WebhookSender:
    """One queue behind its thread."""

    def __init__(self, post: Post, backoff: Backoff | None = None):
        """Begin.

        Args:
            post: sends one document; called on the thread.
            backoff: how patiently each is tried.
        """
        self._post = post
        self._backoff = backoff or Backoff()
        self._waiting: deque[bytes] = deque()
        self._changed = threading.Condition()
        self._is_closing = self._is_given_up = False
        self._closing_waited_s = 0.0
        self._num_dropped = 0
        self._trouble = ""
        self._thread = threading.Thread(target=self._run, name="webhook", daemon=True)
        self._thread.start()

    @property
    def num_dropped(self) -> int:
        """Documents that nobody has taken."""
        with self._changed:
            return self._num_dropped

    @property
    def trouble(self) -> str:
        """Why the first was dropped; empty if none was."""
        with self._changed:
            return self._trouble

    def send(self, document: bytes) -> None:
        """Have a document sent soon; never waits."""
        with self._changed:
            if self._is_closing:
                self._drop("the run was over")
            elif len(self._waiting) >= MOST_WAITING:
                self._drop(f"the server is slow: {MOST_WAITING} events wait for it")
            else:
                self._waiting.append(document)
                self._changed.notify_all()

    def begin_closing(self) -> None:
        """Have it end once it has tried what waits; never waits.

        What is not taken is tried again for as long as `Backoff.closing_s`, and then no more.
        """
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()

    def wait_closed(self, timeout_s: float) -> bool:
        """Wait until it has ended; False if it has not in time, and what waits is lost."""
        self._thread.join(timeout_s)
        if not self._thread.is_alive():
            return True
        with self._changed:
            # One more is on its way; whether it arrives, nobody will know.
            self._drop("the server did not answer in time", len(self._waiting) + 1)
            self._waiting.clear()
            self._is_given_up = True
            self._changed.notify_all()
        return False

    def _drop(self, trouble: str, number: int = 1) -> None:
        self._num_dropped += number
        self._trouble = self._trouble or trouble

    # On its thread

    def _run(self) -> None:
        while (document := self._take()) is not None:
            trouble = self._try(document)
            with self._changed:
                if trouble and not self._is_given_up:  # else it has been counted
                    self._drop(trouble)

    def _take(self) -> bytes | None:
        """Wait for the next document; None once there are no more."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closing)
            return self._waiting.popleft() if self._waiting else None

    def _try(self, document: bytes) -> str:
        """Post a document until it is taken; returns why it was not, if it was not."""
        num_tried = 0
        while True:
            num_tried += 1
            try:
                self._post(document)
            except PostError as error:
                logger.warning("an event was not taken: %s", error)
                wait_s = self._backoff.decide_wait(num_tried) if error.may_pass else None
                if wait_s is None or not self._wait_for_next_try(wait_s):
                    return str(error)
            except BaseException as error:  # whatever it is, the next may be taken
                logger.exception("an event could not be sent")
                return type(error).__name__
            else:
                return ""

    def _wait_for_next_try(self, wait_s: float) -> bool:
        """Wait for so long, or for less once nothing else is to come; False if there is no time."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._is_closing, wait_s):
                return True
            closing_wait_s = self._backoff.decide_closing_wait(wait_s, self._closing_waited_s)
            if closing_wait_s is None:
                return False
            self._closing_waited_s += closing_wait_s
            return not self._changed.wait_for(lambda: self._is_given_up, closing_wait_s)
