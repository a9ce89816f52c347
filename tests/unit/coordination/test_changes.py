"""Something that changes wakes those that wait for it, each time anew."""

import asyncio

import pytest

from tests.unit.coordination.fakes import settle
from trainflow.coordination.changes import Changes


def test_all_that_wait_are_woken_and_who_comes_later_waits_for_the_next_time():
    async def main() -> None:
        changes = Changes()
        changes.tell()
        waiting = [asyncio.ensure_future(changes.wait(60.0)) for _ in range(2)]
        await settle()
        assert not any(task.done() for task in waiting), "what was told before counts no more"
        changes.tell()
        await asyncio.wait_for(asyncio.gather(*waiting), 30.0)

    asyncio.run(main())


def test_one_that_does_not_come_is_waited_for_no_longer_than_asked():
    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await Changes().wait(60.0)
        await asyncio.wait_for(Changes().wait(0.01), 30.0)

    asyncio.run(main())
