"""Sharded models: the losses of replicated ones, and the same bits after any rank's death."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from tests.distributed.case import Case, Outcome
from tests.distributed.conftest import Run
from tests.distributed.faults import Act, Fault, Where, fail_at
from tests.distributed.harness import run_case
from tests.distributed.jobs import BATCH, MAX_STEPS, make_job
from tests.distributed.training import Net, digest, make_optimizer, make_scheduler, mean_loss
from trainflow.computation.session import Session
from trainflow.computation.shards import local_part

FSDP: dict[str, Any] = {"parallel": {"mode": "fsdp"}}
IN_A_STEP = [
    Where.IN_MICROBATCH,
    Where.IN_SECOND_MICROBATCH,
    Where.IN_BACKWARD,
    Where.BEFORE_RECORD,
    Where.AFTER_RECORD,
    Where.IN_OPTIMIZER,
    Where.IN_TAIL,
]


def train_sharded(session: Session, _: Any = None) -> dict[str, Any]:
    return train_model(session, Net)


def train_model(session: Session, factory: Callable[[], nn.Module]) -> dict[str, Any]:
    optimizers, are_shards = [], []

    def keep(parameters):
        optimizers.append(make_optimizer(parameters))
        return optimizers[-1]

    model = session.prepare(factory, keep, make_scheduler)
    commits, means = {}, {}
    for step in session.steps():
        with step:
            for batch in step.microbatches():
                step.backward(mean_loss(model, batch), weight=batch.num_targets)
            done = step.commit()
            commits[done.number] = done
            if done.number % 3 == 0:
                means[done.number] = session.evaluate(
                    "held_out", lambda batch: (mean_loss(model, batch), batch.num_targets)
                )
                are_shards += [isinstance(each, DTensor) for each in model.parameters()]
    moments = [v for state in optimizers[-1].state.values() for v in state.values()]
    shards = [local_part(each) for each in [*model.parameters(), *moments]]
    return {
        "commits": commits,
        "means": means,
        "digest": digest(*shards),
        "forwards": int(model.num_forwards),
        "are_shards": are_shards,
    }


@pytest.fixture(scope="module")
def smooth(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Three ranks, and nothing goes wrong."""
    case = Case(train_sharded, make_job(world=3, **FSDP), num_samples=MAX_STEPS * BATCH)
    return run_case(case, tmp_path_factory.mktemp("smooth"))


def assert_as_smooth(outcome: Outcome, smooth: Outcome) -> None:
    """Same bits on each rank, every step committed once, every sample of the pass used once."""
    assert outcome.crashes == {}
    for result, expected in zip(outcome.by_rank, smooth.by_rank, strict=True):
        for key in ("digest", "forwards"):
            assert result[key] == expected[key]
        assert result["means"].items() <= expected["means"].items()
    assert_every_sample_used_once(outcome)
    assert outcome.used == smooth.used
    for number, report in outcome.steps.items():
        assert report.loss == smooth.steps[number].loss
        assert report.grad_norm == smooth.steps[number].grad_norm


def assert_every_sample_used_once(outcome: Outcome) -> None:
    assert sorted(outcome.used) == list(range(1, MAX_STEPS + 1))
    assert outcome.samples == Counter(range(MAX_STEPS * BATCH))


def assert_near(outcome: Outcome, expected: Outcome) -> None:
    """Same losses and norms, but for the order of summation."""
    assert outcome.crashes == {}
    wanted = expected.by_rank[0]
    for result in outcome.by_rank:
        for number, done in result["commits"].items():
            assert done.loss == pytest.approx(wanted["commits"][number].loss, rel=1e-4)
            assert done.grad_norm == pytest.approx(wanted["commits"][number].grad_norm, rel=1e-4)
        for number, mean in result["means"].items():
            assert mean == pytest.approx(wanted["means"][number], rel=1e-4)


def train_and_gather(session: Session, _: Any = None) -> dict[str, Any]:
    model = session.prepare(Net, make_optimizer, make_scheduler)
    weights: dict[str, torch.Tensor] = {}
    for step in session.steps():
        with step:
            for batch in step.microbatches():
                step.backward(mean_loss(model, batch), weight=batch.num_targets)
            if step.commit().number == session.max_steps:
                weights = session.full_state_dict()
    own = {name: local_part(each.detach()).clone() for name, each in model.named_parameters()}
    return {"weights": weights, "own": own}


