"""What a factory draws, with values and without."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from trainflow.computation.module_factory import ModuleFactory

CPU = torch.device("cpu")


class Drawing(nn.Module):
    """Draws something, once it has parameters, that isn't state."""

    def __init__(self, draw: Callable[[nn.Linear], object]):
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.drawn = draw(self.linear)


def draw_isolated(_: nn.Linear) -> Tensor:
    """Leave no trace in the generator."""
    with torch.random.fork_rng():
        torch.manual_seed(4)
        nn.Linear(6, 6)
        return torch.randn(3)


def draw_from_its_own(linear: nn.Linear) -> Tensor:
    own = torch.Generator().manual_seed(4)
    nn.init.normal_(linear.weight, generator=own)
    return torch.randn(3, generator=own)


def draw_after_what_skips_meta(linear: nn.Linear) -> Tensor:
    nn.init.orthogonal_(linear.weight)
    return torch.randn(3)


DRAWS = {
    "a tensor": lambda _: torch.randn(3),
    "whole numbers": lambda _: torch.empty(3, dtype=torch.int64).random_(100),
    "an order": lambda _: torch.randperm(9).tolist(),
    "a number": lambda _: float(torch.rand(())),
    "beside a parameter": lambda linear: torch.rand(3, device=linear.weight.device),
    "isolated": draw_isolated,
    "from its own generator": draw_from_its_own,
    "after what skips meta tensors": draw_after_what_skips_meta,
}


@pytest.mark.parametrize("draw", DRAWS.values(), ids=DRAWS.keys())
def test_what_is_drawn_after_a_parameter_is_the_same_each_time(draw):
    torch.manual_seed(3)
    expected = Drawing(draw)
    torch.manual_seed(3)
    factory = ModuleFactory(lambda: Drawing(draw), CPU)
    for with_values in (False, True, False):
        torch.manual_seed(8)
        module = factory.make(with_values=with_values)
        assert torch.equal(torch.as_tensor(module.drawn), torch.as_tensor(expected.drawn))
        assert torch.equal(module.linear.weight, expected.linear.weight), "it needs values"


@pytest.mark.parametrize(
    "make", [lambda tensor: tensor, lambda tensor: [1, tensor], lambda tensor: {"mean": (tensor,)}]
)
def test_a_plain_tensor_that_is_made_from_parameters_is_the_same_each_time(make):
    torch.manual_seed(3)
    expected = nn.Linear(6, 6).weight.abs().mean().item()
    torch.manual_seed(3)
    factory = ModuleFactory(
        lambda: Drawing(lambda linear: make(linear.weight.detach().abs().mean())), CPU
    )
    for with_values in (False, True, False):
        module = factory.make(with_values=with_values)
        assert module.drawn == make(torch.tensor(expected))


class Filled(nn.Module):
    """Draws before it has parameters, and parameters."""

    def __init__(self):
        super().__init__()
        self.register_buffer("directions", torch.randn(3, 3), persistent=False)
        self.linear = nn.Linear(6, 6)
        self.recurrent = nn.LSTM(3, 2)  # has its parameters in a list, too
        nn.init.trunc_normal_(self.linear.weight)
        self.linear.bias.data.bernoulli_(0.5)


def test_parameters_stay_without_values_where_nothing_is_drawn_after_them():
    torch.manual_seed(3)
    expected = Filled().directions
    torch.manual_seed(3)
    factory = ModuleFactory(Filled, CPU)
    for with_values in (False, True, False):
        module = factory.make(with_values=with_values)
        assert torch.equal(module.directions, expected)
        assert {each.is_meta for each in module.parameters()} == {not with_values}


class Failing(nn.Module):
    """Is built only where parameters have values."""

    def __init__(self, use: Callable[[nn.Linear], object]):
        super().__init__()
        self.register_buffer("before", torch.randn(3), persistent=False)
        self.linear = nn.Linear(6, 6)
        self.used = use(self.linear)
        self.register_buffer("after", torch.randn(3), persistent=False)
        self.head = nn.Linear(6, 2)


def learn_a_size(linear: nn.Linear) -> int:
    with torch.no_grad():
        return nn.Sequential(linear, nn.Flatten())(torch.zeros(2, 3, 6)).shape[1]


