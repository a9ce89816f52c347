"""An optimizer's step with other learning rates than its own."""

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.optim import SGD

from trainflow.computation.optimizer_update import scaled_lr


@pytest.fixture
def weight() -> Tensor:
    weight = torch.ones(1, requires_grad=True)
    weight.grad = torch.ones(1)
    return weight


@pytest.mark.parametrize("rate", [0.5, torch.tensor(0.5)], ids=["number", "tensor"])
def test_a_step_uses_the_scaled_rate_and_the_optimizer_keeps_its_own(weight: Tensor, rate: Any):
    optimizer = SGD([weight], lr=rate)
    with scaled_lr(optimizer, 0.25):
        optimizer.step()
    assert weight.item() == 1.0 - 0.25 * 0.5
    assert optimizer.param_groups[0]["lr"] is rate
    assert float(rate) == 0.5


def test_each_group_has_its_own_rate(weight: Tensor):
    other = torch.ones(1, requires_grad=True)
    other.grad = torch.ones(1)
    optimizer = SGD([{"params": [weight], "lr": 0.5}, {"params": [other], "lr": 0.25}])
    with scaled_lr(optimizer, 2.0):
        optimizer.step()
    assert (weight.item(), other.item()) == (0.0, 0.5)


def test_rates_are_put_back_though_the_step_raises(weight: Tensor):
    optimizer = SGD([weight], lr=0.5)
    with pytest.raises(KeyError), scaled_lr(optimizer, 2.0):
        raise KeyError
    assert optimizer.param_groups[0]["lr"] == 0.5
