"""Plain DistributedDataParallel with compressed gradients: two processes, no Ray."""

import gc
import inspect
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.parallel import DistributedDataParallel

from tests.distributed.ddp_processes import WORLD
from trainflow.communication import ddp_comm_hook

STEPS = 5
NUM_EQUAL = 60
SHAPES = [(60, 50), (60, 50), (7,), (60, 50), (50, 60), (60, 50)]
FED_BACK = [
    {"compression": "int8", "error_feedback": True},
    {"compression": "fp8", "error_feedback": True},
    {"compression": "int4", "error_feedback": True},
    {"compression": "top_k", "top_k_fraction": 0.05},
    {"compression": "power_sgd"},
]


def train(
    rank: int, compression: str | None, bad_step: int | None = None, **settings: Any
) -> dict[str, Any]:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(16, 300), nn.Tanh(), nn.Linear(300, 200), nn.Linear(200, 1))
    model = DistributedDataParallel(module, bucket_cap_mb=0.1)
    if compression is not None:
        model.register_comm_hook(None, ddp_comm_hook(compression, **settings))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    finite: list[bool] = []
    for step in range(STEPS):
        inputs = torch.randn(32, 16, generator=torch.Generator().manual_seed(100 * step + rank))
        loss = nn.functional.mse_loss(model(inputs), inputs.sum(1, keepdim=True))
        optimizer.zero_grad()
        (loss * torch.inf if (step, rank) == (bad_step, 1) else loss).backward()
        finite.append(all(p.grad.isfinite().all() for p in model.parameters()))
        if finite[-1]:
            optimizer.step()
    return {"weights": [p.detach().clone() for p in model.parameters()], "finite": finite}


def train_on_one_gradient(rank: int, settings: dict[str, Any]) -> dict[str, Any]:
    """Plain descent along a gradient that never changes; it differs by rank."""
    weight = torch.randn(2, 120, 90, generator=torch.Generator().manual_seed(7))
    model = DistributedDataParallel(_Slope(), bucket_cap_mb=0.01)
    model.register_comm_hook(None, ddp_comm_hook(**settings))
    for _ in range(NUM_EQUAL):
        model.zero_grad()
        model(weight[rank]).backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.sub_(parameter.grad)
    return {"moved": [p.detach().clone() for p in model.parameters()], "along": weight.mean(0)}


class _Slope(nn.Module):
    """Two weights, each in a bucket of its own after the first backward; linear in both."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.zeros(120, 90))
        self.second = nn.Parameter(torch.zeros(120, 90))

    def forward(self, along: torch.Tensor) -> torch.Tensor:
        return (self.first * along).sum() + (self.second * along).sum()


def train_scaled(rank: int, growth_interval: int | None, compression: str) -> list[torch.Tensor]:
    """With a loss scale that doubles every few steps, or with none."""
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(64, 50), bucket_cap_mb=0.01)
    scaler = None
    if growth_interval is not None:
        scaler = GradScaler("cpu", init_scale=256.0, growth_interval=growth_interval)
    hook = ddp_comm_hook(compression, error_feedback=True, grad_scaler=scaler)
    model.register_comm_hook(None, hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for step in range(8):
        inputs = torch.randn(32, 64, generator=torch.Generator().manual_seed(100 * step + rank))
        optimizer.zero_grad()
        loss = model(inputs).square().mean()
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
    return [p.detach().clone() for p in model.parameters()]


def left_out(hook: Callable[..., Any], parameters: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """What is kept for the next step, by parameter."""
    buckets = inspect.getclosurevars(hook).nonlocals["buckets"]
    left = []
    for parameter in parameters:
        kept = buckets.kept[parameter]
        index = [id(each) for each in kept.parameters].index(id(parameter))
        left.append(kept.residuals.kept[0][kept.slots[index]].view_as(parameter).clone())
    return left


def gradients_of(step: int, rank: int, size: float = 1.0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * step + rank)
    return [torch.randn(shape, generator=generator) * size for shape in SHAPES]


class _Books:
    """What was to be sent, and what was; `close` adds what is still left."""

    def __init__(self, parameters: Sequence[torch.Tensor]):
        self._parameters = parameters
        self.given = [torch.zeros_like(each, dtype=torch.float64) for each in parameters]
        self.sent = [torch.zeros_like(each) for each in self.given]

    def add(self, given: Sequence[torch.Tensor | None], means: Sequence[torch.Tensor | None]):
        for total, gradient in zip(self.given, given, strict=True):
            total.add_(0 if gradient is None else gradient)
        for total, mean in zip(self.sent, means, strict=True):
            total.add_(0 if mean is None else mean.double() * WORLD)

    def close(self, hook: Callable[..., Any]) -> dict[str, Any]:
        left = left_out(hook, self._parameters)
        return {"given": self.given, "sent": self.sent, "left": left}


@dataclass(frozen=True)
class _Bucket:
    """As DDP shows one to a hook."""

    own: list[torch.Tensor]
    flat: torch.Tensor
    is_the_last: bool

    def parameters(self) -> list[torch.Tensor]:
        return self.own

    def buffer(self) -> torch.Tensor:
        return self.flat

    def is_last(self) -> bool:
        return self.is_the_last


def call_hook(
    hook: Callable[..., Any],
    parameters: Sequence[torch.Tensor],
    gradients: Sequence[torch.Tensor],
    layout: Sequence[Sequence[int]],
) -> list[torch.Tensor]:
    """One backward in buckets as given; returns the means by parameter."""
    futures = [
        hook(
            None,
            _Bucket(
                [parameters[index] for index in bucket],
                torch.cat([gradients[index].flatten() for index in bucket]),
                bucket is layout[-1],
            ),
        )
        for bucket in layout
    ]
    means = list(gradients)
    for bucket, future in zip(layout, futures, strict=True):
        parts = future.value().split([parameters[index].numel() for index in bucket])
        for index, part in zip(bucket, parts, strict=True):
            means[index] = part.view_as(parameters[index])
    return means


def sum_in_layouts(
    rank: int, settings: dict[str, Any], layouts: Sequence[Sequence[Sequence[int]]], size: float
) -> dict[str, Any]:
    parameters = [nn.Parameter(torch.zeros(shape)) for shape in SHAPES]
    hook = ddp_comm_hook(**settings)
    books = _Books(parameters)
    for step, layout in enumerate(layouts):
        given = gradients_of(step, rank, size)
        books.add(given, call_hook(hook, parameters, given, layout))
    return books.close(hook)


class _Slopes(nn.Module):
    """The gradient of each weight is what is given, None where it is not used."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList(torch.zeros(shape) for shape in SHAPES)

    def forward(self, gradients: Sequence[torch.Tensor | None]) -> torch.Tensor:
        pairs = zip(self.weights, gradients, strict=True)
        return torch.stack([(own * each).sum() for own, each in pairs if each is not None]).sum()


