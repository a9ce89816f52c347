"""A model in parts: what it is built from, and what it costs."""

from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from torch import nn
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
from torch.optim import AdamW
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.checkpoint import CheckpointError

from trainflow.checkpointing.boxes import Box
from trainflow.communication.compression.block_format import FP8
from trainflow.communication.fsdp_collectives import ShardExchange
from trainflow.communication.hybrid_sum import EXACT
from trainflow.communication.mesh import RankMesh
from trainflow.communication.parameter_gather import QuantisedGather
from trainflow.communication.rehearsal import rehearsal_group
from trainflow.computation.blueprint import Blueprint
from trainflow.computation.meta_parameters import materialise, meta_parameters
from trainflow.computation.recomputation import recompute_units
from trainflow.computation.sharded_model import Layout, ShardedModel
from trainflow.computation.sharding import Sharding, find_gathered, find_units
from trainflow.computation.shards import box_of, like, local_part, place_of
from trainflow.computation.state_tree import require_keepable
from trainflow.config.parallel import ParallelConfig
from trainflow.errors import StateError, TrainingError

CPU = torch.device("cpu")
FREES, STAYS = Sharding(), Sharding(stays_in_forward=True)


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


def sharded(
    rank: int, world_size: int, factory=Net, exchange=None, sharding=FREES, optimizer=AdamW
) -> ShardedModel:
    torch.manual_seed(3)
    blueprint = Blueprint(
        factory,
        optimizer,
        lambda optimizer: LambdaLR(optimizer, lambda _: 1.0),
    )
    exchange = exchange or ShardExchange(EXACT)
    return ShardedModel(blueprint, trainable, CPU, Layout(rank, world_size), exchange, sharding)


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


class Twins(nn.Module):
    """Two modules are given the same parameter."""

    def __init__(self):
        super().__init__()
        weight = nn.Parameter(torch.ones(3, 2))
        self.one, self.other = nn.Linear(2, 3), nn.Linear(2, 3)
        self.one.weight = weight
        self.other.weight = weight
        self.third = nn.Linear(2, 3)


def test_a_parameter_that_is_given_to_two_modules_stays_one():
    with meta_parameters():
        module = Twins()
    assert module.one.weight is module.other.weight
    assert [name for name, _ in module.named_parameters()] == [
        n for n, _ in Twins().named_parameters()
    ]


def test_layers_that_do_not_train_stay_so_where_the_model_is_built_again():
    model = sharded(0, 2)
    model.handle.layers[0].eval()
    model.lay_out(Layout(1, 3), with_values=True)
    assert [layer.training for layer in model.handle.layers] == [False, True]
    assert model.handle.training


class Derived(nn.Module):
    """A buffer has what a parameter had at the beginning."""

    def __init__(self, *, is_state: bool):
        super().__init__()
        self.linear = nn.Linear(2, 3)
        self.register_buffer("first", self.linear.weight.detach().clone(), persistent=is_state)

    def forward(self, x):
        return self.linear(x) + self.first.sum()


class Normed(nn.Module):
    """The same as a plain attribute, which forward makes anew."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 3)
        self.norm = self.linear.weight.detach().abs().mean()


def test_what_only_values_could_make_is_refused_unless_it_is_state():
    assert sharded(0, 2, lambda: Derived(is_state=True)).handle
    assert sharded(0, 2, Normed).handle, "it computes that again"
    with pytest.raises(TrainingError, match=r"parameters' values \(first\).*persistent=True"):
        sharded(0, 2, lambda: Derived(is_state=False))


def test_layers_of_lists_are_gathered_one_by_one():
    module = Net()
    assert list(find_units(module)) == list(module.layers)


class Holder(nn.Module):
    """Is not called itself."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 6)


def tie(module: Net) -> Net:
    """Tie a layer to what is in none."""
    module.layers[0][0].bias = module.own = nn.Parameter(torch.zeros(6))
    return module


def share(module: Net) -> Net:
    """Have a layer's part called from elsewhere too."""
    module.own = module.layers[0][0]
    return module


def hold(module: Net) -> Net:
    module.layers[0] = Holder()
    return module


@pytest.mark.parametrize("change", [tie, share, hold])
def test_what_is_not_a_layers_alone_is_gathered_with_the_model(change):
    module = change(Net())
    assert find_gathered(module) == [module.layers[1]]


def test_a_layer_that_comes_several_times_is_one():
    module = Net()
    module.layers.append(module.layers[0])
    module.others = nn.ModuleList([module.layers[0]])
    assert find_gathered(module) == list(module.layers[:2])


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


