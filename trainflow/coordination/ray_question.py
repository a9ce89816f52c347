"""Ask Ray's head what it may not answer: whoever asks waits, and nobody else does.

Process: coordinator.  Thread: its event loop; an open question has one beside it, which doesn't
hold up the end of the process.
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Generic, TypeVar

Answer = TypeVar("Answer")

ANSWER_WITHIN_S = 10.0


class RayQuestion(Generic[Answer]):
    """One question, open once at a time: a head that is silent holds one thread, not many."""

    def __init__(self, within_s: float | None = ANSWER_WITHIN_S):
        """Have an answer be waited for so long; None: however long it takes."""
        self._within_s = within_s
        self._open: asyncio.Future[Answer] | None = None

    async def ask(self, find: Callable[[], Answer]) -> Answer:
        """Return the answer; where the question is open since before, the one to that.

        Args:
            find: asks, the same each time; blocks.

        Raises:
            TimeoutError: there is none yet.
            Exception: whatever comes of asking.
        """
        if self._open is None:
            self._open = asyncio.get_running_loop().create_future()
            asking = threading.Thread(target=self._run, args=(find, self._open), daemon=True)
            asking.start()
        question = self._open
        await asyncio.wait({question}, timeout=self._within_s)
        if not question.done():
            raise TimeoutError(f"Ray's head has not answered within {self._within_s:g} s")
        if self._open is question:
            self._open = None
        return question.result()

    def _run(self, find: Callable[[], Answer], question: "asyncio.Future[Answer]") -> None:
        try:
            settle = partial(question.set_result, find())
        except Exception as error:  # noqa: BLE001  whoever asks is told
            settle = partial(question.set_exception, error)
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            question.get_loop().call_soon_threadsafe(settle)


async def ask_patiently(find: Callable[[], Answer]) -> Answer:
    """Return the answer, however long that takes.

    Args:
        find: asks; blocks.

    Raises:
        Exception: whatever comes of asking.
    """
    return await RayQuestion[Answer](within_s=None).ask(find)
