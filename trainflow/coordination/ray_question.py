"""Ask Ray's head, or actors, what they may not answer: whoever asks waits, and nobody else does.

Process: coordinator.  Thread: its event loop; an open question has one beside it, which doesn't
hold up the end of the process.
"""

import asyncio
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Generic, TypeVar

Answer = TypeVar("Answer")
Key = TypeVar("Key")

ANSWER_WITHIN_S = 10.0


class RayQuestion(Generic[Answer]):
    """One question, open once at a time: a head that is silent holds one thread, not many."""

    def __init__(self, within_s: float | None = ANSWER_WITHIN_S):
        """Have an answer be waited for so long; None: however long it takes."""
        self._within_s = within_s
        self._open: asyncio.Future[Answer] | None = None
        self._answered_at_s = 0.0

    async def ask(self, find: Callable[[], Answer]) -> Answer:
        """Return the answer; where the question is open since before, the one to that.

        So is one that has come since, for as long as an answer is waited for.

        Args:
            find: asks, the same each time; blocks.

        Raises:
            TimeoutError: there is none yet.
            Exception: whatever comes of asking.
        """
        if self._open is None or self._is_old(self._open):
            self._open = self._begin(find)
        question = self._open
        await asyncio.wait({question}, timeout=self._within_s)
        if not question.done():
            raise TimeoutError(f"Ray's head has not answered within {self._within_s:g} s")
        if self._open is question:
            self._open = None
        return question.result()

    def _is_old(self, question: "asyncio.Future[Answer]") -> bool:
        """Whether its answer came long ago, and nobody has taken it."""
        age_s = question.get_loop().time() - self._answered_at_s
        return question.done() and self._within_s is not None and age_s > self._within_s

    def _begin(self, find: Callable[[], Answer]) -> "asyncio.Future[Answer]":
        question: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        question.add_done_callback(self._note_answer)
        threading.Thread(target=self._run, args=(find, question), daemon=True).start()
        return question

    def _note_answer(self, question: "asyncio.Future[Answer]") -> None:
        self._answered_at_s = question.get_loop().time()
        if not question.cancelled():
            question.exception()  # whether anybody takes it or not

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


async def take_answers(
    asked: Mapping["asyncio.Future[Answer]", Key], timeout_s: float
) -> dict[Key, Answer]:
    """Return what actors answer in time, in the order of asking; what fails is left out."""
    done = (await asyncio.wait(asked, timeout=timeout_s))[0] if asked else set()
    return {
        key: task.result()
        for task, key in asked.items()
        if task in done and task.exception() is None
    }
