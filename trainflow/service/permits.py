"""That a token lets its bearer in, looked at anew while an answer goes on: it may be revoked.

Process: a replica of the service.  Thread: its event loop; tokens are looked up in another.
"""

import logging
from collections.abc import Callable

from anyio import to_thread

from trainflow.clock import Clock
from trainflow.errors import HistoryError

logger = logging.getLogger(__name__)

CHECKED_EVERY_S = 60.0


class Permit:
    """Of one request."""

    def __init__(self, check: Callable[[], object], clock: Clock):
        """Count it as given just now; ``check`` raises TokenRefusedError once it is no more."""
        self._check = check
        self._clock = clock
        self._checked_at_s = clock.monotonic_s()

    async def require(self) -> None:
        """Return if it counts, as of a minute ago at most; or if the history doesn't say.

        Raises:
            TokenRefusedError: the token was revoked, or has expired.
        """
        if self._clock.monotonic_s() - self._checked_at_s < CHECKED_EVERY_S:
            return
        try:
            await to_thread.run_sync(self._check)
        except HistoryError as error:
            logger.info("a token is not looked at again: %s", error)
        self._checked_at_s = self._clock.monotonic_s()
