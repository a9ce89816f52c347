"""Something has changed: told to all that wait for it just then.

Process: coordinator.  Thread: its event loop.
"""

import asyncio
from contextlib import suppress


class Changes:
    """One thing that changes again and again."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def tell(self) -> None:
        """It has changed: wake all that wait; who waits from now on waits for the next time."""
        self._next.set()
        self._next = asyncio.Event()

    async def wait(self, at_most_s: float) -> None:
        """Wait until it changes, or for ``at_most_s`` seconds."""
        with suppress(TimeoutError):
            async with asyncio.timeout(at_most_s):
                await self._next.wait()