def sum_in_ddp(rank: int, settings: dict[str, Any]) -> dict[str, Any]:
    """One bucket at first, then several."""
    module = _Slopes()
    model = DistributedDataParallel(module, bucket_cap_mb=0.03)
    model.register_comm_hook(None, hook := ddp_comm_hook(**settings))
    books = _Books(list(module.parameters()))
    for step in range(STEPS):
        given = gradients_of(step, rank)
        model.zero_grad()
        model(given).backward()
        books.add(given, [each.grad for each in module.parameters()])
    return books.close(hook)


def sum_with_unused(rank: int, settings: dict[str, Any], *, set_to_none: bool) -> dict[str, Any]:
    """One weight is used by no rank every second step, another by one rank alone."""
    module = _Slopes()
    model = DistributedDataParallel(module, bucket_cap_mb=0.03, find_unused_parameters=True)
    model.register_comm_hook(None, hook := ddp_comm_hook(**settings))
    books = _Books(list(module.parameters()))
    for step in range(2 * STEPS):
        given: list[torch.Tensor | None] = [*gradients_of(step, rank)]
        if step % 2:
            given[1] = None
        if (step % 3, rank) == (1, 1):
            given[3] = None
        model.zero_grad(set_to_none=set_to_none)
        model(given).backward()
        books.add(given, [each.grad for each in module.parameters()])
    return books.close(hook)


def sum_after_a_bad_step(rank: int, settings: dict[str, Any]) -> dict[str, list[Any]]:
    """Once something of rank 1 isn't finite; a first or a last element, in this bucket or that."""
    seen: dict[str, list[Any]] = {"finite": [], "before": [], "after": []}
    for bad in (torch.nan, torch.inf, -torch.inf):
        for weight, element in ((0, 0), (2, -1), (5, -1)):
            module = _Slopes()
            model = DistributedDataParallel(module, bucket_cap_mb=0.03)
            model.register_comm_hook(None, hook := ddp_comm_hook(**settings))
            for step in range(STEPS):
                given = gradients_of(step, rank)
                if (step, rank) == (3, 1):
                    given[weight].view(-1)[element] = bad
                if step == 3:
                    seen["before"].append(left_out(hook, list(module.parameters())))
                model.zero_grad()
                model(given).backward()
                if step == 3:
                    seen["after"].append(left_out(hook, list(module.parameters())))
                seen["finite"].append(all(p.grad.isfinite().all() for p in module.parameters()))
    return seen


