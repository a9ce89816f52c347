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


def with_parameter(parameter: nn.Parameter) -> nn.Module:
    module = nn.Linear(2, 2)
    module.register_parameter("odd", parameter)
    return module


@pytest.mark.parametrize(
    ("module", "refusal"),
    [
        (with_parameter(nn.Parameter(torch.zeros(()))), r"dimensions \(odd\).*torch\.zeros\(1\)"),
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
