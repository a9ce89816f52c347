"""Start more workers where nodes have room for them, until there are as many as a run may have.

They come after what the run has begun with: because nodes have joined the cluster, or another job
has ended, or since workers on nodes that are to go don't count.

Process: coordinator.  Thread: its event loop; Ray is asked in another.  Fails: never; the run goes
on with what it has.
"""

from collections import Counter
from collections.abc import Mapping

from trainflow.clock import Clock
from trainflow.config.job import JobConfig
from trainflow.coordination.bundles import describe_bundle
from trainflow.coordination.epoch_control import EpochControl
from trainflow.coordination.node_watch import NodeWatch
from trainflow.coordination.placement import choose_room
from trainflow.coordination.ray_question import RayQuestion
from trainflow.coordination.ray_room import find_room
from trainflow.coordination.staffing import Staffing
from trainflow.coordination.worker_pool import WorkerPool

_LOOK_EVERY_S = 2.0
_PLACE_WITHIN_S = 5.0


class Expansion:
    """Adds one bundle after the other, each with a worker."""

    def __init__(
        self,
        job: JobConfig,
        pool: WorkerPool,
        nodes: NodeWatch,
        control: EpochControl,
        staffing: Staffing,
        clock: Clock,
    ):
        self._workers = job.workers
        self._pool = pool
        self._nodes = nodes
        self._control = control
        self._staffing = staffing
        self._clock = clock
        self._look_at_s = 0.0
        self._is_busy = False
        self._room = RayQuestion[dict[str, dict[str, float]]]()

    async def tick(self) -> None:
        """Add a bundle if one is wanted and there is room; called about twice a second."""
        if self._is_busy or self._clock.monotonic_s() < self._look_at_s:
            return
        self._is_busy = True
        try:
            self._look_at_s = self._clock.monotonic_s() + _LOOK_EVERY_S
            if await self._add_one():
                self._look_at_s = 0.0
        finally:
            self._is_busy = False

    async def _add_one(self) -> bool:
        """Return whether there was room for one that was wanted."""
        placed = await self._pool.look_at_bundles()
        if self._control.epoch is None or not self._nodes.alive:
            return False
        for number in await self._drop_lost(placed):
            placed.pop(number, None)
        if not self._are_missing(placed):
            return False
        node_id = await self._find_room(Counter(placed.values()))
        # Meanwhile a node may have gone, whose bundles Ray is to place where there is room now.
        if node_id is None or not self._are_missing(placed):
            return False
        await self._nodes.ensure({node_id})
        number = await self._pool.bundles.add(node_id, _PLACE_WITHIN_S)
        if number is None:
            return False
        await self._staffing.respawn(number, self._control.incarnation)
        return True

    def _are_missing(self, placed: Mapping[int, str]) -> bool:
        """Whether bundles are too few, without those on nodes that are there and take no ranks.

        A node that isn't heard will be, or Ray gives it up: what was on it is placed elsewhere.
        """
        unfit = self._nodes.unfit
        lasting = (unfit.all() - unfit.unheard).intersection(self._nodes.alive)
        num_lost = sum(node in lasting for node in placed.values())
        return self._pool.num_bundles() - num_lost < self._workers.most + self._workers.spares

    async def _find_room(self, load: Counter[str]) -> str | None:
        free = await self._room.ask(find_room)
        known = self._nodes.alive.keys() & free.keys()
        fit = {node: free[node] for node in sorted(known) if self._staffing.takes_more(node)}
        return choose_room(fit, describe_bundle(self._workers.resources), load)

    async def _drop_lost(self, placed: Mapping[int, str]) -> list[int]:
        """Give up what was added on nodes that are gone, with workers that wait to start there."""
        lost = self._pool.bundles.find_lost(placed, self._nodes.alive)
        for number in lost:
            for entry in list(self._pool.entries.values()):
                if entry.bundle == number and entry.description is None:
                    self._staffing.withdraw(entry)
            await self._pool.bundles.drop(number)
        return lost
