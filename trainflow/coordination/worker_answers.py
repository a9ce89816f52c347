"""Whether anybody answers on a node whose Keeper isn't heard.

A Keeper may stand still on a node that is well, or the node may be cut off. The workers there tell
which: they answer calls whatever their training does.

Process: coordinator.  Thread: its event loop; each question is a task.  Fails: never; who doesn't
answer hasn't.
"""

import asyncio
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from ray.exceptions import RayError

from trainflow.clock import Clock
from trainflow.coordination.wakefulness import Wakefulness


class WorkerAnswers:
    """What was asked of workers, by node, since its Keeper was heard last."""

    def __init__(self, clock: Clock, awake: Wakefulness):
        self._clock = clock
        self._awake = awake
        self._answered_at_s: dict[str, float] = {}
        self._asking: dict[str, dict[str, asyncio.Task[None]]] = defaultdict(dict)

    def ask(self, node_id: str, actors: Mapping[str, Any]) -> None:
        """Ask workers of a node, by worker id, but those who have yet to answer."""
        asking = self._asking[node_id]
        for worker_id, actor in actors.items():
            if worker_id not in asking or asking[worker_id].done():
                asking[worker_id] = asyncio.create_task(self._ask(node_id, actor))

    def forget(self, node_id: str) -> None:
        """Its Keeper is heard again, or the node is given up."""
        self._answered_at_s.pop(node_id, None)
        for task in self._asking.pop(node_id, {}).values():
            task.cancel()

    def were_asked(self, node_id: str) -> bool:
        """Whether there was anybody to ask."""
        return bool(self._asking.get(node_id))

    def have_come(self, node_id: str, within_s: float) -> bool:
        """Whether somebody there has answered so lately."""
        answered_at_s = self._answered_at_s.get(node_id)
        if answered_at_s is None:
            return False
        return self._awake.age_s(answered_at_s, self._clock.monotonic_s()) <= within_s

    async def _ask(self, node_id: str, actor: Any) -> None:  # noqa: ANN401  an actor handle
        try:
            await actor.describe.remote()
        except RayError:
            return
        self._answered_at_s[node_id] = self._clock.monotonic_s()
