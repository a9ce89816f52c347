"""Training with a scaled loss: the same bits as without, and a scale that all ranks share."""

import math
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.case import Case
from tests.distributed.conftest import Run
from tests.distributed.faults import Where, fail_at
from tests.distributed.harness import run_case
from tests.distributed.jobs import MAX_STEPS, make_job
from tests.distributed.test_sharded import train_sharded
from tests.distributed.training import (
    Net,
    Recorder,
    digest,
    make_optimizer,
    mean_loss,
    train,
)
from trainflow.computation.loss_scaling import INITIAL_SCALE
from trainflow.computation.session import Session
from trainflow.computation.shards import local_part

FP16 = {"training": {"precision": "fp16"}}


def train_with_an_overflow(session: Session, where: set[int]) -> dict[str, Any]:
    """The plain loop; one microbatch's gradient overflows, though its loss does not."""
    run = Recorder(session)
    for step in session.steps():
        with step:
            for number, batch in enumerate(step.microbatches()):
                loss = mean_loss(run.model, batch)
                if step.number in where and number == 0 and session.rank == 1:
                    loss.register_hook(lambda gradient: gradient * math.inf)
                step.backward(loss, weight=batch.num_targets)
            run.commit(step)
    return run.result()


@pytest.mark.parametrize("compression", ["none", "int8"])
def test_scaling_changes_no_bit(run: Run, compression):
    """Scales are powers of two; nothing here comes near the ends of fp32's range."""
    sections = {"communication": {"compression": compression}}
    plain = run(train, **sections)
    scaled = run(train, **sections, **FP16)
    assert scaled.by_rank[0]["digest"] == plain.by_rank[0]["digest"]
    assert scaled.steps[8].scalars["loss_scale"] == INITIAL_SCALE
    assert "loss_scale" not in plain.steps[8].scalars


def train_any_mode(session: Session, targets: tuple[int, int]) -> dict[str, Any]:
    """The plain loop, under autocast; a sample has so many targets, as an image has pixels.

    The first number is of a step's first microbatch, the second of the others.
    """
    model = session.prepare(Net, make_optimizer)
    applied: list[bool] = []
    for step in session.steps():
        with step:
            for number, batch in enumerate(step.microbatches()):
                with session.autocast():
                    loss = mean_loss(model, batch)
                step.backward(loss, weight=batch.num_targets * targets[number > 0])
            applied.append(step.commit().applied)
    return {"digest": digest(*map(local_part, model.parameters())), "applied": applied}


@pytest.mark.parametrize(("world", "mode"), [(3, "ddp"), (3, "fsdp"), (1, "fsdp")])
def test_how_many_targets_there_are_changes_no_bit(tmp_path: Path, world: int, mode: str):
    """Sums over them, scaled, would be beyond fp16; their mean is what the scale is for."""
    job = make_job(world=world, parallel={"mode": mode}, **FP16)
    few, many = (
        run_case(Case(train_any_mode, job, extra=targets), tmp_path / str(targets[0]))
        for targets in ((1, 1), (2**18, 2**18))
    )
    assert many.by_rank == few.by_rank
    assert any(few.by_rank[0]["applied"])
    assert many.steps[8].scalars["loss_scale"] == few.steps[8].scalars["loss_scale"]


@pytest.mark.parametrize(("world", "mode"), [(3, "ddp"), (3, "fsdp"), (1, "fsdp")])
def test_a_light_first_microbatch_makes_no_later_one_overflow(
    tmp_path: Path, world: int, mode: str
):
    """With its scale, the others' would be beyond fp16 in every step."""
    job = make_job(world=world, parallel={"mode": mode}, **FP16)
    outcome = run_case(Case(train_any_mode, job, extra=(1, 2**18)), tmp_path)
    assert outcome.crashes == {}
    assert sum(outcome.by_rank[0]["applied"]) >= MAX_STEPS // 2


def train_unevenly(session: Session, _: Any) -> list[Any]:
    """Three microbatches a rank and more, each weighing four times the one before."""
    model = session.prepare(Net, make_optimizer)
    norms = []
    for step in session.steps():
        with step:
            for number, batch in enumerate(step.microbatches()):
                step.backward(mean_loss(model, batch), weight=batch.num_targets * 4**number)
            norms.append(step.commit().grad_norm)
    return [digest(*map(local_part, model.parameters())), norms]


@pytest.mark.parametrize(("world", "mode"), [(2, "ddp"), (2, "fsdp"), (1, "fsdp")])
def test_a_scale_that_changes_within_a_step_changes_no_bit(tmp_path: Path, world: int, mode: str):
    training = {"microbatch_size": 1}
    plain, scaled = (
        run_case(
            Case(
                train_unevenly,
                make_job(world=world, parallel={"mode": mode}, training=training | more),
            ),
            tmp_path / name,
        )
        for name, more in (("plain", {}), ("scaled", {"precision": "fp16"}))
    )
    assert plain.crashes == scaled.crashes == {}
    assert scaled.by_rank == plain.by_rank


@pytest.mark.parametrize("world", [1, 3])
def test_scaling_changes_no_bit_of_sharded_models(tmp_path: Path, world: int):
    """Nor does it where gradients are divided before they are compressed, one shard or several."""
    sections = {"parallel": {"mode": "fsdp"}, "communication": {"compression": "int8"}}
    plain, scaled = (
        run_case(Case(train_sharded, make_job(world=world, **sections, **more)), tmp_path / name)
        for name, more in (("plain", {}), ("scaled", FP16))
    )
    assert [each["digest"] for each in scaled.by_rank] == [e["digest"] for e in plain.by_rank]
    assert scaled.steps[8].scalars["loss_scale"] == INITIAL_SCALE


@pytest.mark.parametrize("compression", ["none", "int8", "int4"])
def test_an_overflow_on_one_rank_halves_the_scale_once_for_all(run: Run, compression):
    outcome = run(
        train_with_an_overflow, extra={3}, **FP16, communication={"compression": compression}
    )
    assert outcome.crashes == {}
    assert [outcome.steps[n].applied for n in range(1, 9)] == [n != 3 for n in range(1, 9)]
    scales = [outcome.steps[n].scalars["loss_scale"] for n in range(1, 9)]
    assert scales == [INITIAL_SCALE] * 2 + [INITIAL_SCALE / 2] * 6
    assert all(math.isfinite(outcome.steps[n].grad_norm) for n in range(4, 9))
    assert len({result["digest"] for result in outcome.by_rank}) == 1


def test_a_rank_that_joins_later_has_the_scale(run: Run):
    sections = FP16 | {"communication": {"compression": "int8"}}
    undisturbed = run(train_with_an_overflow, extra={3}, **sections)
    fault = fail_at(2, 5, Where.IN_BACKWARD)
    outcome = run(train_with_an_overflow, fault, spares=1, extra={3}, **sections)
    assert outcome.members == ("w0", "w1", "w3")
    assert outcome.steps[8].scalars["loss_scale"] == INITIAL_SCALE / 2
    for result in outcome.by_rank:
        assert result["digest"] == undisturbed.by_rank[0]["digest"]


@pytest.mark.parametrize(("precision", "crashes"), [("fp16", 0), ("fp32", 3)])
def test_overflows_that_the_scale_may_be_to_blame_for_end_no_run(run: Run, precision, crashes):
    outcome = run(train_with_an_overflow, extra=set(range(1, 9)), training={"precision": precision})
    assert len(outcome.crashes) == crashes
    assert all(kind == "TooManySkippedStepsError" for kind, _ in outcome.crashes.values())
