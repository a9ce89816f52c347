"""How large a step is in a world of another size, and the learning rate that goes with it.

Pure.
"""

import math
from dataclasses import dataclass

from trainflow.config.job import JobConfig


@dataclass(frozen=True)
class StepSize:
    """What one step of a world is.

    Attributes:
        num_samples: the global batch.
        lr_factor: what the optimizer's learning rates are multiplied by in such a step.
    """

    num_samples: int
    lr_factor: float


def scale_step(job: JobConfig, world_size: int) -> StepSize:
    """Return what a step of ``world_size`` ranks is.

    Without `training.batch_scaling` every step is alike. With it the batch is in proportion to the
    world, ``training.global_batch_size`` for ``workers.target`` ranks, rounded. The learning rate
    follows the batch: in proportion ("linear", for SGD: Goyal et al., "Accurate, Large Minibatch
    SGD", 2017), or to its square root ("sqrt", for Adam and its like: Malladi et al., "On the SDEs
    and Scaling Rules for Adaptive Gradient Algorithms", 2022).
    """
    training = job.training
    if training.batch_scaling == "none":
        return StepSize(training.global_batch_size, 1.0)
    num_samples = round(training.global_batch_size * world_size / job.workers.target)
    ratio = num_samples / training.global_batch_size
    return StepSize(num_samples, ratio if training.batch_scaling == "linear" else math.sqrt(ratio))
