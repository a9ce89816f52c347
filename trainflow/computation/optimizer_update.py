"""What a step does to parameters, once all ranks have agreed on it.

Process: every rank.  Thread: training.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from trainflow.communication.reduced_gradients import ReducedGradients
from trainflow.computation.sharded_gradients import ShardedGradients
from trainflow.computation.sharded_optimizers import stepping
from trainflow.computation.training_state import TrainingState


@dataclass(frozen=True)
class Scales:
    """By what gradients and learning rates are multiplied.

    Attributes:
        total_weight: of all samples of the step; gradients are sums, and are divided by it.
        clip_norm: largest norm of a model's gradient; None leaves it as it is.
        lr_factor: of every learning rate in this step.
    """

    total_weight: float
    clip_norm: float | None
    lr_factor: float


def update_models(
    state: TrainingState, gradients: Sequence[ReducedGradients], scales: Scales
) -> None:
    """Step every optimizer and scheduler, and whatever else moves with a commit."""
    for model, each in zip(state.models.values(), gradients, strict=True):
        norm, limit = each.norm / scales.total_weight, scales.clip_norm
        clip = min(1.0, limit / (norm + 1e-6)) if limit is not None else 1.0
        each.scale_(clip / scales.total_weight)
        is_sharded = isinstance(model.reducer, ShardedGradients)
        on_shards = stepping(model.optimizer) if is_sharded else nullcontext()
        with scaled_lr(model.optimizer, scales.lr_factor), on_shards:
            model.optimizer.step()
        model.reducer.keep()
        if model.scheduler is not None:
            model.scheduler.step()
        model.optimizer.zero_grad()
    for registered in state.registered.values():
        if registered.on_commit is not None:
            registered.on_commit()


@contextmanager
def scaled_lr(optimizer: Optimizer, factor: float) -> Generator[None]:
    """Have an optimizer use ``factor`` times its learning rates; they are what they were after.

    A scheduler thus goes on from its own. A rate that is a tensor stays the same tensor, which a
    captured graph may hold.
    """
    if factor == 1.0:
        yield
        return
    groups = optimizer.param_groups
    rates = [float(group["lr"]) for group in groups]
    _set_rates(groups, [rate * factor for rate in rates])
    try:
        yield
    finally:
        _set_rates(groups, rates)


def _set_rates(groups: list[dict[str, Any]], rates: list[float]) -> None:
    for group, rate in zip(groups, rates, strict=True):
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate
