"""Make a model with what trains it, as the job has it spread over ranks.

Process: every rank.  Thread: training.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from torch import nn

from trainflow.communication.aggregation import choose_aggregators
from trainflow.communication.fsdp_collectives import ShardExchange
from trainflow.communication.hybrid_sum import choose_scatter
from trainflow.communication.parameter_gather import choose_gather
from trainflow.communication.reducer import GradientReducer
from trainflow.computation.blueprint import Blueprint
from trainflow.computation.rank_context import RankContext
from trainflow.computation.recomputation import recompute_units
from trainflow.computation.sharded_model import Layout, ShardedModel
from trainflow.computation.sharding import Sharding
from trainflow.computation.stamps import StampWriter
from trainflow.computation.trainable import find_trainable
from trainflow.computation.training_state import PreparedModel
from trainflow.config.job import JobConfig


def make_replicated(name: str, blueprint: Blueprint, context: RankContext) -> PreparedModel:
    """Make a model that every rank holds whole.

    Raises:
        TrainingError: it can't be trained so.
        ConfigError: a pattern of ``communication.per_parameter`` matches no parameter.
    """
    job, device = context.job, context.device
    module = _recomputing(name, blueprint.model, job)().to(device)
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
        GradientReducer(
            trainable,
            aggregators,
            job.communication.bucket_bytes,
            on_wait=partial(_note_awaited, name, context.stamps),
        ),
    )


def _note_awaited(model: str, stamps: StampWriter, name: str) -> None:
    """Show whose sums this rank waits for, by their path as `tensor_digests` has it."""
    stamps.note_awaited(name and f"the sum of /gradients/{model}/{name}")


def make_sharded(name: str, blueprint: Blueprint, context: RankContext) -> ShardedModel:
    """Make a model of which every rank holds a part; which one is known when an epoch begins.

    Raises:
        TrainingError: it can't be trained so.
    """
    job, device = context.job, context.device
    sharding = Sharding.of(job.parallel, device)
    sharding = replace(sharding, is_digested=job.training.deterministic)
    exchange = ShardExchange(
        choose_scatter(job.communication, device),
        context.stamps.waiting,
        gathering=choose_gather(job.parallel, device),
        sums_at_once=sharding.offloads,
    )
    blueprint = replace(blueprint, model=_recomputing(name, blueprint.model, job))
    find = partial(find_trainable, name, job=job)
    layout = Layout(0, job.shard_size(job.workers.target))
    return ShardedModel(blueprint, find, device, layout, exchange, sharding)


def _recomputing(
    name: str, model: Callable[[], nn.Module], job: JobConfig
) -> Callable[[], nn.Module]:
    """Have a factory's modules recompute in backward what the job asks for."""

    def make() -> nn.Module:
        module = model()
        recompute_units(name, module, job.parallel.activation_checkpointing)
        return module

    return make
