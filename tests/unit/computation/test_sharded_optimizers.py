"""Optimizers on shards: the bits of those on whole parameters, or an error that says why not."""

from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim
from torch.distributed.tensor import DTensor, Shard

from tests.unit.computation.test_sharded_model import CPU, Net, sharded
from trainflow.communication.mesh import RankMesh
from trainflow.communication.rehearsal import rehearsal_group
from trainflow.computation.optimizer_update import Scales, update_models
from trainflow.computation.sharded_optimizers import require_elementwise
from trainflow.computation.shards import local_part
from trainflow.computation.training_state import TrainingState
from trainflow.errors import TrainingError

SHAPES = (7, 5), (4,), (1, 6), (5, 4, 3)
WORLD = 3
STEPS = 4
IN_PLACE = (
    "uniform_",
    "normal_",
    "exponential_",
    "cauchy_",
    "log_normal_",
    "random_",
    "bernoulli_",
)
ELEMENTWISE = {
    "Adadelta": {},
    "Adagrad": {"weight_decay": 0.1},
    "Adam": {"amsgrad": True},
    "AdamW": {"maximize": True},
    "Adamax": {},
    "ASGD": {},
    "NAdam": {},
    "RAdam": {},
    "RMSprop": {"centered": True, "momentum": 0.9},
    "SGD": {"momentum": 0.9, "nesterov": True},
}


