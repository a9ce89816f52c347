"""Sharded models with what is not in every model: the losses of replicated ones, and no hang."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.distributed.case import Case, Outcome
from tests.distributed.conftest import Run
from tests.distributed.faults import Where, fail_at
from tests.distributed.harness import run_case
from tests.distributed.jobs import BATCH, MAX_STEPS, make_job
from tests.distributed.test_sharded import (
    assert_as_smooth,
    assert_every_sample_used_once,
    assert_near,
    train_model,
)
from tests.distributed.training import digest, make_optimizer, mean_loss
from trainflow.computation.session import Session

WIDTH = 5
LAST_USE = 3
FORWARDS_IN_A_STEP = 2


class Layer(nn.Module):
    """One parameter is never used, another one is frozen; there are both kinds of buffers."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.unused = nn.Parameter(torch.ones(WIDTH + 2, 2))
        self.scale = nn.Parameter(torch.full((1,), 0.5), requires_grad=False)
        self.register_buffer("mean", torch.zeros(WIDTH))
        self.register_buffer("signs", torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0]), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean += 0.1 * (x.detach().float().mean(0) - self.mean)
        centred = x - self.mean.to(x.dtype)
        return x + self.scale * self.signs.to(x.dtype) * torch.tanh(self.linear(centred))


class Bias(nn.Module):
    """Has a parameter that others have too."""

    def __init__(self, bias: nn.Parameter):
        super().__init__()
        self.bias = bias


class Odd(nn.Module):
    """No first dimension is a multiple of three, or of two.

    Weights are tied between two layers, and between what is in none. One layer is frozen; one runs
    in evaluations alone, which a rank that takes another's place has not seen; one runs in the
    first steps, and in evaluations; one runs nowhere. One parameter is given to two modules, whose
    names have slashes.
    """

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, WIDTH)
        self.layers = nn.ModuleList([Layer() for _ in range(7)])
        self.layers[1].linear.weight = self.layers[0].linear.weight
        self.layers[2].requires_grad_(requires_grad=False)
        self.last = nn.Linear(8, WIDTH)
        self.last.weight = self.first.weight
        self.extra = nn.Parameter(torch.ones(1, 3))
        bias = nn.Parameter(torch.full((WIDTH,), 0.1))
        self.pairs = nn.ModuleDict({"en/de": Bias(bias), "en/fr": Bias(bias)})
        self.register_buffer("num_forwards", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        is_early = bool(self.num_forwards < LAST_USE * FORWARDS_IN_A_STEP)
        if self.training:
            self.num_forwards += 1
        inputs, x = x, self.first(x)
        for layer in self.layers[:4]:
            x = layer(x)
        if not self.training:
            x = self.layers[4](x)
        if is_early or not self.training:
            x = self.layers[5](x)
        x = x + self.pairs["en/de"].bias.to(x.dtype) + self.pairs["en/fr"].bias.to(x.dtype)
        return (x * self.last(inputs)).sum(1, keepdim=True)


def train_odd(session: Session, _: Any = None) -> dict[str, Any]:
    return train_model(session, Odd)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Three ranks that each hold the whole model."""
    case = Case(train_odd, make_job(world=3), num_samples=MAX_STEPS * BATCH)
    return run_case(case, tmp_path_factory.mktemp("whole"))


@pytest.mark.parametrize(
    "parallel",
    [
        {"mode": "fsdp"},
        {"mode": "zero2", "activation_checkpointing": "full"},
        pytest.param({"mode": "fsdp", "gather": "bf16"}, marks=pytest.mark.soak),
    ],
)
def test_losses_are_those_of_a_replicated_model_and_a_death_changes_no_bit(
    run: Run, tmp_path_factory: pytest.TempPathFactory, whole: Outcome, parallel: dict[str, str]
):
    job = make_job(world=3, parallel=parallel)
    case = Case(train_odd, job, num_samples=MAX_STEPS * BATCH)
    smooth = run_case(case, tmp_path_factory.mktemp("smooth"))
    assert smooth.crashes == {}
    assert_every_sample_used_once(smooth)
    if "gather" not in parallel:
        assert_near(smooth, whole)
    fault = fail_at(1, LAST_USE + 2, Where.IN_BACKWARD)
    assert_as_smooth(run(train_odd, fault, spares=1, parallel=parallel), smooth)


def test_such_a_model_is_cut_anew_where_the_world_shrinks(run: Run):
    fault = fail_at(1, LAST_USE + 2, Where.IN_BACKWARD)
    outcome = run(train_odd, fault, parallel={"mode": "fsdp"})
    assert outcome.crashes == {}
    assert len(outcome.members) == 2
    assert sorted(outcome.by_rank[0]["commits"])[-1] == MAX_STEPS
    assert_every_sample_used_once(outcome)


class Fourier(nn.Module):
    """Draws what isn't state, once it has parameters: a buffer, a plain tensor, and an order."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.register_buffer("directions", torch.randn(16, 16), persistent=False)
        self.phases = torch.rand(16)
        self.layers = nn.ModuleList([nn.Linear(16, 16) for _ in range(2)])
        self.order = torch.randperm(16).tolist()
        self.last = nn.Linear(16, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cos(self.first(x) @ self.directions + self.phases)[:, self.order]
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.last(x)


def train_fourier(session: Session, _: Any = None) -> dict[str, Any]:
    model = session.prepare(Fourier, make_optimizer)
    commits, drawn = {}, set()
    for step in session.steps():
        with step:
            for batch in step.microbatches():
                step.backward(mean_loss(model, batch), weight=batch.num_targets)
            done = step.commit()
            commits[done.number] = done
            drawn.add((digest(model.directions, model.phases), *model.order))
    return {"commits": commits, "means": {}, "drawn": drawn}


@pytest.fixture(scope="module")
def whole_fourier(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Three ranks that each hold the whole model."""
    case = Case(train_fourier, make_job(world=3), num_samples=MAX_STEPS * BATCH)
    return run_case(case, tmp_path_factory.mktemp("whole_fourier"))


@pytest.mark.parametrize("spares", [0, 1])
def test_what_a_factory_draws_is_the_same_on_a_spare_and_where_the_world_shrinks(
    run: Run, whole_fourier: Outcome, spares: int
):
    fault = fail_at(1, 4, Where.IN_BACKWARD)
    outcome = run(train_fourier, fault, spares=spares, parallel={"mode": "fsdp"})
    assert_near(outcome, whole_fourier)
    (drawn,) = whole_fourier.by_rank[0]["drawn"]
    assert [result["drawn"] for result in outcome.by_rank] == [{drawn}] * (2 + spares)
