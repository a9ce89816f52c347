"""Play out what befalls members that have come to their first commit."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

from tests.unit.coordination.fakes import settle
from tests.unit.coordination.test_epoch_control import FRESH, Scene

Played = TypeVar("Played", bound=Scene)
Play = Callable[[Callable[[Scene], Awaitable[None]]], Scene]


def play_from_first_commit(
    make: Callable[[], Played], act: Callable[[Played], Awaitable[None]]
) -> Played:
    """Make a scene in a loop of its own, and return it as it is once it has been acted on."""

    async def main() -> Played:
        scene = make()
        scene.control.open()
        await settle()
        scene.commit_everywhere(1)
        await act(scene)
        scene.control.close()
        return scene

    return asyncio.run(main())


def make_play(directory: Path) -> Play:
    """Return what plays an act in front of three members that have come there."""
    return lambda act: play_from_first_commit(lambda: Scene(directory, FRESH), act)
