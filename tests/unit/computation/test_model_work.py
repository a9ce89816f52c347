"""How much a real Llama computes, against what torch counts as it does."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from jobs.pretrain_lm import Args, build_model
from tests.distributed.jobs import make_job
from trainflow.computation.model_work import describe_work, find_shape
from trainflow.computation.recomputation import recompute_units
from trainflow.config.parallel import Recomputed
from trainflow.data.token_corpus import TokenCorpus
from trainflow.monitoring.flops import count_hardware_flops, count_model_flops

LENGTH, BATCH = 32, 2
ARGS = Args(hidden_size=64, intermediate_size=160, num_layers=3, num_heads=4)


class Corpus(TokenCorpus):
    """A corpus of which only its figures are asked."""

    def __init__(self) -> None:
        self.summary: Any = SimpleNamespace(
            sequence_length=LENGTH, vocab_size=300, end_of_text_id=0
        )

    @property
    def vocab_size(self) -> int:
        return 300


@pytest.fixture
def llama() -> nn.Module:
    model = build_model(ARGS, Corpus())
    model.config._attn_implementation = "eager"  # whose products torch counts
    return model


def count_by_torch(model: nn.Module) -> float:
    """Return what torch counts of forward and backward, for one token."""
    tokens = torch.randint(0, 300, (BATCH, LENGTH))
    with FlopCounterMode(display=False) as counter:
        model(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
    return counter.get_total_flops() / (BATCH * LENGTH)


def shape_of(model: nn.Module) -> Any:
    shape = find_shape(model, LENGTH)
    assert shape is not None
    return shape


def test_the_model_s_operations_are_what_torch_counts(llama: nn.Module):
    assert count_model_flops(shape_of(llama)) == pytest.approx(count_by_torch(llama), rel=0.01)


@pytest.mark.parametrize("recomputed", ["selective", "full"])
def test_the_hardware_s_are_what_torch_counts_with_what_is_computed_again(
    llama: Any, recomputed: Recomputed
):
    recompute_units("model", llama, recomputed)
    expected = count_hardware_flops(shape_of(llama), recomputed)
    if recomputed == "full":  # torch stops before a layer's last product, which nothing needs
        expected -= sum(2 * each.mlp.down_proj.weight.numel() for each in llama.model.layers)
    assert expected == pytest.approx(count_by_torch(llama), rel=0.01)


def test_frozen_layers_cost_less(llama: Any):
    for parameter in llama.model.layers.parameters():
        parameter.requires_grad_(False)
    shape = shape_of(llama)
    assert shape.num_frozen > shape.num_trained
    first = llama.model.embed_tokens.weight
    assert first.requires_grad, "so that backward goes through all layers"
    assert count_model_flops(shape) == pytest.approx(count_by_torch(llama), rel=0.01)


def test_an_embedding_counts_where_it_is_the_output_too(llama: nn.Module):
    config = llama.config
    assert config.tie_word_embeddings
    untied = type(llama)(type(config)(**{**config.to_dict(), "tie_word_embeddings": False}))
    assert shape_of(untied).num_trained == shape_of(llama).num_trained


@pytest.mark.parametrize(
    "otherwise",
    [
        {"num_local_experts": 8},
        {"sliding_window": 16},
        {"is_encoder_decoder": True},
        {"layer_types": ["full_attention", "linear_attention"]},
        {"num_hidden_layers": None, "num_attention_heads": None},
    ],
)
def test_of_a_model_that_computes_otherwise_nothing_is_said(
    llama: nn.Module, otherwise: dict[str, Any]
):
    kept = {"num_hidden_layers": 3, "num_attention_heads": 4, "hidden_size": 64}
    figures = {name: value for name, value in (kept | otherwise).items() if value is not None}
    llama.config = SimpleNamespace(**figures)
    assert find_shape(llama, LENGTH) is None


def test_of_a_model_without_a_configuration_nothing_is_said():
    assert find_shape(nn.Linear(2, 2), LENGTH) is None


def test_a_run_s_work_is_told_with_its_device(llama: nn.Module):
    prepared: Any = SimpleNamespace(module=llama)
    job, corpus = make_job(), Corpus()
    work = describe_work({"model": prepared}, job, torch.device("cpu"), corpus)
    assert work is not None
    assert work.model_flops == work.hardware_flops == count_model_flops(shape_of(llama))
    assert (work.tokens_per_sample, work.device, work.peak_flops) == (LENGTH, "cpu", None)
    two: Any = {"model": prepared, "other": prepared}
    assert describe_work(two, job, torch.device("cpu"), corpus) is None
    samples: Any = [1, 2, 3]
    assert describe_work({"model": prepared}, job, torch.device("cpu"), samples) is None
