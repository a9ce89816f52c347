"""Carry out the forming of one epoch: two calls to every member, with a plan in between.

Process: coordinator.  Thread: a task of its event loop; cancelled when a member dies meanwhile.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainflow.coordination.recovery_plan import plan_recovery
from trainflow.epochs import EpochSpec, MemberReport, RecoveryPlan


@dataclass(frozen=True)
class FormedEpoch:
    """An epoch whose members have been released.

    Attributes:
        plan: what they do.
        reports: what each member reported, by rank.
        asked_at_s: CLOCK_REALTIME when the members were asked to form.
        begun_at_s: when they were released.
    """

    plan: RecoveryPlan
    reports: tuple[MemberReport, ...]
    asked_at_s: float
    begun_at_s: float


async def form_epoch(
    spec: EpochSpec,
    actors: Mapping[str, Any],
    *,
    member_lost: bool,
    committed_step: int,
    at_boundary: bool,
    now_s: Any,  # noqa: ANN401  a clock's unix_s
) -> FormedEpoch:
    """Park and connect every member, plan, release.

    Args:
        spec: the epoch.
        actors: handles of its members by worker id.
        member_lost: a member of the epoch before is gone.
        committed_step: the newest step known to be committed.
        at_boundary: the members were asked to pause; let them park by themselves.
        now_s: the clock.

    Raises:
        NoLiveStateError: no member holds a whole state.
        RayError: a member is gone, or could not connect.
    """
    asked_at_s = now_s()
    reports: list[MemberReport] = await asyncio.gather(
        *[actors[member].form.remote(spec, at_boundary=at_boundary) for member in spec.members]
    )
    plan = plan_recovery(spec, reports, member_lost=member_lost, committed_step=committed_step)
    await asyncio.gather(*[actors[member].begin.remote(plan) for member in spec.members])
    return FormedEpoch(plan, tuple(reports), asked_at_s, now_s())
