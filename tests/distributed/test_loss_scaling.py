"""Training with a scaled loss: the same bits as without, and a scale that all ranks share."""

import math
from typing import Any

import pytest

from tests.distributed.conftest import Run
from tests.distributed.faults import Where, fail_at
from tests.distributed.training import Recorder, mean_loss, train
from trainflow.computation.loss_scaling import INITIAL_SCALE
from trainflow.computation.session import Session

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
