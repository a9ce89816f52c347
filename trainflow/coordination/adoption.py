"""Take office as coordinator, and take over what an earlier one left.

The order is what makes it safe: first the office, so that no other coordinator changes anything,
then the questions, so that every answer is of now, and the epoch last, from the answers. Who is
slow to answer is no further from training than it was before: it keeps its rank, and is watched by
what it had said to the coordinator before. Whether it hangs or is cut off tell its pulse and its
node's lease, as at any other time.

Process: coordinator.  Thread: its event loop.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import ray
from ray.exceptions import RayError
from ray.util import list_named_actors

from trainflow.clock import Clock
from trainflow.coordination import names
from trainflow.coordination.epoch_control import EpochControl
from trainflow.coordination.late_answers import RETURNED
from trainflow.coordination.lease import is_majority
from trainflow.coordination.messages import WorkerDescription
from trainflow.coordination.node_watch import NodeWatch
from trainflow.coordination.ray_drains import LivingNode, find_alive_nodes
from trainflow.coordination.ray_question import RayQuestion, ask_patiently
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.staffing import Staffing
from trainflow.coordination.stop_order import STOPPING
from trainflow.coordination.worker_pool import WorkerEntry, WorkerPool, ask_description
from trainflow.epochs import INITIAL_EPOCH, EpochSpec
from trainflow.errors import CoordinationError

logger = logging.getLogger(__name__)

_ANSWER_WITHIN_S = 2.0
_ANSWER_AT_LAST_WITHIN_S = 10.0
_LOOK_EVERY_S = 0.2
_PROMISE_WITHIN_S = 5.0
_OFFICE_WITHIN_S = 120.0
_ASK_AGAIN_AFTER_S = 0.2


@dataclass(frozen=True)
class Estate:
    """What a new coordinator has to see to.

    Attributes:
        lost: workers that can't take part, and why.
        unheard: workers that haven't answered: they are slow, or still starting.
        vacant: bundles in which no worker was found.
        raised: what training functions have raised, by worker.
    """

    lost: dict[str, str]
    unheard: frozenset[str]
    vacant: frozenset[int]
    raised: dict[str, str] = field(default_factory=dict[str, str])


async def find_workers(job_id: str) -> dict[str, Any]:
    """Return handles of a job's workers by worker id."""
    return await ask_patiently(partial(_find_actors, names.worker_name(job_id, "")))


async def find_keeper_nodes(job_id: str) -> set[str]:
    """Return the ids of the nodes that have a Keeper of this job."""
    return {*await ask_patiently(partial(_find_actors, names.keeper_name(job_id, "")))}


async def find_nodes(job_id: str, staffing: Staffing, nodes: NodeWatch) -> bool:
    """Know the Keepers of an earlier coordinator, and have one wherever there is a bundle.

    Returns:
        Whether there is any. Where every worker is gone, the newest state may be in their memory,
        and training goes on with as few as it may; without them all begins with a launch.
    """
    there = await find_keeper_nodes(job_id)
    await staffing.look_at_bundles()
    await nodes.ensure(there | {*staffing.find_placed().values()}, there)
    return nodes.num_keepers > 0


async def find_remains(job_id: str, pool: WorkerPool, nodes: NodeWatch) -> None:
    """Find what an earlier coordinator has left, as far as it isn't known.

    Ray is asked until it answers: whatever isn't found stays behind for good.
    """
    while True:
        try:
            await pool.bundles.find()
            for worker_id, actor in (await find_workers(job_id)).items():
                if worker_id not in pool.entries:
                    pool.adopt(worker_id, actor)
            await nodes.ensure(await find_keeper_nodes(job_id))
        except (RayError, ValueError) as error:
            logger.warning("what is left of the job isn't known: %s", error)
            await asyncio.sleep(_ASK_AGAIN_AFTER_S)
        else:
            return


async def take_office(nodes: NodeWatch, control: EpochControl, clock: Clock) -> None:
    """Become the one incarnation that a majority of Keepers obeys.

    A Keeper on a node that Ray has given up does not count: its raylet ends itself. Those of an
    earlier attempt are gone; what they have promised is in the record, as far as it formed epochs.

    Raises:
        CoordinationError: no majority answered in time.
    """
    incarnation = control.incarnation + 1
    deadline_s = clock.monotonic_s() + _OFFICE_WITHIN_S
    living = RayQuestion[dict[str, LivingNode]]()
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
        await _look_for_dead(nodes, living)
        await asyncio.sleep(_ASK_AGAIN_AFTER_S)


async def _look_for_dead(nodes: NodeWatch, living: RayQuestion[dict[str, LivingNode]]) -> None:
    """Forget the nodes that are dead, as far as Ray tells; else it is asked again."""
    try:
        nodes.note_alive(await living.ask(find_alive_nodes))
    except Exception as error:  # noqa: BLE001  a majority may answer without
        logger.warning("Ray does not tell which nodes live: %s: %s", type(error).__name__, error)
    nodes.forget_dead()


