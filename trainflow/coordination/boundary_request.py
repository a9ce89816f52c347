"""Ask members to do something at the end of a step, until one of them has heard it.

That one's commit record tells the others. A request that is lost would leave all of them training,
and the coordinator waiting for the end of a step that is like any other.

Process: coordinator.  Thread: a task of its event loop.  Fails: never; it is asked again.
"""

import asyncio
import itertools
import logging
from collections.abc import Sequence
from typing import Any

from ray.exceptions import RayError

from trainflow.coordination.worker_pool import WorkerPool
from trainflow.epochs import Flag

logger = logging.getLogger(__name__)

_ANSWER_WITHIN_S = 2.0
_AGAIN_AFTER_S = 1.0


class BoundaryRequest:
    """What the members of an epoch are asked for now, if anything."""

    def __init__(self, pool: WorkerPool):
        self._pool = pool
        self._asking: asyncio.Task[None] | None = None

    def begin(self, flag: Flag, members: Sequence[str]) -> None:
        """Ask from now on, and for nothing else.

        Args:
            flag: what for.
            members: worker ids; one after the other is asked.
        """
        self.end()
        self._asking = asyncio.create_task(self._ask(flag, members))

    def end(self) -> None:
        """Ask no more: they have stopped, or their epoch is broken."""
        if self._asking is not None:
            self._asking.cancel()
            self._asking = None

    async def _ask(self, flag: Flag, members: Sequence[str]) -> None:
        for worker_id in itertools.cycle(members):
            entry = self._pool.entries.get(worker_id)
            if entry is not None and await _is_heard(entry.actor, flag):
                return
            await asyncio.sleep(_AGAIN_AFTER_S)


async def _is_heard(actor: Any, flag: Flag) -> bool:  # noqa: ANN401  an actor handle
    try:
        async with asyncio.timeout(_ANSWER_WITHIN_S):  # `wait_for` may swallow that it is cancelled
            await actor.request.remote(flag)
    except (RayError, TimeoutError) as error:
        logger.info("a member could not be asked for %s: %s", flag, error)
        return False
    except Exception:
        logger.exception("a member could not be asked for %s", flag)
        return False
    return True
