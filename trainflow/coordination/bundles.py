"""Where a run's workers are: bundles of resources on nodes, which Ray reserves.

Those of the start are in one placement group, spread over the nodes; Ray places one that was lost
on another node. Each that came later is a group by itself, bound to its node and gone with it.

Process: coordinator.  Thread: its event loop, but `nodes`, which blocks until Ray's head answers;
the others ask it in another.  Blocks: never.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial

from ray.util.placement_group import (
    PlacementGroup,
    get_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from trainflow.config.job import ResourcesConfig
from trainflow.coordination import names
from trainflow.coordination.ray_question import ANSWER_WITHIN_S, ask_patiently

_NODE_LABEL = "ray.io/node-id"
_REMOVED = "REMOVED"


class Bundles:
    """The bundles of one run, by number."""

    def __init__(self, job_id: str, resources: ResourcesConfig):
        self._name = names.placement_group_name(job_id)
        self._resources = describe_bundle(resources)
        self._first: PlacementGroup | None = None
        self._added: dict[int, PlacementGroup] = {}
        self._newest = -1  # the highest number that was ever given: none is given twice
        self._is_given_back = False
        self._making = asyncio.Lock()

    async def reserve(self, count: int) -> None:
        """Create the first group, unless one was found, and wait until it is placed."""
        await (await asyncio.shield(self._make_first(count))).ready()

    async def _make_first(self, count: int) -> PlacementGroup:
        async with self._making:
            if self._first is None:
                bundles = [self._resources] * count
                how = {"strategy": "SPREAD", "name": self._name, "lifetime": "detached"}
                self._first = await ask_patiently(partial(placement_group, bundles, **how))
                if self._is_given_back:
                    await _remove([self._first])
            return self._first

    async def find(self) -> bool:
        """Take over the bundles of an earlier coordinator; False if there are none."""
        found = await ask_patiently(partial(_find_groups, self._name))
        if found is None:
            return False
        self._first, self._added = found
        return True

    def numbers(self) -> set[int]:
        """Return the numbers of all of them, placed or not; none before `reserve` or `find`."""
        num_first = 0 if self._first is None else len(self._first.bundle_specs)
        return {*range(num_first), *self._added}

    def nodes(self) -> dict[int, str]:
        """Return the node of each bundle that is placed."""
        placed = _nodes_of(self._require_first())
        for number, group in list(self._added.items()):
            node_id = _nodes_of(group).get(0)
            if node_id is not None:
                placed[number] = node_id
        return placed

    def place(self, number: int) -> PlacementGroupSchedulingStrategy:
        """Return what has an actor placed in a bundle."""
        group = self._added.get(number)
        if group is not None:
            return PlacementGroupSchedulingStrategy(group, 0)
        return PlacementGroupSchedulingStrategy(self._require_first(), number)

    async def add(self, node_id: str, within_s: float) -> int | None:
        """Reserve one more on a node; returns its number; None if the room, or the run, is gone."""
        return await asyncio.shield(self._add(node_id, within_s))

    async def _add(self, node_id: str, within_s: float) -> int | None:
        async with self._making:
            number = max(self._newest, *self.numbers()) + 1
            how = {"name": f"{self._name}/{number}", "lifetime": "detached"}
            where = [{_NODE_LABEL: node_id}]
            make = partial(placement_group, [self._resources], bundle_label_selector=where, **how)
            group = await ask_patiently(make)
            done, _ = await asyncio.wait({asyncio.ensure_future(group.ready())}, timeout=within_s)
            if not done or self._is_given_back:
                await _remove([group])
                return None
            self._added[number] = group
            self._newest = number
            return number

    def find_lost(self, placed: Mapping[int, str], alive: Collection[str]) -> list[int]:
        """Return those that are bound to a node that is gone.

        Args:
            placed: nodes by number, as `nodes` has them.
            alive: nodes that aren't gone.
        """
        return [number for number in self._added if placed.get(number) not in alive]

    async def drop(self, number: int) -> None:
        """Give one up that was added."""
        await _remove([self._added.pop(number)])

    async def give_back(self) -> None:
        """Let others have all of them; if Ray's head is silent, it hears of that once it is not."""
        self._is_given_back = True
        first = [] if self._first is None else [self._first]
        with suppress(TimeoutError):
            async with asyncio.timeout(ANSWER_WITHIN_S):
                # The first one last: by it a coordinator that comes back finds the others.
                await _remove([*self._added.values(), *first])

    def _require_first(self) -> PlacementGroup:
        assert self._first is not None, "reserve() or find() comes first"
        return self._first


def describe_bundle(resources: ResourcesConfig) -> dict[str, float]:
    """Return what a bundle reserves; where a worker needs nothing, as little as there can be."""
    named: dict[str, float] = {k: v for k, v in resources.model_dump().items() if v}
    return named or {"CPU": 0.001}


async def _remove(groups: Sequence[PlacementGroup]) -> None:
    await ask_patiently(lambda: [remove_placement_group(group) for group in groups])


def _find_groups(first_name: str) -> tuple[PlacementGroup, dict[int, PlacementGroup]] | None:
    """Return the first group and, by number, those that were added; None if there are none."""
    try:
        first = get_placement_group(first_name)
    except ValueError:
        return None
    added: dict[int, PlacementGroup] = {}
    prefix = f"{first_name}/"
    for entry in placement_group_table().values():
        name: str = entry["name"]
        if name.startswith(prefix) and entry["state"] != _REMOVED:
            with suppress(ValueError):  # it was removed meanwhile
                added[int(name.removeprefix(prefix))] = get_placement_group(name)
    return first, added


def _nodes_of(group: PlacementGroup) -> dict[int, str]:
    table = placement_group_table(group)
    placed: dict[int, str] = table["bundles_to_node_id"]
    return {bundle: node for bundle, node in placed.items() if node}
