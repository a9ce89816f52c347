"""Make a model with what trains it, as the job has it spread over ranks.

Process: every rank.  Thread: training.
"""

from functools import partial

import torch

from trainflow.communication.aggregation import choose_aggregators
from trainflow.communication.fsdp_collectives import ShardExchange
from trainflow.communication.reducer import GradientReducer
from trainflow.communication.scattered_sum import choose_scatter
from trainflow.computation.blueprint import Blueprint
from trainflow.computation.rank_context import RankContext
from trainflow.computation.sharded_model import Layout, ShardedModel
from trainflow.computation.trainable import find_trainable
from trainflow.computation.training_state import PreparedModel
from trainflow.config.job import JobConfig


def make_replicated(
    name: str, blueprint: Blueprint, job: JobConfig, device: torch.device
) -> PreparedModel:
    """Make a model that every rank holds whole.

    Raises:
        TrainingError: it can't be trained so.
        ConfigError: a pattern of ``communication.per_parameter`` matches no parameter.
    """
    module = blueprint.model().to(device)
    trainable = find_trainable(name, module, job)
    aggregators = choose_aggregators(
        job.communication,
        [parameter for parameter, _ in trainable],
        deterministic=job.training.deterministic,
        device=device,
    )
    made = blueprint.optimizer([parameter for _, parameter in trainable])
    return PreparedModel(
        module,
        made,
        None if blueprint.scheduler is None else blueprint.scheduler(made),
        GradientReducer(trainable, aggregators, job.communication.bucket_bytes),
    )


def make_sharded(name: str, blueprint: Blueprint, context: RankContext) -> ShardedModel:
    """Make a model of which every rank holds a part; which one is known when an epoch begins.

    Raises:
        TrainingError: it can't be trained so.
    """
    job, device = context.job, context.device
    exchange = ShardExchange(choose_scatter(job.communication, device), context.stamps.waiting)
    find = partial(find_trainable, name, job=job)
    return ShardedModel(blueprint, find, device, Layout(0, job.workers.target), exchange)