@pytest.mark.parametrize(
    ("faults", "gather"),
    [((), "fp32"), ((fail_at(0, MAX_STEPS, Where.IN_TAIL),), "fp32"), ((), "fp8")],
)
def test_the_whole_model_is_gathered_on_the_first_rank(run: Run, faults, gather):
    """And exactly, in whatever form its layers are gathered."""
    parallel = {"mode": "fsdp", "gather": gather}
    outcome = run(train_and_gather, *faults, spares=len(faults), parallel=parallel)
    assert outcome.crashes == {}
    first, *others = outcome.by_rank
    assert [result["weights"] for result in others] == [{}, {}]
    for name in first["own"]:
        parts = [result["own"][name] for result in outcome.by_rank]
        assert torch.equal(first["weights"][name], torch.cat(parts)), name
    assert first["weights"].keys() == Net().state_dict().keys()


class Reused(nn.Module):
    """Runs its layers so often in one forward."""

    def __init__(self, times: int):
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.layers = nn.ModuleList([nn.Linear(16, 16) for _ in range(2)])
        self.last = nn.Linear(16, 1)
        self.times = times

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for _ in range(self.times):
            for layer in self.layers:
                x = torch.tanh(layer(x))
        return self.last(x)


def train_reused(session: Session, times: tuple[int, int]) -> list[float]:
    of_layers, of_model = times
    model = session.prepare(lambda: Reused(of_layers), make_optimizer)
    norms = []
    for step in session.steps():
        with step:
            for batch in step.microbatches():
                x, y = batch.inputs["x"], batch.inputs["y"]
                losses = [(model(x * (1 + k)) - y).pow(2).mean() for k in range(of_model)]
                step.backward(sum(losses), weight=batch.num_targets)
            norms.append(step.commit().grad_norm)
    return norms


@pytest.mark.parametrize("times", [(2, 1), (1, 2)])
def test_what_runs_twice_in_a_microbatch_has_the_sum_of_both(tmp_path: Path, times):
    found = []
    for mode in ("ddp", "fsdp"):
        (tmp_path / mode).mkdir()
        job = make_job(world=2, parallel={"mode": mode})
        case = Case(train_reused, job, num_samples=MAX_STEPS * BATCH, extra=times)
        outcome = run_case(case, tmp_path / mode)
        assert outcome.crashes == {}
        found.append(outcome.by_rank[0])
    whole, sharded = found
    assert sharded == pytest.approx(whole, rel=1e-4)


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_losses_are_those_of_a_replicated_model(run: Run, world):
    whole = run(train_sharded, world=world)
    sharded = run(train_sharded, world=world, **FSDP)
    assert_near(sharded, whole)
    assert_every_sample_used_once(sharded)
    assert len({result["digest"] for result in sharded.by_rank}) == world, "each holds its own"


@pytest.mark.parametrize("compression", ["bf16", "int8", "fp8", "int4"])
def test_gradients_travel_compressed(run: Run, smooth, compression):
    outcome = run(train_sharded, **FSDP, communication={"compression": compression})
    assert outcome.crashes == {}
    plain, sent = (steps[MAX_STEPS].wire_bytes for steps in (smooth.steps, outcome.steps))
    assert sent < plain
    for number, report in outcome.steps.items():
        assert report.loss == pytest.approx(smooth.steps[number].loss, rel=0.2)


@pytest.mark.parametrize(
    ("gather", "share"),
    [
        pytest.param("bf16", 0.75, id="bf16", marks=pytest.mark.soak),
        pytest.param("fp8", 0.45, id="fp8"),
    ],
)
def test_parameters_gathered_in_fewer_bits_are_fewer_bytes_and_near(
    run: Run, smooth, tmp_path: Path, gather: str, share: float
):
    parallel = {"mode": "fsdp", "gather": gather}
    fault = fail_at(1, 4, Where.IN_BACKWARD)
    job = make_job(world=3, parallel=parallel)
    case = Case(train_sharded, job, num_samples=MAX_STEPS * BATCH)
    (tmp_path / "whole").mkdir()
    outcome = run_case(case, tmp_path / "whole")
    assert outcome.crashes == {}
    plain, sent = (steps[MAX_STEPS].wire_bytes for steps in (smooth.steps, outcome.steps))
    assert sent < share * plain, "of parameters half or a quarter, of gradients all"
    for number, report in outcome.steps.items():
        assert report.loss == pytest.approx(smooth.steps[number].loss, rel=0.05)
        assert report.loss != smooth.steps[number].loss
    assert_as_smooth(run(train_sharded, fault, spares=1, parallel=parallel), outcome)


