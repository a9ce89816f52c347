"""Carry out the forming of one epoch: two calls to every member, with a plan in between.

Process: coordinator.  Thread: a task of its event loop; cancelled when a member dies meanwhile.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ray.exceptions import RayError, RayTaskError

from trainflow.config.job import JobConfig
from trainflow.coordination.missed_reports import make_up_for_reports
from trainflow.coordination.placement import choose_snapshot_ranks, number_nodes
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.worker_pool import WorkerEntry
from trainflow.data.batch_scaling import scale_step
from trainflow.epochs import EpochId, EpochSpec, MemberReport, RecoveryPlan

_PARKED_WITHIN_S = 30.0

MakePlan = Callable[[Sequence[MemberReport]], Awaitable[RecoveryPlan]]


@dataclass(frozen=True)
class FormedEpoch:
    """An epoch whose members have been released.

    Attributes:
        plan: what they do.
        reports: what each member reported, by rank.
        asked_at_s: CLOCK_REALTIME when the members were asked to form.
        begun_at_s: when they were released.
        committed_step: the newest step that was known to be committed right before.
        planned_at_s: when that was; none of them was released before.
    """

    plan: RecoveryPlan
    reports: tuple[MemberReport, ...]
    asked_at_s: float
    begun_at_s: float
    committed_step: int
    planned_at_s: float


def specify(
    epoch: EpochId,
    members: Sequence[WorkerEntry],
    job: JobConfig,
    *,
    seconds_between_failures: float,
) -> EpochSpec:
    """Say who takes part in an epoch, where they meet, and where they are.

    Args:
        epoch: its id.
        members: by rank; all are warm.
        job: says how state is spread and copied.
        seconds_between_failures: of the run so far.
    """
    warm = [each.description for each in members if each.description is not None]
    assert len(warm) == len(members), "members are warm"
    nodes = [each.node_id for each in warm]
    labels = {each.node_id: each.node_labels for each in warm}
    return EpochSpec(
        epoch,
        tuple(each.worker_id for each in warm),
        warm[0].host,
        warm[0].store_port,
        choose_snapshot_ranks(nodes, labels, job.num_copying(len(members))),
        seconds_between_failures,
        number_nodes(nodes),
        job.shard_size(len(members)),
    )


async def form_epoch(
    spec: EpochSpec,
    actors: Mapping[str, Any],
    make_plan: MakePlan,
    *,
    at_boundary: bool,
    record: RunRecord,
    now_s: Any,  # noqa: ANN401  a clock's unix_s
) -> FormedEpoch:
    """Park and connect every member, plan, note what was committed up to there, release.

    Args:
        spec: the epoch.
        actors: handles of its members by worker id.
        make_plan: makes the plan from what the members report.
        at_boundary: the members were asked to pause; let them park by themselves.
        record: of the steps that are known to be committed.
        now_s: the clock.

    Raises:
        NoLiveStateError: there is no state to start from.
        RayError: a member is gone, or could not connect.
    """
    asked_at_s = now_s()
    reports: list[MemberReport] = await asyncio.gather(
        *[actors[member].form.remote(spec, at_boundary=at_boundary) for member in spec.members]
    )
    plan = await make_plan(reports)
    await make_up_for_reports(record, plan, reports, actors)
    committed_step = record.last_step  # before steps of this epoch are reported
    planned_at_s = now_s()
    await asyncio.gather(*[actors[member].begin.remote(plan) for member in spec.members])
    return FormedEpoch(plan, tuple(reports), asked_at_s, now_s(), committed_step, planned_at_s)


def plan_once_parked(
    spec: EpochSpec,
    before: Sequence[str],
    entries: Mapping[str, WorkerEntry],
    make_plan: MakePlan,
) -> MakePlan:
    """Return how to plan after those who leave between two steps have come to stand still too.

    Of sharded state, and of what compression has left out, they hold a part that others are to read
    in their nodes' memory, and it is there by then. One that dies or hangs is not waited for.

    Args:
        spec: the epoch that is formed.
        before: members of the one before that stop at its boundary.
        entries: workers that live, by id.
        make_plan: makes the plan.
    """
    leaving = [entries[each] for each in before if each in entries and each not in spec.members]

    async def plan(reports: Sequence[MemberReport]) -> RecoveryPlan:
        standing = asyncio.gather(
            *[each.actor.stand.remote() for each in leaving], return_exceptions=True
        )
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PARKED_WITHIN_S):  # `wait_for` may swallow a cancellation
                await standing
        return await make_plan(reports)

    return plan


def note_formed(
    job: JobConfig,
    plan: RecoveryPlan,
    record: RunRecord,
    committed_step: int,
    *,
    recovering: bool = False,
) -> None:
    """Record an epoch that has begun; say once that sums can't go by node, if that is asked for.

    Args:
        job: of the run.
        plan: how the epoch has begun.
        record: takes it.
        committed_step: the newest step that was known to be committed right before.
        recovering: a loss led here, and the end of its recovery tells of what is done again.
    """
    spec, base = plan.spec, plan.base
    if plan.goes_on_from_kept(committed_step):
        told = {"steps_lost": max(0, committed_step - base.step), "recovering": recovering}
        record.begin_after(base.step, str(plan.stored), spec.epoch, **told)
    size = scale_step(job, spec.world_size)
    scaled = f", {size.num_samples} samples a step, learning rates times {size.lr_factor:.3g}"
    record.add_event(
        "epoch",
        f"epoch {spec.epoch}: {spec.world_size} members from step {base.step}"
        f"{'' if job.training.batch_scaling == 'none' else scaled}",
        epoch=str(spec.epoch),
        members=list(spec.members),
        base=str(base),
        nodes=list(spec.nodes),
        samples=size.num_samples,
        lr_factor=size.lr_factor,
    )
    record.add_early_steps(spec.epoch)
    asked = job.communication.hierarchical and spec.world_size > 1
    if asked and not spec.by_node and not record.has("hierarchical_off"):
        text = "nodes don't have equally many members, two or more: sums don't go by node"
        record.add_event("hierarchical_off", text, nodes=list(spec.nodes))


def tell_trouble(error: RayError) -> str:
    """Return in one line why an epoch was not formed."""
    cause = error.cause if isinstance(error, RayTaskError) else error
    return next(iter(str(cause).splitlines()), type(cause).__name__)