def draw(step: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(step)
    return [torch.randn(shape, generator=generator) for shape in SHAPES]


def call(method: str, tensor: Tensor) -> None:
    getattr(tensor, method)()


def rows_of(whole: Tensor, rank: int) -> Tensor:
    part = -(-len(whole) // WORLD)
    return whole[rank * part : (rank + 1) * part].clone()


def shard(whole: Tensor, rank: int) -> DTensor:
    mesh, rows = RankMesh(CPU, rank, WORLD), rows_of(whole, rank)
    shape, stride = whole.shape, whole.stride()
    return DTensor.from_local(rows, mesh, [Shard(0)], run_check=False, shape=shape, stride=stride)


def train(make: Any, rank: int | None) -> list[Tensor]:
    """Return what so many steps with an optimizer make of parameters, or of a rank's shards."""

    def lay_out(each: Tensor) -> Tensor:
        return each if rank is None else shard(each, rank)

    parameters = [nn.Parameter(lay_out(each)) for each in draw(0)]
    optimizer = make(parameters)
    for step in range(1, STEPS):
        for each, gradient in zip(parameters, draw(step), strict=True):
            each.grad = lay_out(gradient)
        optimizer.step()
    return [local_part(each.detach()) for each in parameters]


WAYS = [(name, how) for name in ELEMENTWISE for how in ({}, {"foreach": True}, {"foreach": False})]


@pytest.mark.parametrize(
    ("name", "how"), [*WAYS, ("Adam", {"fused": True}), ("AdamW", {"fused": True})], ids=str
)
def test_what_computes_each_element_by_itself_has_the_bits_of_whole_parameters(name: str, how: Any):
    def make(parameters: Any) -> optim.Optimizer:
        return getattr(optim, name)(parameters, **ELEMENTWISE[name], **how)

    whole = train(make, None)
    for rank in range(WORLD):
        for own, expected in zip(train(make, rank), whole, strict=True):
            assert torch.equal(own, rows_of(expected, rank))


def test_every_optimizer_of_torch_is_allowed_or_refused():
    kinds = {
        name
        for name, each in vars(optim).items()
        if isinstance(each, type) and issubclass(each, optim.Optimizer)
    }
    refused = {"Adafactor", "LBFGS", "Muon", "Rprop", "SparseAdam"}
    assert kinds - {"Optimizer"} == ELEMENTWISE.keys() | refused


@pytest.mark.parametrize(
    ("make", "refusal"),
    [
        (optim.Adafactor, r"Adafactor, which takes means .*AdamW, or set parallel.mode: ddp"),
        (optim.LBFGS, "LBFGS, which takes products"),
        (optim.Muon, "Muon, which multiplies whole matrices"),
        (optim.Rprop, "Rprop, which writes to single elements"),
        (optim.SparseAdam, "SparseAdam, which takes sparse gradients"),
        (lambda each: optim.SGD(each, fused=True), r"SGD\(fused=True\).*leave fused out"),
        (lambda each: optim.Adagrad(each, fused=True), r"Adagrad\(fused=True\)"),
    ],
)
def test_what_needs_more_than_shards_is_refused(make: Any, refusal: str):
    with pytest.raises(TrainingError, match=refusal):
        require_elementwise(make([nn.Parameter(torch.zeros(2, 2))]))


class OwnSGD(optim.SGD):
    """Has defaults of its own, without those that torch's has since come to know."""

    def __init__(self, parameters: Any):
        optim.Optimizer.__init__(self, parameters, {"lr": 0.1})


class OwnAdagrad(optim.Adagrad):
    def __init__(self, parameters: Any):
        optim.Optimizer.__init__(self, parameters, {"lr": 0.1})


@pytest.mark.parametrize("make", [OwnSGD, OwnAdagrad])
def test_one_that_says_nothing_of_being_fused_is_not(make: Any):
    require_elementwise(make([nn.Parameter(torch.zeros(2, 2))]))


def test_it_is_refused_where_the_model_is_prepared():
    with pytest.raises(TrainingError, match="prepare: got the optimizer Muon"):
        sharded(0, 2, lambda: nn.Linear(2, 2, bias=False), optimizer=optim.Muon)


class Unknown(optim.Optimizer):
    def __init__(self, parameters: Any):
        super().__init__(parameters, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        del closure
        for each in self.param_groups[0]["params"]:
            self.move(each)

    def move(self, parameter: Tensor) -> None:
        raise NotImplementedError


class WithRatio(Unknown):
    """Scales by norms, as LAMB does."""

    def move(self, parameter: Tensor) -> None:
        parameter.sub_(parameter.grad * (parameter.norm() / parameter.grad.norm()))


class WithNumber(Unknown):
    """Scales by a norm that it takes out; torch would give each rank its own."""

    def move(self, parameter: Tensor) -> None:
        parameter.add_(parameter.grad, alpha=-parameter.grad.norm().item())


class WithNoise(Unknown):
    """Draws, as Langevin dynamics do; torch would draw the same into each rank's part."""

    def move(self, parameter: Tensor) -> None:
        parameter.add_(torch.randn_like(parameter))


class WithSelection(Unknown):
    """Does what torch doesn't do on shards."""

    def move(self, parameter: Tensor) -> None:
        parameter[parameter > 0] = 0


@pytest.mark.parametrize(
    ("make", "refusal"),
    [
        (WithRatio, r"commit: the optimizer WithRatio: got a collective .*parallel.mode: ddp"),
        (WithNumber, r"commit: the optimizer WithNumber: got item\(\)"),
        (WithNoise, r"commit: the optimizer WithNoise: got random numbers"),
        (WithSelection, r"commit: got RuntimeError \(.*optimizer WithSelection.*computes each"),
    ],
)
def test_what_an_unknown_one_cannot_do_is_said(make: Any, refusal: str):
    model = sharded(0, 3, Net, optimizer=make)
    model.prepared.reducer.begin(rehearsal_group(3, 3))
    model.prepared.reducer.arm()
    model.handle(torch.arange(4)).square().sum().backward()
    gradients = model.prepared.reducer.finish()
    assert gradients is not None
    with pytest.raises(TrainingError, match=refusal):
        update_models(TrainingState({"model": model.prepared}), [gradients], Scales(1.0, None, 1.0))


def test_every_operation_that_draws_into_shards_is_refused():
    sharded(0, WORLD)
    part = shard(torch.ones(4, 2), 0)
    for draw in (
        torch.rand_like,
        torch.randn_like,
        torch.bernoulli,
        torch.poisson,
        nn.init.trunc_normal_,
        nn.functional.dropout,
        lambda each: torch.randint_like(each, 5),
        lambda each: torch.normal(each, 1.0),
        *(partial(call, method) for method in IN_PLACE),
    ):
        with pytest.raises((TrainingError, NotImplementedError), match=r"draw|strategy"):
            draw(part)


def test_what_every_rank_has_whole_gives_numbers_and_is_drawn_into():
    sharded(0, WORLD)
    whole = DTensor.from_local(torch.ones(()), RankMesh(CPU, 0, 1), run_check=False)
    assert whole.item() == 1.0
    assert whole.exponential_().item() != 1.0
    part = shard(torch.ones(4, 2), 0)
    for use in (lambda: part.norm().item(), part.exponential_):
        with pytest.raises(TrainingError, match="parts of"):
            use()