def test_parameters_gathered_in_fp8_are_cut_anew_where_the_world_shrinks(run: Run, smooth):
    parallel = {"mode": "fsdp", "gather": "fp8"}
    outcome = run(train_sharded, fail_at(1, 4, Where.IN_BACKWARD), parallel=parallel)
    assert outcome.crashes == {}
    assert_every_sample_used_once(outcome)
    for number, report in outcome.steps.items():
        assert report.loss == pytest.approx(smooth.steps[number].loss, rel=0.1)


@pytest.mark.parametrize(
    ("where", "step"),
    [(where, 4) for where in IN_A_STEP]
    + [(Where.AFTER_RECORD, 1), (Where.AFTER_RECORD, MAX_STEPS)]
    + [
        pytest.param(where, step, marks=pytest.mark.soak)
        for where in IN_A_STEP
        if where is not Where.AFTER_RECORD
        for step in (1, MAX_STEPS)
    ],
)
def test_a_kill_anywhere_in_a_step(run: Run, smooth, where, step):
    outcome = run(train_sharded, fail_at(1, step, where), spares=1, **FSDP)
    assert_as_smooth(outcome, smooth)
    assert outcome.members == ("w0", "w3", "w2")


def test_a_spare_that_has_rehearsed_begins_where_the_others_do(run: Run, smooth):
    """There is no state to be given yet, and what the rehearsal has moved is as it was."""
    fault = fail_at(1, 1, Where.IN_BACKWARD)
    outcome = run(train_sharded, fault, spares=1, nodes_are_lost=True, **FSDP)
    assert [plan.base.step for plan in outcome.plans] == [0, 0]
    assert outcome.plans[1].stored is None
    assert_as_smooth(outcome, smooth)


def test_who_takes_a_rank_over_dies_while_it_reads_the_shards(run: Run, smooth):
    faults = fail_at(1, 4, Where.IN_BACKWARD), Fault("w3", 3, Where.IN_RESTORING)
    outcome = run(train_sharded, *faults, spares=2, **FSDP)
    assert_as_smooth(outcome, smooth)
    assert outcome.members == ("w0", "w4", "w2")


def test_a_kill_of_the_rank_that_hosts_the_store(run: Run, smooth):
    outcome = run(train_sharded, fail_at(0, 4, Where.IN_BACKWARD), spares=1, **FSDP)
    assert_as_smooth(outcome, smooth)


def test_two_ranks_at_once(run: Run, smooth):
    faults = fail_at(0, 4, Where.IN_BACKWARD), fail_at(2, 4, Where.IN_MICROBATCH)
    assert_as_smooth(run(train_sharded, *faults, spares=2, **FSDP), smooth)


def test_one_failure_after_another(run: Run, smooth):
    faults = fail_at(1, 2, Where.BEFORE_RECORD), fail_at(2, 5, Where.IN_OPTIMIZER)
    last = Fault("w3", 7, Where.IN_MICROBATCH)
    assert_as_smooth(run(train_sharded, *faults, last, spares=3, **FSDP), smooth)


@pytest.mark.parametrize("laggard", [0, 1, 2])
def test_who_has_applied_a_step_that_another_missed_goes_back(run: Run, smooth, laggard):
    fault = fail_at(laggard, 4, Where.AFTER_RECORD, Act.DROP)
    outcome = run(train_sharded, fault, **FSDP)
    assert_as_smooth(outcome, smooth)
    assert outcome.plans[1].base.step == 3


def test_the_world_shrinks_and_reads_its_new_parts_from_memory(run: Run, smooth):
    outcome = run(train_sharded, fail_at(1, 4, Where.IN_BACKWARD), **FSDP)
    assert_near(outcome, smooth)
    assert_every_sample_used_once(outcome)
    assert outcome.members == ("w0", "w2")


def test_and_grows_back(run: Run, smooth):
    outcome = run(
        train_sharded, fail_at(1, 3, Where.IN_MICROBATCH), spares=1, late={"w3": 5}, **FSDP
    )
    assert_near(outcome, smooth)
    assert_every_sample_used_once(outcome)
    assert outcome.members == ("w0", "w2", "w3")
