"""Whether the history answers, for whoever wants to know it: asked once a second, however many do.

Nobody needs a token to ask, and no rate limit holds: it must not cost the database more than that,
nor keep threads while the database is slow.

Process: a replica of the service.  Thread: its event loop; the history is asked in another.
"""

import asyncio
from collections.abc import Callable

from anyio import to_thread

from trainflow.clock import Clock
from trainflow.errors import HistoryError

REMEMBERED_S = 1.0


class Readiness:
    """What the history has answered last."""

    def __init__(
        self, check: Callable[[], None], find_problem: Callable[[], str | None], clock: Clock
    ):
        """Remember nothing yet.

        Args:
            check: raises HistoryError if the history doesn't answer.
            find_problem: tells why it can't be kept up, None if it can; asked where it answers.
            clock: measures.
        """
        self._check = check
        self._find_problem = find_problem
        self._clock = clock
        self._asking = asyncio.Lock()
        self._asked_at_s: float | None = None
        self._trouble: str | None = None
        self._problem: str | None = None

    async def require(self) -> str | None:
        """Return if the history has answered within the last second, or does so now.

        Returns:
            Why it can't be kept up; None if it can.

        Raises:
            HistoryError: it has not.
        """
        async with self._asking:
            if self._is_due():
                self._trouble = await to_thread.run_sync(self._ask)
                self._asked_at_s = self._clock.monotonic_s()
        if self._trouble is not None:
            raise HistoryError(self._trouble)
        return self._problem

    def _is_due(self) -> bool:
        asked_at_s = self._asked_at_s
        return asked_at_s is None or self._clock.monotonic_s() - asked_at_s >= REMEMBERED_S

    def _ask(self) -> str | None:
        try:
            self._check()
        except HistoryError as error:
            return str(error)
        self._problem = self._find_problem()
        return None
