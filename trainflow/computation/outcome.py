"""What came of a committed step on one rank, and how a coordinator is told. Plain values."""

from dataclasses import dataclass

from trainflow.communication.commit_record import CommitDecision
from trainflow.communication.group import Group
from trainflow.computation.reports import GradientSums, StepReport
from trainflow.computation.training_state import Committed
from trainflow.epochs import Flag


@dataclass(frozen=True)
class Outcome:
    """A commit with what the coordinator wants to know of it."""

    committed: Committed
    committed_at_s: float
    decision: CommitDecision
    compute_s: float
    wait_s: float
    wire_bytes: int
    sums: GradientSums
    scalars: dict[str, float]
    tensor_digests: dict[str, str]


def describe_step(outcome: Outcome, group: Group, copy_lag: int | None) -> StepReport:
    """Return what there is to say of a commit of this rank."""
    committed, decision = outcome.committed, outcome.decision
    return StepReport(
        step=committed.number,
        epoch=group.spec.epoch,
        rank=group.rank,
        world_size=committed.world_size,
        committed_at_s=outcome.committed_at_s,
        applied=committed.applied,
        loss=committed.loss,
        grad_norm=committed.grad_norm,
        lr=committed.lr,
        weight=decision.total_weight,
        compute_s=outcome.compute_s,
        compute_by_rank=decision.compute_s,
        wait_s=outcome.wait_s,
        wire_bytes=outcome.wire_bytes,
        sums=outcome.sums,
        scalars=outcome.scalars,
        pausing=bool(decision.flags & Flag.PAUSE),
        copy_lag=copy_lag,
        digest=f"{decision.digest:016x}" if decision.digest else None,
    )
