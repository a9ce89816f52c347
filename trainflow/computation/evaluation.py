"""Values that all ranks agree on outside the gradient: evaluation and single numbers.

Process: every rank.  Thread: training.  Ranks: all call, or none.
Blocks: until every rank has come.  Fails: `StepAborted` when a rank is lost.
"""

import math
from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from trainflow.communication.group import Group
from trainflow.computation.aborted import StepAborted
from trainflow.computation.rank_context import RankContext
from trainflow.computation.seeding import derive_seed, isolated_randomness, seed_everything
from trainflow.computation.sharding import free_gathered
from trainflow.computation.stamps import StampWriter
from trainflow.computation.training_state import TrainingState
from trainflow.data.batch import Batch
from trainflow.sums import add_exactly

_IN_EVALUATION = -1  # in place of a step: random numbers that no step draws
_COMBINE: dict[str, Callable[[list[float]], float]] = {
    "sum": add_exactly,
    "mean": lambda values: add_exactly(values) / len(values),
    "min": min,
    "max": max,
}


def gather_numbers(
    values: list[float], group: Group, device: torch.device, stamps: StampWriter
) -> list[list[float]]:
    """Gather the same count of numbers from every rank, by rank; raises StepAborted.

    It is stamped that this rank waits: who makes the others wait hangs, and they don't.
    """
    mine = torch.tensor(values, dtype=torch.float64, device=device)
    everyone = torch.empty(group.world_size * len(values), dtype=torch.float64, device=device)
    with stamps.waiting():
        if not group.all_gather(everyone, mine).wait():
            raise StepAborted
    return everyone.view(group.world_size, len(values)).tolist()


def reduce_over_ranks(
    value: float,
    op: Literal["mean", "sum", "min", "max"],
    group: Group,
    device: torch.device,
    stamps: StampWriter,
) -> float:
    """Combine one number a rank, in rank order."""
    return _COMBINE[op]([row[0] for row in gather_numbers([value], group, device, stamps)])


def evaluate(
    context: RankContext,
    state: TrainingState,
    group: Group,
    fn: Callable[[Batch], tuple[Tensor, float]],
) -> float:
    """Take the weighted mean of ``fn`` over one pass of the validation data."""
    modules = [model.module for model in state.models.values()]
    seed = context.job.training.seed
    were_training = [module.training for module in modules]
    total, weight_sum = 0.0, 0.0
    for module in modules:
        module.eval()
    try:
        with torch.no_grad(), isolated_randomness(seed):
            dealt = context.feed.validation_batches(
                group.world_size, group.rank, padded=context.job.parallel.is_sharded
            )
            for microbatch, batch in dealt:
                if group.failure is not None:
                    raise StepAborted
                seed_everything(derive_seed(seed, _IN_EVALUATION, microbatch.index))
                mean, weight = fn(batch.to(context.device))
                if batch.is_padding:
                    continue
                total += float(mean) * weight
                weight_sum += weight
                context.stamps.renew()
    finally:
        for module, training in zip(modules, were_training, strict=True):
            module.train(training)
            free_gathered(module)
    rows = gather_numbers([total, weight_sum], group, context.device, context.stamps)
    weight_sum = add_exactly(row[1] for row in rows)
    return add_exactly(row[0] for row in rows) / weight_sum if weight_sum else math.nan