def test_a_shard_may_not_be_in_what_the_user_registers():
    weight = next(sharded(0, 2).handle.parameters())
    require_keepable({"models": {"model": weight}, "registered": {"ema": {"of": [torch.ones(2)]}}})
    with pytest.raises(StateError, match=r"state at /registered/ema/of/0: got a rank's shard"):
        require_keepable({"registered": {"ema": {"of": [weight]}}})


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
        gradients.begin(rehearsal_group(3, 3))
        gradients.arm()
        model.handle(torch.arange(4)).sum().backward()
        assert gradients.finish() is not None
        model.prepared.optimizer.step()
        before = model.prepared.module
        model.lay_out(Layout(2, 3), with_values=False)
        assert model.prepared.module is not before
        assert model.handle.embed is model.prepared.module.embed


class Counting(ShardExchange):
    """Counts what is gathered; after a failure it gathers values that aren't the parameters'."""

    def __init__(self):
        super().__init__(EXACT)
        self.num_gathers = 0
        self.fails = False

    def gather(self, output, part, unit, name=""):
        self.num_gathers += 1
        super().gather(output, part, unit, name)
        if self.fails:
            self._connected.fail("a rank is gone")
            output.zero_()


def run_forward(model: ShardedModel) -> torch.Tensor:
    model.prepared.reducer.begin(rehearsal_group(3, 3))
    model.prepared.reducer.arm()
    return model.handle(torch.arange(4)).square().sum()


def are_shards(model: ShardedModel) -> bool:
    return all(isinstance(each, DTensor) for each in model.handle.parameters())


@pytest.mark.parametrize(("sharding", "again"), [(FREES, 2), (STAYS, 0)])
def test_layers_are_gathered_again_in_backward_unless_they_stay(sharding, again):
    exchange = Counting()
    model = sharded(0, 3, exchange=exchange, sharding=sharding)
    loss = run_forward(model)
    assert exchange.num_gathers == 3, "two layers, and what is in none"
    loss.backward()
    assert exchange.num_gathers == 3 + again
    assert are_shards(model), "freed"


@pytest.mark.parametrize("sharding", [FREES, STAYS])
def test_a_forward_before_the_commit_does_not_change_what_is_copied_after_it(sharding):
    model = sharded(0, 3, sharding=sharding)
    run_forward(model).backward()
    with torch.no_grad():
        model.handle(torch.arange(4))
    assert model.prepared.reducer.finish() is not None
    assert are_shards(model)


class Observed(nn.Linear):
    """Keeps the weights that it computes with."""

    def __init__(self):
        super().__init__(128, 128)
        self.seen = []

    def forward(self, x):
        self.seen.append(self.weight.detach().clone())
        return super().forward(x)


