"""Tasks that nobody awaits, none of which may fail unheard.

Process: coordinator.  Thread: its event loop.
"""

import asyncio
import logging
import traceback
from collections.abc import Callable, Coroutine
from typing import Any

logger = logging.getLogger(__name__)


class Background:
    """Runs coroutines, and tells of one that raises."""

    def __init__(self, on_error: Callable[[str], None]):
        """Take what is called with the traceback of a task that failed."""
        self._on_error = on_error
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, coroutine: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Run a coroutine beside everything else; the task may be cancelled."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._on_done)
        return task

    def cancel(self) -> None:
        """Have all that run end where they are."""
        for task in self._tasks:
            task.cancel()

    def _on_done(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            trace = "".join(traceback.format_exception(error))
            logger.error("a task of the coordinator failed:\n%s", trace)
            self._on_error(trace)
