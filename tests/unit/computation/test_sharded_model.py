"""A model in parts: what it is built from, and what it costs."""

import pytest
import torch
from torch import nn
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR

from trainflow.checkpointing.boxes import Box
from trainflow.communication.fsdp_collectives import ShardExchange
from trainflow.communication.rehearsal import rehearsal_group
from trainflow.communication.scattered_sum import ExactScatter
from trainflow.computation.blueprint import Blueprint
from trainflow.computation.meta_parameters import materialise, meta_parameters
from trainflow.computation.sharded_model import Layout, ShardedModel
from trainflow.computation.sharding import find_units
from trainflow.computation.shards import box_of, local_part, place_of

CPU = torch.device("cpu")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(10, 6)
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(6, 6)) for _ in range(2)])
        self.head = nn.Linear(6, 10, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("frequencies", torch.arange(3.0), persistent=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x)


def trainable(module: nn.Module):
    return [(name, each) for name, each in module.named_parameters() if each.requires_grad]


def sharded(rank: int, world_size: int, factory=Net) -> ShardedModel:
    torch.manual_seed(3)
    blueprint = Blueprint(
        factory,
        lambda parameters: AdamW(parameters, lr=0.1),
        lambda optimizer: LambdaLR(optimizer, lambda _: 1.0),
    )
    return ShardedModel(
        blueprint, trainable, CPU, Layout(rank, world_size), ShardExchange(ExactScatter())
    )


def test_parameters_on_the_meta_device_keep_ties_and_buffers():
    with meta_parameters():
        module = Net()
    assert {each.device.type for each in module.parameters()} == {"meta"}
    assert module.head.weight is module.embed.weight
    assert module.frequencies.tolist() == [0, 1, 2]
    assert next(Net().parameters()).device == CPU
    materialise(module, CPU)
    assert module.frequencies.tolist() == [0, 1, 2]
    assert module.embed.weight.abs().sum() == 0


def test_layers_of_lists_are_gathered_one_by_one():
    module = Net()
    assert list(find_units(module)) == list(module.layers)


@pytest.mark.parametrize("world_size", [1, 3, 4, 7])
def test_shards_make_up_the_whole_model_as_its_factory_makes_it(world_size):
    torch.manual_seed(3)
    whole = dict(Net().named_parameters())
    for name, expected in whole.items():
        parts: list[torch.Tensor] = []
        rows = 0
        for rank in range(world_size):
            model = sharded(rank, world_size)
            model.lay_out(Layout(rank, world_size), with_values=True)
            parameter = dict(model.handle.named_parameters())[name]
            box = box_of(parameter)
            assert box.offset[0] == min(rows, len(expected))
            assert tuple(local_part(parameter).shape) == box.shape
            rows += box.shape[0]
            parts.append(local_part(parameter).detach())
        assert torch.equal(torch.cat(parts), expected)


def test_a_tensor_that_is_not_sharded_is_where_it_is():
    assert place_of(torch.zeros(3, 2)) is None
    assert box_of(torch.zeros(3, 2)) == Box((0, 0), (3, 2))


def test_without_values_there_is_memory_for_the_shard_alone():
    model = sharded(1, 5)
    parts = [local_part(each) for each in model.handle.parameters()]
    assert all(not part.abs().sum() for part in parts)
    whole = sum(each.numel() for each in Net().parameters())
    assert sum(part.untyped_storage().nbytes() for part in parts) <= 4 * (whole / 5 + 3 * 12)


class Frozen(Net):
    def __init__(self):
        super().__init__()
        self.layers[0].requires_grad_(requires_grad=False)


def test_what_is_frozen_comes_from_the_factory():
    torch.manual_seed(3)
    expected = Frozen().layers[0][0].weight
    model = sharded(0, 2, Frozen)
    assert torch.equal(local_part(model.handle.layers[0][0].weight), expected[:3])


def test_a_step_can_be_rehearsed_alone_and_the_handle_follows():
    model = sharded(0, 3)
    for _ in range(2):
        gradients = model.prepared.reducer
        gradients.begin(rehearsal_group(3))
        gradients.arm()
        model.handle(torch.arange(4)).sum().backward()
        assert gradients.finish() is not None
        model.prepared.optimizer.step()
        before = model.prepared.module
        model.lay_out(Layout(2, 3), with_values=False)
        assert model.prepared.module is not before
        assert model.handle.embed is model.prepared.module.embed
