from typing import Any

import pytest
import torch
from torch import nn

from tests.distributed.jobs import make_job
from trainflow.computation.trainable import find_trainable
from trainflow.errors import TrainingError


def make_model(odd: torch.dtype, *, frozen: bool = False) -> nn.Module:
    """Return a model with one weight of another type."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).to(odd))
    model[1].requires_grad_(not frozen)
    return model


@pytest.mark.parametrize("compression", ["int8", "int4"])
def test_what_is_too_exact_for_a_compression_is_refused(compression):
    job = make_job(communication={"compression": compression})
    refusal = rf"compression: {compression} and .*float64 \(1.weight, 1.bias\).*compression: none"
    with pytest.raises(TrainingError, match=refusal):
        find_trainable("model", make_model(torch.float64), job)
    assert len(find_trainable("model", make_model(torch.float64, frozen=True), job)) == 2
    assert len(find_trainable("model", make_model(torch.bfloat16), job)) == 4


@pytest.mark.parametrize("compression", ["none", "bf16"])
def test_other_sums_take_any_real_type(compression):
    job = make_job(communication={"compression": compression})
    assert len(find_trainable("model", make_model(torch.float64), job)) == 4


def test_half_parameters_are_refused_under_fp16():
    """What is too small for them is lost before a scale could save it."""
    refusal = r"precision: fp16 and .*float16 \(1.weight, 1.bias\), expected float32 .*float\(\)"
    with pytest.raises(TrainingError, match=refusal):
        find_trainable("model", make_model(torch.float16), make_job(training={"precision": "fp16"}))
    assert len(find_trainable("model", make_model(torch.float16), make_job())) == 4


def test_a_model_with_nothing_to_train_is_refused():
    model = nn.Linear(2, 2).requires_grad_(False)
    with pytest.raises(TrainingError, match=r"prepare\('model'\): got a model without trainable"):
        find_trainable("model", model, make_job())


def test_what_is_no_float_is_refused_where_parameters_travel_as_fp8():
    model = make_model(torch.float32)
    codes = nn.Parameter(torch.zeros(4, dtype=torch.int8), requires_grad=False)
    model.register_parameter("codes", codes)
    refusal = r"gather: fp8 and .*no floats \(codes: torch.int8\).*buffers, or set gather: bf16"
    with pytest.raises(TrainingError, match=refusal):
        find_trainable("model", model, make_job(parallel={"mode": "fsdp", "gather": "fp8"}))
    job = make_job(parallel={"mode": "fsdp", "gather": "bf16"})
    assert len(find_trainable("model", model, job)) == 4


@pytest.mark.parametrize("gather", ["bf16", "fp8"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_only_fp32_is_gathered_in_another_type(gather: str, dtype: torch.dtype):
    model = nn.Linear(2, 2).to(dtype)
    refusal = rf"gather: {gather} and trainable parameters of {dtype}, expected float32"
    with pytest.raises(TrainingError, match=refusal):
        find_trainable("model", model, make_job(parallel={"mode": "fsdp", "gather": gather}))
    assert len(find_trainable("model", model, make_job(parallel={"mode": "fsdp"}))) == 2


def test_float64_is_refused_where_it_is_sharded():
    model = nn.Linear(2, 2).to(torch.float64)
    with pytest.raises(TrainingError, match=r"float64, expected float32 .*parallel.mode: zero1"):
        find_trainable("model", model, make_job(parallel={"mode": "zero1"}))


@pytest.mark.parametrize("mode", ["ddp", "fsdp"])
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_what_writes_its_weight_in_forward_is_refused(kind: Any, mode: str, *, frozen: bool):
    job = make_job(parallel={"mode": mode})
    model = nn.Sequential(kind(8, 4, max_norm=1.0).requires_grad_(not frozen), nn.Linear(4, 2))
    refusal = rf"max_norm \(0: {kind.__name__}\).*optimizer alone.*leave max_norm out"
    with pytest.raises(TrainingError, match=refusal):
        find_trainable("model", model, job)
    with pytest.raises(TrainingError, match=r"\(the module itself: "):
        find_trainable("model", kind(8, 4, max_norm=1.0), job)
    assert len(find_trainable("model", kind(8, 4), job)) == 1


def test_what_is_to_stand_in_place_of_max_norm_looks_up_the_same_and_writes_nothing():
    ids, max_norm = torch.tensor([[1, 3, 3], [0, 2, 5]]), 1.5
    torch.manual_seed(3)
    plain = nn.Embedding(8, 4, padding_idx=0)
    before = plain.weight.detach().clone()
    rows = plain(ids)
    rows = rows * (max_norm / rows.norm(dim=-1, keepdim=True).clamp(min=max_norm))
    rows.sum().backward()
    assert torch.equal(plain.weight, before)
    assert plain.weight.grad is not None
    assert plain.weight.grad.isfinite().all()
    writing = nn.Embedding(8, 4, max_norm=max_norm, _weight=before.clone())
    torch.testing.assert_close(rows, writing(ids))
    bag = nn.EmbeddingBag(8, 4, max_norm=max_norm, mode="sum", _weight=before.clone())
    torch.testing.assert_close(rows.sum(1), bag(ids))


def with_parameter(parameter: nn.Parameter) -> nn.Module:
    module = nn.Linear(2, 2)
    module.register_parameter("odd", parameter)
    return module


@pytest.mark.parametrize(
    ("module", "refusal"),
    [
        (with_parameter(nn.Parameter(torch.zeros(()))), r"dimensions \(odd\).*torch\.zeros\(1\)"),
        (with_parameter(nn.Parameter(torch.zeros(0, 4))), r"elements \(odd\).*leave them out"),
        (with_parameter(nn.Parameter(torch.zeros(4, 0))), r"elements \(odd\)"),
        (
            with_parameter(nn.Parameter(torch.zeros(2, 3).t())),
            r"contiguous \(odd\).*\.contiguous\(\)",
        ),
        (make_model(torch.bfloat16), r"torch\.bfloat16 and torch\.float32.*expected one type"),
    ],
)
def test_what_cannot_be_sharded_is_refused_where_it_would_be(module: nn.Module, refusal: str):
    with pytest.raises(TrainingError, match=refusal):
        find_trainable("model", module, make_job(parallel={"mode": "fsdp"}))
    assert find_trainable("model", module, make_job())
