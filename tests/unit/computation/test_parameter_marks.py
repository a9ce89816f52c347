"""What a factory puts on parameters, where they are sharded."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from tests.distributed.jobs import make_job
from tests.unit.computation.test_sharded_model import sharded
from trainflow.communication.rehearsal import rehearsal_group
from trainflow.computation.meta_parameters import meta_parameters
from trainflow.computation.sharded_model import Layout, ShardedModel
from trainflow.computation.sharding import Sharding
from trainflow.computation.trainable import find_trainable
from trainflow.errors import TrainingError


class Layer(nn.Linear):
    """Its weight is marked before the layer has it, its bias after."""

    def __init__(self):
        super().__init__(6, 6)
        weight = nn.Parameter(torch.ones(6, 6))
        weight.scale = 2.0
        self.weight = weight
        self.bias.no_decay = True

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x * self.weight.scale)


class Marked(nn.Module):
    """Has a mark on a weight that is given to two modules, one of which is no unit."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Layer(), Layer()])
        self.head, self.other = nn.Linear(6, 6), nn.Linear(6, 6)
        self.other.weight = self.head.weight
        self.other.weight.scale = 3.0

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x * self.head.weight.scale) + self.other(x)


def marks_of(module: nn.Module) -> dict[str, object]:
    return {
        f"{name} {key}": getattr(each, key)
        for name, each in module.named_parameters(remove_duplicate=False)
        for key in ("scale", "no_decay")
        if hasattr(each, key)
    }


def run_step(model: ShardedModel) -> None:
    model.prepared.reducer.begin(rehearsal_group(3, 3))
    model.prepared.reducer.arm()
    model.handle(torch.ones(2, 6)).sum().backward()
    assert model.prepared.reducer.finish() is not None


@pytest.mark.parametrize("sharding", [Sharding(), Sharding(stays_in_forward=True, in_bf16=True)])
@pytest.mark.parametrize("with_values", [False, True])
def test_attributes_stay(sharding: Sharding, *, with_values: bool):
    expected = marks_of(Marked())
    assert len(expected) == 6
    seen: list[dict[str, bool]] = []

    def make_optimizer(parameters):
        parameters = list(parameters)
        seen.append([hasattr(each, "no_decay") for each in parameters])
        return torch.optim.SGD(parameters, lr=0.1)

    model = sharded(0, 3, Marked, sharding=sharding, optimizer=make_optimizer)
    assert marks_of(model.handle) == expected
    model.lay_out(Layout(1, 3), with_values=with_values)
    for _ in range(2):
        run_step(model)
        assert marks_of(model.handle) == expected
    assert seen == [[False, True, False, True, False, False, False]] * 2


def add_hook(module: nn.Linear) -> None:
    module.bias.register_hook(lambda gradient: gradient * 0)


def add_hook_on_sums(module: nn.Linear) -> None:
    module.bias.register_post_accumulate_grad_hook(lambda _: None)


def bring_hooked(module: nn.Linear) -> None:
    bias = nn.Parameter(torch.zeros(2))
    bias.register_hook(lambda gradient: gradient * 0)
    module.bias = bias


@pytest.mark.parametrize("add", [add_hook, add_hook_on_sums, bring_hooked])
def test_hooks_are_refused_where_they_would_be_lost(add: Callable[[nn.Linear], None]):
    def make() -> nn.Module:
        module = nn.Linear(2, 2)
        add(module)
        return module

    with meta_parameters():
        without_values = make()
    for module in (make(), without_values):
        with pytest.raises(TrainingError, match=r"prepare\('model'\): got hooks .*\(bias\).*ddp"):
            find_trainable("model", module, make_job(parallel={"mode": "fsdp"}))
        assert find_trainable("model", module, make_job())


def test_hooks_that_are_put_on_parts_are_refused_in_the_next_step():
    model = sharded(0, 3)
    handle = model.handle.embed.weight.register_hook(lambda gradient: gradient)
    with pytest.raises(TrainingError, match=r"steps: got hooks on parameters \(embed.weight\)"):
        model.prepared.reducer.begin(rehearsal_group(3, 3))
    handle.remove()
    model.prepared.reducer.begin(rehearsal_group(3, 3))
