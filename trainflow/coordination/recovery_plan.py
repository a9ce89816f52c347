"""From what the members of a new epoch hold to the one state they all start from.

Pure. Rests on one fact: a rank applies a step only after it has seen every rank's commit record, so
two survivors differ by at most the last step, and the newer state is always whole and right. Where
nobody survived that holds one, what was kept is the base: a snapshot in some node's memory, or a
checkpoint.
"""

from collections.abc import Sequence

from trainflow.epochs import (
    EpochSpec,
    MemberReport,
    RecoveryPlan,
    StoredState,
    WhereKept,
)
from trainflow.errors import CoordinationError


class NoLiveStateError(CoordinationError):
    """Every rank that held a whole state is gone, and there is no checkpoint."""


def plan_recovery(
    spec: EpochSpec,
    reports: Sequence[MemberReport],
    *,
    member_lost: bool,
    committed_step: int = 0,
    stored: WhereKept | None = None,
) -> RecoveryPlan:
    """Choose the base version and who gives it to whom.

    Args:
        spec: the epoch to start.
        reports: one of each member, in any order.
        member_lost: a member of the epoch before is gone; whether it ran the code after its last
            commit to the end can't be known.
        committed_step: the newest step known to be committed; what survives is at most one older.
        stored: the newest state that was kept, for when no member holds one that is new enough.

    Raises:
        NoLiveStateError: neither does any of them, nor is there a checkpoint.
    """
    by_rank = {spec.rank_of(report.worker_id): report for report in reports}
    versions = [report.version for report in reports if report.version is not None]
    fresh_start = stored is not None and committed_step == 0
    if not versions or max(versions).step < max(committed_step - 1, int(fresh_start)):
        return _plan_restore(spec, stored, len(reports), committed_step)
    base = max(versions)
    holders = sorted(rank for rank, report in by_rank.items() if report.version == base)
    if base.step == 0:  # nothing is committed yet: whatever was built elsewhere doesn't count
        holders = holders[:1]
    laggards = sorted(by_rank.keys() - set(holders))
    finished = any(report.finished for report in reports)
    stayed = [report for report in reports if report.version is not None]
    tail_open = member_lost or not all(r.version == base and r.tail_done for r in stayed)
    return RecoveryPlan(
        spec=spec,
        base=base,
        sources={rank: holders[i % len(holders)] for i, rank in enumerate(laggards)},
        replay_tail=base.step > 0 and tail_open and not finished,
        finished=finished,
    )


def plan_rewind(
    spec: EpochSpec, stored: StoredState, position: int, *, is_sharded: bool
) -> RecoveryPlan:
    """Go back to a checkpoint, whatever newer state there is; nothing newer counts from then on.

    Code after its last step has run before, and doesn't again.

    Args:
        spec: the epoch to start.
        stored: the checkpoint.
        position: in the data, after which all go on.
        is_sharded: each rank reads its own part; else rank 0 reads, and gives to all.
    """
    others = () if is_sharded else range(1, spec.world_size)
    return RecoveryPlan(
        spec=spec,
        base=stored.version,
        sources=dict.fromkeys(others, 0),
        stored=stored,
        position=position,
    )


def _plan_restore(
    spec: EpochSpec, stored: WhereKept | None, num_members: int, committed_step: int
) -> RecoveryPlan:
    """Begin again from what was kept: rank 0 reads, and gives to all."""
    if stored is None:
        raise NoLiveStateError(
            f"epoch {spec.epoch}: none of {num_members} members holds a whole state of step "
            f"{committed_step}, expected one; the ranks that had it are gone, and every copy, "
            "and there is no checkpoint: set checkpoint.url and every_steps to have some"
        )
    return RecoveryPlan(
        spec=spec,
        base=stored.version,
        sources=dict.fromkeys(range(1, spec.world_size), 0),
        replay_tail=True,
        stored=stored,
    )
