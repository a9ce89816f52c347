"""Have Keepers clean their nodes up at the end of a run.

Process: coordinator.  Thread: its event loop.
"""

import asyncio
from collections.abc import Iterable
from typing import Any

from ray.exceptions import ActorDiedError, RayError

_ASK_AGAIN_AFTER_S = 0.2


async def clean_up(keepers: Iterable[Any], timeout_s: float) -> None:
    """Have these clean up, and wait for them, but no longer than that."""
    cleaning = [asyncio.ensure_future(_clean_one(keeper)) for keeper in keepers]
    if not cleaning:
        return
    _, late = await asyncio.wait(cleaning, timeout=timeout_s)
    for task in late:
        task.cancel()


async def _clean_one(keeper: Any) -> None:  # noqa: ANN401  an actor handle
    """Have a Keeper clean its node up; one that has just died is asked again once it is back."""
    while True:
        try:
            return await keeper.clean_up.remote()
        except ActorDiedError:
            return None  # for good: it was ended, or its node is gone
        except RayError:
            await asyncio.sleep(_ASK_AGAIN_AFTER_S)