class Large(nn.Module):
    """Its matrices are large enough to be rounded; a layer runs twice, the head is tied."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(130, 128)
        self.layers = nn.ModuleList([Observed()])
        self.head = nn.Linear(128, 130, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        assert self.head.weight is self.embed.weight
        x = self.embed(tokens)
        for _ in range(2):
            x = torch.tanh(self.layers[0](x))
        return self.head(x)


def test_what_runs_twice_computes_with_the_same_rounded_bits_and_shards_stay_exact():
    exchange = ShardExchange(EXACT, gathering=QuantisedGather(FP8, CPU))
    model = sharded(0, 3, Large, exchange, Sharding(in_bf16=True))
    model.lay_out(Layout(0, 3), with_values=True)
    before = [local_part(each).detach().clone() for each in model.handle.parameters()]
    run_forward(model).backward()
    assert model.prepared.reducer.finish() is not None
    first, second = model.handle.layers[0].seen
    assert torch.equal(first, second)
    shard = local_part(model.handle.layers[0].weight).detach()
    assert not torch.equal(first[: len(shard)], shard.bfloat16()), "rounded on its own rank too"
    assert torch.allclose(first[: len(shard)].float(), shard, rtol=0.067, atol=1e-6)
    after = [local_part(each) for each in model.handle.parameters()]
    assert all(torch.equal(*both) for both in zip(before, after, strict=True))


def test_who_waits_for_sums_names_the_unit():
    told: list[str] = []

    def wait_for(what: str) -> AbstractContextManager[None]:
        told.append(what)
        return nullcontext()

    model = sharded(0, 3, Large, ShardExchange(EXACT, wait_for))
    model.lay_out(Layout(0, 3), with_values=True)
    run_forward(model).backward()
    assert model.prepared.reducer.finish() is not None
    summed = [each for each in told if each.startswith("the sums of gradients of ")]
    names = {each.removeprefix("the sums of gradients of ") for each in summed}
    assert names == {"layers.0", "what is in no unit"}


class Partial(Net):
    """Runs some of its layers, the first of which has a parameter without use."""

    num_layers = 1

    def __init__(self):
        super().__init__()
        self.layers[0].unused = nn.Parameter(torch.ones(5))

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers[: self.num_layers]:
            x = x + layer(x)
        return self.head(x)


@pytest.mark.parametrize("sharding", [FREES, Sharding(in_bf16=True)])
def test_what_has_no_use_gets_zero_and_a_layer_that_does_not_run_nothing(sharding):
    model = sharded(0, 3, Partial, sharding=sharding)
    gradients = model.prepared.reducer

    def run_step() -> set[str]:
        gradients.begin(rehearsal_group(3, 3))
        for is_last in (False, True):
            if is_last:
                gradients.arm()
            model.handle(torch.arange(4)).square().sum().backward()
        assert gradients.finish() is not None
        return {name for name, each in model.handle.named_parameters() if each.grad is not None}

    have = run_step()
    assert have == {"embed.weight", "layers.0.unused", "layers.0.0.weight", "layers.0.0.bias"}
    model.handle.num_layers = 2
    with torch.no_grad():
        model.handle(torch.arange(4))
    model.handle.num_layers = 1
    assert run_step() == have, "it was gathered, on this rank"


class Picky(nn.Module):
    """A layer whose intermediate results have a size that depends on its parameters."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 6)
        nn.init.ones_(self.linear.bias)

    def forward(self, x):
        y = self.linear(x)
        return x + y[y != 0].exp().sum()


class PickyNet(Net):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Picky() for _ in range(2)])


def make_recomputed():
    module = PickyNet()
    recompute_units("model", module, "full")
    return module


def test_a_step_whose_recomputation_meets_garbage_is_void_and_the_next_one_is_not():
    exchange = Counting()
    model = sharded(0, 3, make_recomputed, exchange=exchange)
    model.lay_out(Layout(0, 3), with_values=True)
    loss = run_forward(model)
    exchange.fails = True
    with pytest.raises(CheckpointError):
        loss.backward()
    assert model.prepared.reducer.finish() is None
    exchange.fails = False
    run_forward(model).backward()
    gradients = model.prepared.reducer.finish()
    assert gradients is not None
    assert gradients.norm > 0


def test_sums_are_there_at_once_where_they_are_copied():
    exchange = ShardExchange(EXACT, sums_at_once=True)
    exchange.begin(rehearsal_group(3, 3))
    output, parts = torch.zeros(2), torch.arange(6.0)
    exchange.scatter(output, parts, "unit")
    assert output.tolist() == [0 + 2 + 4, 1 + 3 + 5]
    assert exchange.finish()


def test_a_sum_that_fails_at_once_is_told_at_the_end():
    exchange = ShardExchange(EXACT, sums_at_once=True)
    group = rehearsal_group(3, 3)
    exchange.begin(group)
    group.fail("a rank is gone")
    exchange.scatter(torch.zeros(2), torch.arange(6.0), "unit")
    assert not exchange.finish()


def test_only_what_computes_elsewhere_is_offloaded():
    offloading = ParallelConfig(mode="zero2", cpu_offload=True)
    assert Sharding.of(offloading, CPU) == STAYS
    on_gpu = Sharding.of(offloading, torch.device("cuda", 0))
    assert on_gpu == Sharding(stays_in_forward=True, offloads=True)
    assert on_gpu.home(torch.device("cuda", 0)) == CPU
    assert FREES.home(torch.device("cuda", 0)) == torch.device("cuda", 0)


def test_the_state_of_an_offloaded_shard_lies_beside_it():
    mesh = RankMesh(torch.device("cuda"), 0, 2)
    meta = TensorMeta(torch.Size((4, 3)), (3, 1), torch.float32)
    shard = DTensor(
        torch.ones(2, 3), DTensorSpec(mesh, (Shard(0),), tensor_meta=meta), requires_grad=False
    )
    moment = like(shard, torch.full((2, 3), 5.0))
    assert moment.shape == (4, 3)
    assert local_part(moment).device == CPU
    assert local_part(moment).tolist() == [[5.0] * 3] * 2