def sum_halves_that_overflow_when_scaled(rank: int) -> dict[str, Any]:
    """What the first step leaves out takes the second's sum just over what fp16 holds."""
    parameters = [nn.Parameter(torch.zeros(64, dtype=torch.float16))]
    scaler = GradScaler("cpu", init_scale=65536.0)
    hook = ddp_comm_hook("int8", error_feedback=True, grad_scaler=scaler)
    given = torch.full((64,), 65504.0, dtype=torch.float16)
    given[1] = 65216.0
    call_hook(hook, parameters, [given], [[0]])
    before = left_out(hook, parameters)
    given = torch.full((64,), 65504.0, dtype=torch.float16)
    means = call_hook(hook, parameters, [given], [[0]])
    return {"before": before, "after": left_out(hook, parameters), "means": means}


def sum_large_halves(rank: int, compression: str) -> torch.Tensor:
    """Two ranks' gradients, each near the largest fp16 number."""
    parameter = nn.Parameter(torch.zeros(64, dtype=torch.float16))
    given = torch.full((64,), 60_000.0, dtype=torch.float16)
    return call_hook(ddp_comm_hook(compression), [parameter], [given], [[0]])[0]


def train_two_models(rank: int, settings: dict[str, Any]) -> tuple[int, int]:
    """One after the other; returns what lives of the first, and of how much something is kept."""
    hook = ddp_comm_hook(**settings)
    first: list[weakref.ref[nn.Parameter]] = []
    for _ in range(2):
        module = _Slopes()
        model = DistributedDataParallel(module, bucket_cap_mb=0.03)
        model.register_comm_hook(None, hook)
        for step in range(2):
            model(gradients_of(step, rank)).backward()
        first = first or [weakref.ref(each) for each in module.parameters()]
        del model, module
        gc.collect()
    num_alive = sum(each() is not None for each in first)
    return num_alive, len(inspect.getclosurevars(hook).nonlocals["buckets"].kept)


def train_on_threads(rank: int, num_threads: Sequence[int]) -> list[torch.Tensor]:
    torch.set_num_threads(num_threads[rank])
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Linear(64, 30_000, bias=False))
    model.register_comm_hook(None, ddp_comm_hook("power_sgd", power_sgd_rank=16))
    means = []
    for step in range(2):
        inputs = torch.randn(8, 64, generator=torch.Generator().manual_seed(100 * step + rank))
        model.zero_grad()
        model(inputs).square().sum().backward()
        means += [each.grad.clone() for each in model.parameters()]
    return means


@pytest.mark.parametrize(
    ("compression", "tolerance"), [("bf16", 2e-3), ("int8", 2e-3), ("int4", 0.03)]
)
def test_ranks_stay_equal_and_near_what_plain_ddp_makes(in_processes, compression, tolerance):
    plain, _ = in_processes(train, None)
    first, second = in_processes(train, compression)
    assert all(map(torch.equal, first["weights"], second["weights"]))
    for own, exact in zip(first["weights"], plain["weights"], strict=True):
        torch.testing.assert_close(own, exact, rtol=0, atol=tolerance)
    assert not all(map(torch.equal, first["weights"], plain["weights"]))


def test_an_infinite_gradient_of_one_rank_is_seen_by_all_and_passes(in_processes):
    first, second = in_processes(train, "int8", 2)
    assert first["finite"] == second["finite"] == [True, True, False, True, True]
    assert all(map(torch.equal, first["weights"], second["weights"]))


@pytest.mark.parametrize(
    "settings",
    [
        {"compression": "int4", "error_feedback": True},
        {"compression": "top_k", "top_k_fraction": 0.1},
        {"compression": "power_sgd", "power_sgd_rank": 8},
    ],
    ids=lambda settings: settings["compression"],
)
def test_what_is_left_out_comes_later(in_processes, settings):
    """DDP changes its buckets after the first backward; what was kept is kept for all of them."""
    first, second = in_processes(train_on_one_gradient, settings)
    assert all(map(torch.equal, first["moved"], second["moved"]))
    for moved in first["moved"]:
        off = (moved + NUM_EQUAL * first["along"]).norm() / (NUM_EQUAL * first["along"]).norm()
        assert off < 0.25


def test_without_feedback_it_never_comes(in_processes):
    settings = {"compression": "int4", "error_feedback": False}
    fed_back = {"compression": "int4", "error_feedback": True}
    off = [
        (result["moved"][0] + NUM_EQUAL * result["along"]).norm()
        for result, _ in (
            in_processes(train_on_one_gradient, each) for each in (settings, fed_back)
        )
    ]
    assert off[0] > 10 * off[1]


