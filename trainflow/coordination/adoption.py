"""Take office as coordinator: a number that no other has, and what an earlier one left.

Process: coordinator.  Thread: its event loop.
"""

import asyncio
import contextlib
from dataclasses import dataclass
from typing import Any, cast

import ray
from ray.exceptions import RayError
from ray.util import list_named_actors

from trainflow.coordination import names
from trainflow.coordination.epoch_control import EpochControl
from trainflow.coordination.lease import is_majority
from trainflow.coordination.messages import WorkerDescription
from trainflow.coordination.node_watch import NodeWatch
from trainflow.coordination.worker_pool import WorkerPool, ask_description

_ANSWER_WITHIN_S = 2.0
_PROMISE_WITHIN_S = 20.0
_OFFICE_WITHIN_S = 120.0


@dataclass(frozen=True)
class Estate:
    """What a new coordinator found wrong.

    Attributes:
        silent: workers that did not answer.
        vacant: bundles without a worker.
    """

    silent: frozenset[str]
    vacant: frozenset[int]


async def take_office(nodes: NodeWatch, control: EpochControl) -> None:
    """Become the one incarnation that a majority of Keepers obeys.

    Raises:
        TimeoutError: no majority answered in time.
    """
    incarnation = 1
    async with asyncio.timeout(_OFFICE_WITHIN_S):
        while True:
            earlier = await nodes.promise(incarnation, _PROMISE_WITHIN_S)
            num_granted = sum(promised < incarnation for promised in earlier)
            if num_granted and is_majority(num_granted - 1, nodes.num_keepers - 1):
                control.incarnation = incarnation
                return
            incarnation = max([incarnation, *earlier]) + 1


async def adopt(job_id: str, pool: WorkerPool, nodes: NodeWatch, control: EpochControl) -> Estate:
    """Find the workers of an earlier coordinator and take over their epoch, if it still runs."""
    found = _find_actors(names.worker_name(job_id, ""))
    for worker_id, actor in found.items():
        pool.adopt(worker_id, actor)
    answers = await asyncio.gather(*[ask_description(a, _ANSWER_WITHIN_S) for a in found.values()])
    descriptions = [answer for answer in answers if answer is not None]
    kept = _find_actors(names.keeper_name(job_id, "")).keys()
    nodes.ensure({description.node_id for description in descriptions} | kept)
    await take_office(nodes, control)
    for description in descriptions:
        if description.ready:
            pool.describe(description)
        if description.standing is not None and description.standing.finished:
            control.on_finished(description.worker_id)
    _take_over_epoch(descriptions, control)
    answered = {description.worker_id for description in descriptions}
    occupied = {entry.bundle for entry in pool.entries.values()}
    return Estate(
        silent=frozenset(found.keys() - answered),
        vacant=frozenset(set(range(pool.num_bundles())) - occupied),
    )


def _take_over_epoch(descriptions: list[WorkerDescription], control: EpochControl) -> None:
    specs = [description.spec for description in descriptions if description.spec is not None]
    if not specs:
        return
    newest = max(specs, key=lambda spec: spec.epoch)
    holding = {d.worker_id: d for d in descriptions if d.spec == newest}
    intact = all(member in holding and _is_training(holding[member]) for member in newest.members)
    control.take_over(newest, intact=intact)


def _is_training(description: WorkerDescription) -> bool:
    standing = description.standing
    return description.failure is None and (standing is None or standing.finished)


def _find_actors(prefix: str) -> dict[str, Any]:
    """Return handles of the actors whose names begin with ``prefix``, by what follows it."""
    found: dict[str, Any] = {}
    # Ray annotates what it returns for one namespace: names alone.
    entries = cast("list[dict[str, str]]", list_named_actors(all_namespaces=True))
    for entry in entries:
        if entry["namespace"] == names.NAMESPACE and entry["name"].startswith(prefix):
            with contextlib.suppress(ValueError, RayError):  # gone since it was listed
                found[entry["name"].removeprefix(prefix)] = ray.get_actor(
                    entry["name"], names.NAMESPACE
                )
    return found
