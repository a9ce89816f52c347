"""Tell how much a model computes for a token, or nothing where that would be a guess.

Process: every rank.  Thread: training, before the first step.  Pure.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from trainflow.computation.reports import WorkDescribed
from trainflow.computation.sharding import find_units
from trainflow.computation.training_state import PreparedModel
from trainflow.config.job import JobConfig
from trainflow.data.map_dataset import MapDataset
from trainflow.data.token_corpus import TokenCorpus
from trainflow.monitoring.flops import (
    TransformerShape,
    count_hardware_flops,
    count_model_flops,
)
from trainflow.monitoring.peaks import find_peak

# Of a transformers model's configuration: with one of these set, a token meets not all parameters,
# or attends not to all of the sequence, or the layers are of another kind.
_OTHERWISE = (
    "is_encoder_decoder",
    "num_experts",
    "num_local_experts",
    "n_routed_experts",
    "sliding_window",
    "layer_types",
)


def describe_work(
    models: Mapping[str, PreparedModel], job: JobConfig, device: torch.device, dataset: MapDataset
) -> WorkDescribed | None:
    """Return how much a step's model computes; None where it can't be known.

    It is known of one decoder of the transformers library that trains on a packed token corpus.

    Args:
        models: all that are prepared, by name.
        job: what is run.
        device: where it computes.
        dataset: what it trains on.
    """
    if len(models) != 1 or not isinstance(dataset, TokenCorpus):
        return None
    (model,) = models.values()
    shape = find_shape(model.module, dataset.sequence_length)
    if shape is None:
        return None
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    return WorkDescribed(
        model_flops=count_model_flops(shape),
        hardware_flops=count_hardware_flops(shape, job.parallel.activation_checkpointing),
        tokens_per_sample=dataset.sequence_length,
        device=name,
        peak_flops=find_peak(name, job.training.precision),
    )


def find_shape(module: nn.Module, sequence_length: int) -> TransformerShape | None:
    """Return what decides how much a decoder computes; None of a model of another kind.

    Args:
        module: a model of the transformers library, say.
        sequence_length: tokens in one sample.
    """
    config = getattr(module, "config", None)
    if config is None or not _is_plain(config):
        return None
    try:
        num_layers, num_heads = config.num_hidden_layers, config.num_attention_heads
        head_size = getattr(config, "head_dim", None) or config.hidden_size // num_heads
    except AttributeError:
        return None
    multiplied = _find_multiplied(module)
    in_layers = {id(each) for unit in find_units(module) for each in unit.parameters()}
    return TransformerShape(
        num_trained=sum(each.numel() for each in multiplied if each.requires_grad),
        num_frozen=sum(each.numel() for each in multiplied if not each.requires_grad),
        num_in_layers=sum(each.numel() for each in multiplied if id(each) in in_layers),
        num_layers=num_layers,
        num_heads=num_heads,
        head_size=head_size,
        sequence_length=sequence_length,
    )


def _is_plain(config: Any) -> bool:  # noqa: ANN401  any library's
    """Whether every token meets every parameter, and attends to the whole sequence."""
    kinds = {*(getattr(config, "layer_types", None) or ())}
    others = (getattr(config, name, None) for name in _OTHERWISE if name != "layer_types")
    return kinds <= {"full_attention"} and not any(others)


def _find_multiplied(module: nn.Module) -> list[nn.Parameter]:
    """Return the matrices that tokens are multiplied with, each once; biases and norms are nothing.

    A matrix that is looked up in and is the output's too, is one of these.
    """
    looked_up = {id(each.weight) for each in module.modules() if isinstance(each, nn.Embedding)}
    outputs = getattr(module, "get_output_embeddings", lambda: None)()
    output = None if outputs is None else id(outputs.weight)
    return [
        each
        for each in module.parameters()
        if each.ndim > 1 and (id(each) not in looked_up or id(each) == output)
    ]
