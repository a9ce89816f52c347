"""What came of a committed step on one rank, and how a coordinator is told."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from trainflow.communication.commit_record import CommitDecision
from trainflow.communication.group import Group
from trainflow.communication.reduced_gradients import ReducedGradients
from trainflow.computation.phase_times import tell_waiting_apart
from trainflow.computation.reports import (
    CompressionChosen,
    GradientSums,
    RanksDiffer,
    StepReport,
)
from trainflow.computation.training_state import Committed, TrainingState
from trainflow.epochs import Flag
from trainflow.monitoring.anomalies.norm_guard import OddNorm


@dataclass(frozen=True)
class Outcome:
    """A commit with what the coordinator wants to know of it.

    ``stops``: every rank has what its last checkpoint is made of, and leaves its steps.
    """

    committed: Committed
    committed_at_s: float
    decision: CommitDecision
    compute_s: float
    wait_s: float
    exchange_s: float
    wire_bytes: int
    sums: GradientSums
    scalars: dict[str, float]
    odd_norm: OddNorm | None
    consumed_samples: int
    tensor_digests: dict[str, str]
    stops: bool = False


def describe_step(
    outcome: Outcome, group: Group, copy_lag: int | None, phases_s: dict[str, float]
) -> StepReport:
    """Return what there is to say of a commit of this rank.

    Args:
        outcome: of the commit.
        group: that made it.
        copy_lag: see `StepReport`.
        phases_s: by what the training thread has stamped, which can't tell waiting apart.
    """
    committed, decision = outcome.committed, outcome.decision
    waited_s = decision.wait_s[group.rank] - decision.shortest_wait_s
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
        shortest_wait_s=decision.shortest_wait_s,
        wait_s=outcome.wait_s,
        exchange_s=outcome.exchange_s,
        wire_bytes=outcome.wire_bytes,
        sums=outcome.sums,
        scalars=outcome.scalars,
        pausing=bool(decision.flags & Flag.PAUSE) and not outcome.stops,
        copy_lag=copy_lag,
        phases_s=tell_waiting_apart(phases_s, waited_s),
        digest=f"{decision.digest:016x}" if decision.digest else None,
        odd_norm=outcome.odd_norm,
        consumed_samples=outcome.consumed_samples,
    )


def describe_difference(
    decision: CommitDecision, gradients: Sequence[ReducedGradients], group: Group, step: int
) -> RanksDiffer | None:
    """Return which ranks came to other bits; None if all came to the same.

    Digests are of all parts of a sharded model, and the same on all ranks of a group: which rank of
    it has another part than its twins the gradients say.
    """
    odd = sorted({rank for each in gradients for rank in each.odd_ranks})
    sums_differ = decision.suspects and (tuple(odd) or decision.suspects)
    ranks = decision.miscomputing or sums_differ
    if not ranks:
        return None
    return RanksDiffer(step, group.spec.epoch, ranks, in_spot_check=bool(decision.miscomputing))


def keep_choices(state: TrainingState, step: int) -> list[CompressionChosen]:
    """Make how a step was summed part of the state that it has made; return what is new of it."""
    chosen: list[CompressionChosen] = []
    for name, model in state.models.items():
        auto = model.reducer.auto
        choice = None if auto is None else auto.keep()
        if choice is not None:
            rate = choice.link.bytes_per_s
            chosen.append(CompressionChosen(step, name, choice.name, choice.predicted_s, rate))
    return chosen


def describe_scaling(state: TrainingState) -> dict[str, float]:
    """Say by what losses are multiplied, where they are."""
    return {} if state.loss_scaler is None else {"loss_scale": state.loss_scaler.scale}


def describe_sums(
    state: TrainingState, group: Group, gradients: Sequence[ReducedGradients], flags: Flag
) -> GradientSums:
    """Say what it took to sum gradients; before anything is divided."""
    reducers = [model.reducer for model in state.models.values()]
    residuals, world_size = state.residuals, group.world_size
    norm = math.hypot(*(each.norm for each in gradients))
    ratio = None
    if residuals is not None and group.rank == 0 and norm:
        ratio = float(torch.linalg.vector_norm(residuals.memory.kept)) * world_size / norm
    return GradientSums(
        plain_bytes=sum(each.plain_bytes(world_size) for each in reducers),
        before_s=sum(each.times.before_s for each in reducers),
        link_s=sum(each.times.link_s for each in reducers),
        after_s=sum(each.times.after_s for each in reducers),
        residual_ratio=ratio,
        slow_kernels=bool(flags & Flag.SLOW_KERNELS),
    )
