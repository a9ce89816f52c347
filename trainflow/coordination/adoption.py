"""Take office as coordinator, and take over what an earlier one left.

The order is what makes it safe: first the office, so that no other coordinator changes anything,
then the questions, so that every answer is of now, and the epoch last, from the answers alone.

Process: coordinator.  Thread: its event loop.
"""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, cast

import ray
from ray.exceptions import RayError
from ray.util import list_named_actors

from trainflow.clock import Clock
from trainflow.coordination import names
from trainflow.coordination.epoch_control import EpochControl
from trainflow.coordination.lease import is_majority
from trainflow.coordination.messages import WorkerDescription
from trainflow.coordination.node_watch import NodeWatch
from trainflow.coordination.worker_pool import WorkerPool, ask_description
from trainflow.epochs import EpochSpec
from trainflow.errors import CoordinationError

_ANSWER_WITHIN_S = 2.0
_PROMISE_WITHIN_S = 5.0
_OFFICE_WITHIN_S = 120.0
_ASK_AGAIN_AFTER_S = 0.2


@dataclass(frozen=True)
class Estate:
    """What a new coordinator has to see to.

    Attributes:
        lost: workers that can't take part, and why.
        unheard: workers that may still be starting: they haven't answered, and none relies on them.
        vacant: bundles in which no worker was found.
    """

    lost: dict[str, str]
    unheard: frozenset[str]
    vacant: frozenset[int]


def find_workers(job_id: str) -> dict[str, Any]:
    """Return handles of a job's workers by worker id."""
    return _find_actors(names.worker_name(job_id, ""))


def find_keeper_nodes(job_id: str) -> set[str]:
    """Return the ids of the nodes that have a Keeper of this job."""
    return set(_find_actors(names.keeper_name(job_id, "")))


def find_remains(job_id: str, pool: WorkerPool, nodes: NodeWatch) -> None:
    """Find what a coordinator that died while it cleaned up has left."""
    pool.bundles.find()
    for worker_id, actor in find_workers(job_id).items():
        pool.adopt(worker_id, actor)
    nodes.ensure(find_keeper_nodes(job_id))


async def take_office(nodes: NodeWatch, control: EpochControl, clock: Clock) -> None:
    """Become the one incarnation that a majority of Keepers obeys.

    A Keeper on a node that Ray has given up does not count: its raylet ends itself. Those of an
    earlier attempt are gone; what they have promised is in the record, as far as it formed epochs.

    Raises:
        CoordinationError: no majority answered in time.
    """
    incarnation = control.incarnation + 1
    deadline_s = clock.monotonic_s() + _OFFICE_WITHIN_S
    while True:
        earlier = await nodes.promise(incarnation, _PROMISE_WITHIN_S)
        num_granted = sum(promised < incarnation for promised in earlier)
        if num_granted and is_majority(num_granted - 1, nodes.num_keepers - 1):
            control.incarnation = incarnation
            return
        if clock.monotonic_s() > deadline_s:
            raise CoordinationError(
                f"the coordinator could not take office: got an answer from {len(earlier)} of "
                f"{nodes.num_keepers} Keepers within {_OFFICE_WITHIN_S:.0f} s, expected one from "
                "more than half; look for nodes that are cut off from the head (ray status)"
            )
        incarnation = max([incarnation, *earlier]) + 1
        nodes.forget_dead()
        await asyncio.sleep(_ASK_AGAIN_AFTER_S)


async def adopt(
    found: Mapping[str, Any],
    pool: WorkerPool,
    nodes: NodeWatch,
    control: EpochControl,
    clock: Clock,
) -> Estate:
    """Take office, ask the workers of an earlier coordinator where they stand, take over its epoch.

    Args:
        found: their handles by worker id.
        pool: watches them from now on.
        nodes: knows the Keepers.
        control: takes the epoch over.
        clock: measures.

    Raises:
        CoordinationError: no majority of Keepers answered in time.
    """
    entries = [pool.adopt(worker_id, actor) for worker_id, actor in found.items()]
    vacant = pool.bundles.numbers() - {entry.bundle for entry in entries}
    await take_office(nodes, control, clock)
    for entry in entries:
        entry.actor.run.remote()  # the call may have been lost with who had made it
    asked_at_s = clock.monotonic_s()
    answers = await asyncio.gather(*[ask_description(a, _ANSWER_WITHIN_S) for a in found.values()])
    descriptions = {answer.worker_id: answer for answer in answers if answer is not None}
    # From here on nothing waits: a worker that is gone by now has left the pool.
    for description in descriptions.values():
        nodes.ensure({description.node_id})
        if description.ready:
            pool.describe(description)
        if description.standing is not None and description.standing.finished:
            control.on_finished(description.worker_id)
    newest = _newest_spec(descriptions.values())
    if newest is not None:
        intact = all(
            member in pool.entries and _trains_in(newest, descriptions.get(member))
            for member in newest.members
        )
        control.take_over(newest, intact=intact, seen_at_s=asked_at_s)
    relied_on = () if newest is None else newest.members
    unheard = (found.keys() & pool.entries.keys()) - descriptions.keys()
    lost = dict.fromkeys(unheard & {*relied_on}, "it did not answer the new coordinator") | {
        worker_id: "its training was over while the run was not"
        for worker_id, description in descriptions.items()
        if description.returned
    }
    return Estate(lost, frozenset(unheard - lost.keys()), frozenset(vacant))


async def hear_later(
    worker_id: str, pool: WorkerPool, on_ready: Callable[[WorkerDescription], None]
) -> None:
    """Wait for a worker that is starting; one that hangs is for the detectors."""
    entry = pool.entries.get(worker_id)
    description = None if entry is None else await ask_description(entry.actor, None)
    if description is not None and description.ready:
        on_ready(description)


def _newest_spec(descriptions: Collection[WorkerDescription]) -> EpochSpec | None:
    specs = [description.spec for description in descriptions if description.spec is not None]
    return max(specs, key=lambda spec: spec.epoch, default=None)


def _trains_in(spec: EpochSpec, description: WorkerDescription | None) -> bool:
    if description is None or description.spec != spec or not description.has_begun:
        return False
    if description.failure is not None:
        return False
    standing = description.standing
    return standing.finished if standing is not None else not description.returned


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
