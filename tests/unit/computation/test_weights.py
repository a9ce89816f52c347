"""Weights from elsewhere fit the model, or are refused by name."""

import pytest
import torch

from tests.unit.checkpointing.small_job import Args, Net
from trainflow.computation.weights import load_weights
from trainflow.errors import StateError


def make_net(seed: int) -> Net:
    torch.manual_seed(seed)
    return Net(Args())


@pytest.fixture
def saved() -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in make_net(1).state_dict().items()}


def test_all_weights_are_taken_over(saved: dict[str, torch.Tensor]):
    net = make_net(2)
    load_weights(net, saved)
    assert all(torch.equal(tensor, saved[name]) for name, tensor in net.state_dict().items())


@pytest.mark.parametrize("left", ["embed.weight", "head.weight"])
def test_tied_weights_come_under_either_name(saved: dict[str, torch.Tensor], left: str):
    net, expected = make_net(2), saved["embed.weight"]
    load_weights(net, {name: t for name, t in saved.items() if name != left})
    assert torch.equal(net.embed.weight, expected)
    assert net.head.weight is net.embed.weight


def test_tied_weights_that_differ_are_refused(saved: dict[str, torch.Tensor]):
    with pytest.raises(StateError, match=r"head.weight: got other values than those of the tensor"):
        load_weights(make_net(2), saved | {"head.weight": torch.zeros(7, 12)})


def test_a_frozen_parameter_may_be_missing_but_not_another_one(saved: dict[str, torch.Tensor]):
    load_weights(make_net(2), {name: t for name, t in saved.items() if name != "fixed"})
    with pytest.raises(StateError, match="fixed: got other values than those of the frozen"):
        load_weights(make_net(2), saved | {"fixed": torch.ones(4)})


def test_a_missing_tensor_is_named(saved: dict[str, torch.Tensor]):
    del saved["norm.running_var"]
    with pytest.raises(StateError, match=r"nothing for some of its tensors \(norm.running_var\)"):
        load_weights(make_net(2), saved)


def test_an_unknown_tensor_is_named(saved: dict[str, torch.Tensor]):
    with pytest.raises(StateError, match=r"that the model doesn't have \(other\)"):
        load_weights(make_net(2), saved | {"other": torch.zeros(1)})


def test_a_type_may_be_widened_and_not_narrowed(saved: dict[str, torch.Tensor]):
    net = make_net(2)
    del saved["head.weight"]
    load_weights(net, saved | {"embed.weight": saved["embed.weight"].bfloat16()})
    assert torch.equal(net.embed.weight, saved["embed.weight"].bfloat16().float())
    with pytest.raises(StateError, match=r"brief: got .*float32, expected .*bfloat16"):
        load_weights(net, saved | {"brief": torch.zeros(3, 5)})
    with pytest.raises(StateError, match="codes: got"):
        load_weights(net, saved | {"codes": torch.zeros(6)})


def test_another_shape_is_refused(saved: dict[str, torch.Tensor]):
    with pytest.raises(StateError, match=r"norm.bias: got \(3,\).*expected \(12,\)"):
        load_weights(make_net(2), saved | {"norm.bias": torch.zeros(3)})
