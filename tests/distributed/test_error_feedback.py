"""What compression leaves out comes again, whoever dies: nothing of any gradient is lost.

The loss here is linear in the weight, so that the gradient of a sample doesn't depend on training:
what all steps have moved the weight by, plus what is still left out, is the sum over all samples.
"""

import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD

from tests.distributed.case import Outcome
from tests.distributed.conftest import Run
from tests.distributed.faults import Fault, Where, fail_at
from tests.distributed.jobs import BATCH, MAX_STEPS
from tests.distributed.training import WIDTH, Samples, digest, train
from trainflow.computation.session import Session

STEPS = 24
FED_BACK = {"compression": "int4", "error_feedback": True}
COMPRESSIONS = ["bf16", "int8", "int4", "fp8", "top_k", "power_sgd"]


class Bilinear(nn.Module):
    """One weight, too large for the tail bucket."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(WIDTH, WIDTH))
        self.bad: float | None = None

    def forward(self, x: Tensor) -> Tensor:
        left, right = spread(x)
        weight = self.weight * 1.0
        if self.bad is not None:
            weight.register_hook(partial(spoil, bad=self.bad))
        return (left @ weight * right).sum(1)


def spoil(gradient: Tensor, bad: float) -> Tensor:
    """Return the gradient with one bad row."""
    return gradient.index_fill(0, torch.tensor([WIDTH // 2]), bad)


def spread(x: Tensor) -> tuple[Tensor, Tensor]:
    """Make two vectors of each sample, which have no low rank together."""
    place = torch.arange(WIDTH)
    return torch.sin(x[:, :1] * (3 + place * 0.7)), torch.cos(x[:, 1:2] * (5 + place * 1.3))


def train_linear(session: Session, spoilt: dict[int, float] | None = None) -> dict[str, Any]:
    """Plain gradient descent; by step, what rank 1 has in place of a row of its gradient."""
    model = session.prepare(Bilinear, lambda parameters: SGD(parameters, lr=1.0))
    seen: dict[int, tuple[bool, str]] = {}
    for step in session.steps():
        with step:
            for batch in step.microbatches():
                if spoilt and session.rank == 1:
                    model.bad = spoilt.get(step.number)
                step.backward(model(batch.inputs["x"]).mean(), weight=batch.num_targets)
            done = step.commit()
            seen[step.number] = done.applied, digest(residual_of(session))
    return {
        "weight": model.weight.detach().clone(),
        "residual": residual_of(session).clone(),
        "seen": seen,
    }


def residual_of(session: Session) -> Tensor:
    residuals = session._state.residuals
    assert residuals is not None
    return residuals.memory.named(residuals.memory.kept)["model"]["weight"]


def left_over(outcome: Outcome, num_samples: int = STEPS * BATCH) -> float:
    """How much of all gradients is neither in the weight nor in a residual, relative to all."""
    samples = Samples(num_samples).__getitems__(list(range(num_samples)))
    left, right = (each.double() for each in spread(samples["x"]))
    wanted = left.T @ right
    moved = -outcome.by_rank[0]["weight"].double() * BATCH
    kept = torch.stack([result["residual"].double() for result in outcome.by_rank]).sum(0)
    return float((wanted - moved - kept).abs().max() / wanted.abs().max())


def run_linear(run: Run, *faults: Fault, **settings: Any) -> Outcome:
    training = {"max_steps": STEPS, "clip_norm": None}
    settings = {"communication": FED_BACK, "num_samples": STEPS * BATCH} | settings
    outcome = run(train_linear, *faults, training=training, **settings)
    assert outcome.crashes == {}
    return outcome


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("world", [1, 2, 3])
def test_what_was_sent_and_what_is_left_are_all_there_was(run: Run, compression, world):
    communication = {"compression": compression, "error_feedback": True}
    outcome = run_linear(run, communication=communication, world=world)
    assert left_over(outcome) < 2e-6


class TwoBilinear(nn.Module):
    """A weight that every step uses, and one that only some do."""

    def __init__(self):
        super().__init__()
        self.always = Bilinear()
        self.at_times = Bilinear()

    def forward(self, x: Tensor, *, both: bool) -> Tensor:
        return self.always(x) + self.at_times(x) if both else self.always(x)


def train_a_weight_at_times(session: Session, _: None = None) -> dict[str, Any]:
    """Every second step uses one of the two weights alone; return what became of the other."""
    model = session.prepare(TwoBilinear, lambda parameters: SGD(parameters, lr=1.0))
    wanted = torch.zeros(WIDTH, WIDTH, dtype=torch.float64)
    for step in session.steps():
        with step:
            both = step.number % 2 == 1
            for batch in step.microbatches():
                left, right = (each.double() for each in spread(batch.inputs["x"]))
                if both:
                    wanted += left.T @ right
                loss = model(batch.inputs["x"], both=both).mean()
                step.backward(loss, weight=batch.num_targets)
            step.commit()
    residuals = session._state.residuals
    assert residuals is not None
    kept = residuals.memory.named(residuals.memory.kept)["model"]["at_times.weight"]
    moved = -model.at_times.weight.detach().double() * BATCH
    return {"wanted": wanted, "moved": moved, "kept": kept.double().clone()}


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_what_is_left_of_a_weight_waits_while_nobody_uses_it(run: Run, compression):
    outcome = run(
        train_a_weight_at_times,
        training={"max_steps": STEPS, "clip_norm": None},
        num_samples=STEPS * BATCH,
        communication={"compression": compression, "error_feedback": True},
    )
    assert outcome.crashes == {}
    ranks = outcome.by_rank
    wanted, kept = (torch.stack([each[key] for each in ranks]).sum(0) for key in ("wanted", "kept"))
    assert kept.any()
    gap = (wanted - ranks[0]["moved"] - kept).abs().max() / wanted.abs().max()
    assert gap < 1e-6


def test_without_feedback_it_is_lost(run: Run):
    """The measure above can tell."""
    communication = {"compression": "int4", "error_feedback": True}
    outcome = run_linear(run, communication=communication)
    for result in outcome.by_rank:
        result["residual"].zero_()
    assert left_over(outcome) > 1e-4


@pytest.mark.parametrize(
    ("compression", "where"),
    [
        ("bf16", Where.BETWEEN_HOPS),
        ("int8", Where.IN_BACKWARD),
        ("int8", Where.BETWEEN_HOPS),
        ("int8", Where.AFTER_RECORD),
        ("int4", Where.BEFORE_RECORD),
        ("fp8", Where.BETWEEN_HOPS),
        ("top_k", Where.AFTER_RECORD),
        ("power_sgd", Where.IN_BACKWARD),
        ("power_sgd", Where.AFTER_RECORD),
    ],
)
def test_a_spare_has_what_the_dead_rank_left(run: Run, compression, where):
    """A run that is killed at the same world ends in the bits of an undisturbed one."""
    settings = {"communication": {"compression": compression, "error_feedback": True}}
    undisturbed = run(train, **settings)
    outcome = run(train, fail_at(1, 4, where), spares=1, **settings)
    assert outcome.members == ("w0", "w3", "w2")
    assert outcome.losses == []
    for result in outcome.by_rank:
        assert result["digest"] == undisturbed.by_rank[0]["digest"]


def test_a_spare_that_dies_in_healing_leaves_it_to_the_next(run: Run):
    settings = {"communication": FED_BACK}
    undisturbed = run(train, **settings)
    faults = fail_at(1, 4, Where.IN_BACKWARD), Fault("w3", 3, Where.IN_HEALING)
    outcome = run(train, *faults, spares=2, **settings)
    assert outcome.members == ("w0", "w4", "w2")
    for result in outcome.by_rank:
        assert result["digest"] == undisturbed.by_rank[0]["digest"]


def test_a_rank_that_is_a_step_behind_has_its_own(run: Run):
    """Killed in commit: some ranks have applied the step, one has not, and the dead one had."""
    settings = {"communication": FED_BACK}
    undisturbed = run(train, **settings)
    outcome = run(train, fail_at(2, 5, Where.IN_OPTIMIZER), spares=1, **settings)
    for result in outcome.by_rank:
        assert result["digest"] == undisturbed.by_rank[0]["digest"]


@pytest.mark.parametrize(
    "faults",
    [
        [fail_at(1, 4, Where.IN_BACKWARD)],
        [fail_at(1, 4, Where.BEFORE_RECORD), fail_at(2, 9, Where.AFTER_RECORD)],
        [fail_at(0, 4, Where.IN_BACKWARD), fail_at(1, 3, Where.IN_DEALING)],
    ],
    ids=["one", "one after the other", "the second while it is dealt out"],
)
def test_a_smaller_world_takes_over_all_of_it(run: Run, faults):
    outcome = run_linear(run, *faults)
    assert outcome.losses == []
    assert len(outcome.members) == 3 - len(faults)
    assert left_over(outcome) < 1e-6


def test_it_is_dealt_out_again_when_the_world_grows(run: Run):
    outcome = run_linear(run, fail_at(1, 4, Where.IN_MICROBATCH), late={"w3": 12}, spares=1)
    assert [plan.spec.world_size for plan in outcome.plans] == [3, 2, 3]
    assert outcome.losses == []
    assert left_over(outcome) < 1e-6


def test_what_is_lost_with_a_node_is_said(run: Run):
    outcome = run_linear(run, fail_at(1, 4, Where.IN_BACKWARD), spares=1, nodes_are_lost=True)
    assert [(loss.step, loss.ranks) for loss in outcome.losses] == [(3, (1,))]
    assert 1e-6 < left_over(outcome) < 0.1


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_gradient_that_is_not_finite_leaves_residuals_alone(run: Run, compression):
    outcome = run(
        train_linear,
        extra={3: math.nan, 5: math.inf, 7: -math.inf},
        communication={"compression": compression, "error_feedback": True},
        training={"max_steps": MAX_STEPS, "clip_norm": None},
    )
    assert outcome.crashes == {}
    for result in outcome.by_rank:
        applied = {number: done for number, (done, _) in result["seen"].items()}
        assert [number for number, done in applied.items() if not done] == [3, 5, 7]
        residuals = [residual for _, residual in result["seen"].values()]
        for number in range(2, MAX_STEPS + 1):
            stayed = residuals[number - 1] == residuals[number - 2]
            assert stayed == (not applied[number])
        assert torch.equal(result["weight"], outcome.by_rank[0]["weight"])
        assert result["weight"].isfinite().all()
        assert result["residual"].isfinite().all()


def test_a_spare_that_comes_after_a_skipped_step_has_what_was_left_before_it(run: Run):
    settings = {
        "extra": {5: math.inf},
        "communication": FED_BACK,
        "training": {"max_steps": MAX_STEPS, "clip_norm": None},
    }
    undisturbed = run(train_linear, **settings)
    outcome = run(train_linear, fail_at(2, 6, Where.IN_BACKWARD), spares=1, **settings)
    assert outcome.losses == []
    for result, other in zip(outcome.by_rank, undisturbed.by_rank, strict=True):
        assert torch.equal(result["weight"], other["weight"])
        assert torch.equal(result["residual"], other["residual"])
