"""What a training function gives to have a model made."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler


@dataclass(frozen=True)
class Blueprint:
    """A model and what trains it, yet to be made; perhaps more than once.

    Attributes:
        model: builds the module.
        optimizer: takes the trainable parameters.
        scheduler: takes the optimizer; None to go without.
    """

    model: Callable[[], nn.Module]
    optimizer: Callable[[Iterable[nn.Parameter]], Optimizer]
    scheduler: Callable[[Optimizer], LRScheduler] | None = None
