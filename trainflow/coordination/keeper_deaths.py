"""Which Keepers' processes have died alone, as Ray tells, or were ended.

Ray starts a Keeper again at once, which takes seconds on a busy machine. Until it is back its node
says nothing, though nothing else may be wrong there.

Process: coordinator.  Thread: its event loop.  Fails: never; what isn't heard leaves a node whose
silence counts.
"""

import asyncio
import logging
from typing import Any

import ray
from ray.exceptions import ActorDiedError, RayError

from trainflow.clock import Clock

logger = logging.getLogger(__name__)

BACK_WITHIN_S = 30.0
_ASK_AGAIN_AFTER_S = 0.2
_HEARD_LATE_BY_S = 5.0  # at most: what one said right before it died


class KeeperDeaths:
    """Follows each Keeper with a call that never returns, and fails when its process dies.

    That takes a network that tells: of a node that is cut off nothing is heard, this neither.
    """

    def __init__(self, clock: Clock):
        self._clock = clock
        self._died_at_s: dict[str, float] = {}
        self._following: dict[str, asyncio.Task[None]] = {}

    def follow(self, node_id: str, keeper: Any) -> None:  # noqa: ANN401  an actor handle
        """Begin to follow a node's Keeper."""
        following = asyncio.get_running_loop().create_task(self._follow(node_id, keeper))
        self._following[node_id] = following

    def forget(self, node_id: str) -> None:
        """Follow it no more."""
        self._died_at_s.pop(node_id, None)
        following = self._following.pop(node_id, None)
        if following is not None:
            following.cancel()

    def end(self, node_id: str, keeper: Any) -> None:  # noqa: ANN401  an actor handle
        """End one that stands still, so that Ray starts it again.

        A stopped process Ray ends 5 s later. Of one that can't be reached it ends nothing.
        """
        try:
            ray.kill(keeper, no_restart=False)
        except RayError:
            logger.exception("the Keeper of %s could not be ended", node_id)
            return  # its silence counts
        self._died_at_s[node_id] = self._clock.monotonic_s()

    def note_heard(self, node_id: str, *, is_new: bool) -> None:
        """It was heard: it is a new process, or has not died after all.

        Args:
            node_id: its node.
            is_new: it does not know of any other.
        """
        died_at_s = self._died_at_s.get(node_id)
        if died_at_s is None:
            return
        if is_new or self._clock.monotonic_s() > died_at_s + _HEARD_LATE_BY_S:
            del self._died_at_s[node_id]

    def is_coming_back(self, node_id: str) -> bool:
        """Whether it died so lately that it may still be starting; twice in a row gives no more."""
        died_at_s = self._died_at_s.get(node_id)
        return died_at_s is not None and self._clock.monotonic_s() < died_at_s + BACK_WITHIN_S

    async def _follow(self, node_id: str, keeper: Any) -> None:  # noqa: ANN401  as above
        while True:
            try:
                await keeper.wait_exit.remote()
            except ActorDiedError:
                return  # for good: it was ended, or its node is gone
            except RayError:
                self._died_at_s.setdefault(node_id, self._clock.monotonic_s())
            await asyncio.sleep(_ASK_AGAIN_AFTER_S)
