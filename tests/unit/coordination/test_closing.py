"""What a run that has ended still waits for."""

import asyncio
from typing import Any, cast

import pytest

from trainflow.coordination.closing import close_run
from trainflow.coordination.run_state import STOPPED, SUCCESS, Ending, RunState

FAILED = Ending(RunState.FAILED, "it failed", 1)


class Part:
    """Notes what is asked of it."""

    def __init__(self, calls: list[str]):
        self._calls = calls

    def close(self, *_within_s: float) -> asyncio.Future[None]:
        return self._note("close")

    def wait_heard(self) -> asyncio.Future[None]:
        return self._note("heard")

    def wait_coming(self) -> asyncio.Future[None]:
        return self._note("coming")

    def _note(self, call: str) -> asyncio.Future[None]:
        self._calls.append(call)
        done = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done


@pytest.mark.parametrize(("ending", "waits"), [(SUCCESS, False), (STOPPED, True), (FAILED, True)])
def test_what_keepers_hold_is_seen_into_the_store_before_they_end(ending: Ending, *, waits: bool):
    """Of a run that is stopped, the coordinator may have come when its members had left."""
    calls: list[str] = []

    async def act() -> None:
        part = cast("Any", Part(calls))
        await close_run(ending, part, part, part, part)

    asyncio.run(act())
    assert calls == ["close", "close", *(["heard", "coming"] if waits else []), "close", "close"]