@pytest.mark.parametrize("compression", ["int8", "top_k", "power_sgd"])
def test_the_units_of_what_is_left_out_do_not_change_with_the_loss_scale(in_processes, compression):
    plain, _ = in_processes(train_scaled, None, compression)
    scaled, _ = in_processes(train_scaled, 3, compression)
    assert all(map(torch.equal, plain, scaled))


def _assert_nothing_is_lost(results: list[dict[str, Any]]) -> None:
    """All that was sent, plus what is still left, is the sum of all gradients."""
    first, second = results
    assert all(map(torch.equal, first["sent"], second["sent"]))
    for index, sent in enumerate(first["sent"]):
        given, left = (
            sum(each[what][index].double() for each in results) for what in ("given", "left")
        )
        assert (sent + left - given).norm() / given.norm() < 1e-6, f"of parameter {index}"


@pytest.mark.parametrize("settings", FED_BACK, ids=lambda settings: settings["compression"])
def test_nothing_is_lost_when_ddp_splits_its_first_bucket(in_processes, settings):
    _assert_nothing_is_lost(in_processes(sum_in_ddp, settings))


@pytest.mark.parametrize("settings", FED_BACK, ids=lambda settings: settings["compression"])
def test_nothing_is_lost_when_buckets_are_split_and_regrouped(in_processes, settings):
    at_first, later = [[5, 4, 3], [2, 1, 0]], [[0, 3], [5], [1, 2, 4]]
    layouts = [at_first, at_first, later, later, [[0, 1, 2, 3, 4, 5]]]
    _assert_nothing_is_lost(in_processes(sum_in_layouts, settings, layouts, 1.0))


def test_low_rank_factors_go_on_in_other_buckets(in_processes):
    at_first, later = [[5, 4, 3], [2, 1, 0]], [[0, 3], [5], [1, 2, 4]]
    settings = {"compression": "power_sgd"}
    same, _ = in_processes(sum_in_layouts, settings, [at_first] * 4, 1.0)
    regrouped, _ = in_processes(sum_in_layouts, settings, [at_first, at_first, later, later], 1.0)
    assert all(map(torch.equal, same["sent"], regrouped["sent"]))


# power_sgd multiplies with Q, which is as large: there such sums are NaN on every rank.
@pytest.mark.parametrize("settings", FED_BACK[:-1], ids=lambda settings: settings["compression"])
def test_nothing_is_lost_of_gradients_whose_squares_overflow(in_processes, settings):
    layouts = [[[5, 4, 3], [2, 1, 0]]] * STEPS
    _assert_nothing_is_lost(in_processes(sum_in_layouts, settings, layouts, 1e20))


@pytest.mark.parametrize("set_to_none", [True, False], ids=["none", "zero"])
@pytest.mark.parametrize("settings", FED_BACK, ids=lambda settings: settings["compression"])
def test_nothing_is_lost_of_a_parameter_that_is_not_always_used(
    in_processes, settings, set_to_none
):
    with_unused = partial(sum_with_unused, set_to_none=set_to_none)
    _assert_nothing_is_lost(in_processes(with_unused, settings))


@pytest.mark.parametrize("settings", FED_BACK, ids=lambda settings: settings["compression"])
def test_a_step_that_is_not_finite_leaves_what_was_kept(in_processes, settings):
    for seen in in_processes(sum_after_a_bad_step, settings):
        assert seen["finite"] == [True, True, True, False, True] * 9
        for before, after in zip(seen["before"], seen["after"], strict=True):
            assert all(map(torch.equal, before, after))
            assert any(each.any() for each in before)


def test_a_sum_that_is_not_finite_once_scaled_leaves_what_was_kept(in_processes):
    for seen in in_processes(sum_halves_that_overflow_when_scaled):
        assert seen["means"][0].isinf().any()
        assert seen["before"][0].any()
        assert torch.equal(seen["before"][0], seen["after"][0])


@pytest.mark.parametrize("compression", ["none", "bf16", "int8", "power_sgd"])
def test_a_mean_that_fp16_holds_is_finite_though_the_sum_is_not(in_processes, compression):
    first, second = in_processes(sum_large_halves, compression)
    assert torch.equal(first, second)
    torch.testing.assert_close(first, torch.full_like(first, 60_000.0), rtol=4e-3, atol=0)


@pytest.mark.parametrize("settings", FED_BACK, ids=lambda settings: settings["compression"])
def test_nothing_is_kept_of_a_model_that_is_gone(in_processes, settings):
    assert in_processes(train_two_models, settings) == [(0, 0)] * WORLD


def test_low_rank_sums_have_the_same_bits_whatever_the_number_of_threads(in_processes):
    first, second = in_processes(train_on_threads, [1, 2])
    assert all(map(torch.equal, first, second))
