"""Make up for reports of steps that were committed, and that the coordinator has not heard of.

Rank 0 alone reports steps, and may die between a commit and its report. Whoever goes on from that
commit knows all that it would have said.

Process: coordinator.  Thread: a task of its event loop.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from trainflow.coordination.run_record import RunRecord
from trainflow.epochs import MemberReport, RecoveryPlan, StoredState


async def make_up_for_reports(
    record: RunRecord,
    plan: RecoveryPlan,
    reports: Sequence[MemberReport],
    actors: Mapping[str, Any],
) -> None:
    """Ask members for the steps up to an epoch's base that the record lacks, before it begins.

    So none of the epoch's own steps is heard of before them. Of steps that no member has committed
    nothing is said.

    Args:
        record: takes them.
        plan: of the epoch, whose members are parked.
        reports: what they hold.
        actors: handles of them by worker id.

    Raises:
        RayError: a member is gone.
    """
    if isinstance(plan.stored, StoredState):  # the ranks' own steps led elsewhere
        return
    base = plan.base
    for report in sorted(reports, key=lambda each: each.version != base):  # who holds it first
        if record.last_step >= base.step:
            return
        answer = actors[report.worker_id].steps_up_to.remote(base, record.last_step)
        for step in await answer:
            record.add_step(step)
