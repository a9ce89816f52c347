"""Who is told of each event and each committed step of a run, right after it is recorded.

What follows a run explains it, and is never needed to go on: one that raises is told no more, and
an event says so.

Process: coordinator.  Thread: its event loop.  Blocks: never.  Fails: never.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from trainflow.computation.reports import StepReport

logger = logging.getLogger(__name__)


class Follower(Protocol):
    """Takes what a run does, as it is recorded: each event and each step once, in their order."""

    def on_event(self, event: Mapping[str, Any]) -> None:
        """An event was recorded; see `messages.Event`."""
        ...

    def on_step(self, report: StepReport) -> None:
        """A committed step was recorded: one that is new, and of no history that is void."""
        ...


class Followers:
    """All of one run."""

    def __init__(self) -> None:
        self._followers: list[Follower] = []

    def add(self, follower: Follower) -> None:
        """Tell one more, of what is recorded from now on."""
        self._followers.append(follower)

    def on_event(self, event: Mapping[str, Any]) -> list[str]:
        """Tell of an event; returns the names of those that could not take it."""
        return self._tell(lambda follower: follower.on_event(event))

    def on_step(self, report: StepReport) -> list[str]:
        """Tell of a step; returns the names of those that could not take it."""
        return self._tell(lambda follower: follower.on_step(report))

    def _tell(self, tell: Callable[[Follower], None]) -> list[str]:
        failed: list[str] = []
        for follower in tuple(self._followers):
            try:
                tell(follower)
            except Exception:  # whatever it is, training goes on
                name = type(follower).__name__
                logger.exception("%s is told no more", name)
                self._followers.remove(follower)
                failed.append(name)
        return failed