async def adopt(
    found: Mapping[str, Any],
    pool: WorkerPool,
    nodes: NodeWatch,
    control: EpochControl,
    record: RunRecord,
    clock: Clock,
) -> Estate:
    """Take office, ask the workers of an earlier coordinator where they stand, take over its epoch.

    Args:
        found: their handles by worker id.
        pool: watches them from now on.
        nodes: knows the Keepers.
        control: takes the epoch over.
        record: knows what earlier coordinators have told.
        clock: measures.

    Raises:
        CoordinationError: no majority of Keepers answered in time.
    """
    entries = [pool.adopt(worker_id, actor) for worker_id, actor in found.items()]
    vacant = pool.bundles.numbers() - {entry.bundle for entry in entries}
    await take_office(nodes, control, clock)
    for entry in entries:
        entry.actor.run.remote()  # the call may have been lost with who had made it
        contact = record.contacts.find(entry.worker_id)
        if contact is not None:
            pool.describe(contact)
    descriptions = await _ask(entries, lambda heard: _is_enough(heard, pool, record))
    await nodes.ensure({description.node_id for description in descriptions.values()})
    # From here on nothing waits: a worker that is gone by now has left the pool.
    for description in descriptions.values():
        if description.ready:
            pool.describe(description)
        if description.standing is not None and description.standing.finished:
            control.on_finished(description.worker_id)
    newest = _find_newest(descriptions, pool, record)
    returned = {each.worker_id for each in descriptions.values() if each.returned}
    left = returned if record.has(STOPPING) else set[str]()
    pool.left |= left
    lost = dict.fromkeys(returned - left, RETURNED)
    if newest is not None:
        unknown = _find_unknown(newest, descriptions, pool)
        lost |= dict.fromkeys(unknown, "it did not answer the new coordinator")
        there = pool.entries.keys() - unknown
        intact = all(
            member in there and (member in left or _may_train(newest, descriptions.get(member)))
            for member in newest.members
        )
        told = (each.plan for each in descriptions.values() if each.spec == newest and each.plan)
        control.take_over(newest, intact=intact, plan=next(told, None))
    raised = {each.worker_id: each.raised for each in descriptions.values() if each.raised}
    unheard = (found.keys() & pool.entries.keys()) - descriptions.keys() - lost.keys()
    return Estate(lost, frozenset(unheard), frozenset(vacant), raised)


Descriptions = Mapping[str, WorkerDescription]


async def _ask(
    entries: Sequence[WorkerEntry], is_enough: Callable[[Descriptions], bool]
) -> Descriptions:
    """Ask workers for their descriptions; returns those that come in time, by worker id.

    Args:
        entries: the workers.
        is_enough: whether the rest need not be waited for any longer.
    """
    asked = {asyncio.ensure_future(ask_description(entry.actor, None)) for entry in entries}
    answers: list[WorkerDescription | None] = []

    def heard() -> Descriptions:
        return {answer.worker_id: answer for answer in answers if answer is not None}

    waited_s, pause_s = 0.0, _ANSWER_WITHIN_S
    while asked and waited_s < _ANSWER_AT_LAST_WITHIN_S:
        done, asked = await asyncio.wait(asked, timeout=pause_s)
        answers += [task.result() for task in done]
        waited_s, pause_s = waited_s + pause_s, _LOOK_EVERY_S
        if is_enough(heard()):
            break
    for task in asked:
        task.cancel()
    return heard()


def _is_enough(heard: Descriptions, pool: WorkerPool, record: RunRecord) -> bool:
    """Whether the epoch can be taken over by what was heard, and the others be watched."""
    told = _newest_told(heard)
    if _is_older_than_record(told, heard, pool, record):
        return False
    return told is None or not _find_unknown(told, heard, pool)


def _find_newest(heard: Descriptions, pool: WorkerPool, record: RunRecord) -> EpochSpec | None:
    """Return the newest epoch as workers tell of it, or the record, where they are silent.

    Of one on record no more is known than who its members are, which is enough until the next. So
    too if all of them are gone, and nobody else was ever in one: it is broken like any other, and
    the next needs no more workers than any other.
    """
    told = _newest_told(heard)
    are_gone = told is None and record.losses.members
    if record.beginnings and (are_gone or _is_older_than_record(told, heard, pool, record)):
        return EpochSpec(record.beginnings[-1][0], record.losses.members, "", 0)
    return told if told is None else _find_unleft(told, heard, record) or told


def _find_unleft(told: EpochSpec, heard: Descriptions, record: RunRecord) -> EpochSpec | None:
    """Return the epoch that counts while ``told`` was only asked for; None: that one does.

    Who was to leave with it may hold all the state there is, and whoever comes has none yet. So it
    is with who lives of the newest epoch on record, and was not asked to take part.
    """
    if any(each.spec == told and each.has_begun for each in heard.values()):
        return None
    on_record = max((epoch for epoch, _ in record.beginnings), default=INITIAL_EPOCH)
    unleft = (
        each.spec
        for each in heard.values()
        if each.worker_id not in told.members and each.has_begun and each.spec is not None
    )
    return next((spec for spec in unleft if spec.epoch == on_record), None)


def _is_older_than_record(
    told: EpochSpec | None, heard: Descriptions, pool: WorkerPool, record: RunRecord
) -> bool:
    """Whether others may have told of an older epoch than one on record, whose members are silent.

    Not if those are gone: then it is over.
    """
    on_record = max((epoch for epoch, _ in record.beginnings), default=INITIAL_EPOCH)
    is_older = told is None or told.epoch < on_record
    return is_older and any(each in pool.entries.keys() - heard for each in record.losses.members)


def _find_unknown(spec: EpochSpec, heard: Descriptions, pool: WorkerPool) -> set[str]:
    """Return the members that live, haven't answered, and of whom nobody knows where they are."""
    silent = [pool.entries[each] for each in spec.members if each in pool.entries.keys() - heard]
    return {entry.worker_id for entry in silent if entry.description is None}


def _newest_told(heard: Descriptions) -> EpochSpec | None:
    specs = [each.spec for each in heard.values() if each.spec is not None]
    return max(specs, key=lambda spec: spec.epoch, default=None)


def _may_train(spec: EpochSpec, description: WorkerDescription | None) -> bool:
    """Whether a member trains in an epoch, or hasn't said that it doesn't."""
    if description is None:
        return True
    if description.spec != spec or not description.has_begun:
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