def put_values(linear: nn.Linear) -> None:
    linear.weight.data = torch.randn(6, 6) / 6


def require_values(linear: nn.Linear) -> None:
    assert linear.weight.abs().sum() > 0


def size_lazily(linear: nn.Linear) -> nn.Module:
    lazy = nn.LazyLinear(3)
    lazy(torch.zeros(2, linear.out_features))
    return lazy


def build_in_double(_: nn.Linear) -> nn.Module:
    """Come to put torch's settings back only where nothing fails."""
    dtype, with_gradients = torch.get_default_dtype(), torch.is_grad_enabled()
    torch.set_default_dtype(torch.float64)
    torch.set_grad_enabled(False)
    double = nn.Linear(3, 3)
    float(double.weight.sum())
    torch.set_default_dtype(dtype)
    torch.set_grad_enabled(with_gradients)
    return double


NEEDING = {
    "a dry forward": learn_a_size,
    "values that are put in": put_values,
    "an assert": require_values,
    "a number": lambda linear: float(linear.weight.detach().norm()),
    "a list": lambda linear: linear.bias.tolist(),
    "an array": lambda linear: linear.bias.detach().numpy().copy(),
    "a lazy module": size_lazily,
    "torch's settings": build_in_double,
}


@pytest.mark.parametrize("use", NEEDING.values(), ids=NEEDING.keys())
def test_what_fails_without_values_is_built_with_them_each_time(use):
    torch.manual_seed(3)
    expected = Failing(use)
    torch.manual_seed(3)
    factory, tries = ModuleFactory(lambda: Failing(use), CPU), []
    for with_values in (False, True, False):
        torch.manual_seed(8)
        module = factory.make(with_values=with_values)
        assert_same(module, expected)
        tries.append(torch.rand(3).tolist())
    assert tries[0] == tries[1] == tries[2]
    assert torch.get_default_dtype() == torch.float32
    assert torch.is_grad_enabled()


def assert_same(module: nn.Module, expected: nn.Module) -> None:
    found, wanted = (
        {**each.state_dict(), **dict(each.named_buffers())} for each in (module, expected)
    )
    assert found.keys() == wanted.keys()
    for name, each in wanted.items():
        assert found[name].dtype == each.dtype
        assert torch.equal(found[name], each), name


def test_it_fails_without_values_once():
    built = []

    def make() -> nn.Module:
        built.append("begun")
        module = Failing(learn_a_size)
        built.append("done")
        return module

    factory = ModuleFactory(make, CPU)
    factory.make(with_values=False)
    factory.make(with_values=False)
    assert built == ["begun", "begun", "done", "begun", "done"]


def test_what_fails_with_values_too_is_raised_as_it_is():
    errors = []

    def fail(linear: nn.Linear) -> None:
        errors.append(KeyError(f"no width on {linear.weight.device}"))
        raise errors[-1]

    with pytest.raises(KeyError, match="no width on cpu") as caught:
        ModuleFactory(lambda: Failing(fail), CPU).make(with_values=False)
    assert caught.value is errors[-1]
    assert caught.value.__context__ is None, "nothing is said of how else it was tried"


def keep_generator(linear: nn.Linear) -> torch.Generator:
    own = torch.Generator().manual_seed(4)
    nn.init.normal_(linear.weight, generator=own)
    return own


def test_a_generator_that_the_module_keeps_goes_on_alike():
    factory = ModuleFactory(lambda: Drawing(keep_generator), CPU)
    seen = [
        torch.rand(3, generator=factory.make(with_values=with_values).drawn).tolist()
        for with_values in (False, True, False)
    ]
    assert seen[0] == seen[1] == seen[2]


@pytest.mark.parametrize(
    "model", [Filled, lambda: nn.Linear(6, 6), lambda: Drawing(lambda _: torch.randn(3))]
)
def test_generators_go_on_alike_after_it_and_not_from_where_it_began(model):
    torch.manual_seed(3)
    began = torch.get_rng_state()
    factory = ModuleFactory(model, CPU)
    seen = []
    for with_values in (False, True, False):
        factory.make(with_values=with_values)
        assert not torch.equal(torch.get_rng_state(), began)
        seen.append(torch.rand(3).tolist())
    assert seen[0] == seen[1] == seen[2]
