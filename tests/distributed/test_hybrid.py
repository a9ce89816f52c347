"""Groups of ranks that each hold the whole model, in parts: what one loses, another has."""

from typing import Any

import pytest

from tests.distributed.case import Case, Outcome
from tests.distributed.conftest import Run
from tests.distributed.faults import Where, fail_at
from tests.distributed.harness import run_case
from tests.distributed.jobs import BATCH, MAX_STEPS, make_job
from tests.distributed.test_sharded import (
    assert_as_smooth,
    assert_every_sample_used_once,
    assert_near,
    train_sharded,
)

HYBRID: dict[str, Any] = {"parallel": {"mode": "hsdp", "shard": 2}, "minimum": 2, "world": 4}


@pytest.fixture(scope="module")
def smooth(tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Two groups of two ranks, and nothing goes wrong."""
    case = Case(train_sharded, make_job(**HYBRID), num_samples=MAX_STEPS * BATCH)
    return run_case(case, tmp_path_factory.mktemp("smooth"))


def test_losses_are_those_of_a_replicated_model(run: Run, smooth: Outcome):
    assert_near(smooth, run(train_sharded, world=4))
    assert_every_sample_used_once(smooth)
    first, second, third, fourth = (result["digest"] for result in smooth.by_rank)
    assert (first, second) == (third, fourth), "groups hold the same"
    assert first != second


@pytest.mark.parametrize("compression", ["bf16", "int8"])
def test_what_travels_between_groups_is_compressed(run: Run, smooth: Outcome, compression: str):
    outcome = run(train_sharded, **HYBRID, communication={"compression": compression})
    assert outcome.crashes == {}
    plain, sent = (steps[MAX_STEPS].wire_bytes for steps in (smooth.steps, outcome.steps))
    assert sent < plain
    for number, report in outcome.steps.items():
        assert report.loss == pytest.approx(smooth.steps[number].loss, rel=0.2)
    digests = [result["digest"] for result in outcome.by_rank]
    assert digests[:2] == digests[2:]


def test_groups_gather_parameters_in_fp8_and_hold_the_same(run: Run, smooth: Outcome):
    parallel = HYBRID["parallel"] | {"gather": "fp8"}
    outcome = run(train_sharded, **(HYBRID | {"parallel": parallel}))
    assert outcome.crashes == {}
    plain, sent = (steps[MAX_STEPS].wire_bytes for steps in (smooth.steps, outcome.steps))
    assert sent < 0.7 * plain, "of parameters a quarter, of gradients all"
    for number, report in outcome.steps.items():
        assert report.loss == pytest.approx(smooth.steps[number].loss, rel=0.1)
    digests = [result["digest"] for result in outcome.by_rank]
    assert digests[:2] == digests[2:]
    assert digests != [result["digest"] for result in smooth.by_rank]


@pytest.mark.parametrize(
    "where",
    [
        Where.IN_BACKWARD,
        Where.AFTER_RECORD,
        pytest.param(Where.BEFORE_RECORD, marks=pytest.mark.soak),
        pytest.param(Where.IN_OPTIMIZER, marks=pytest.mark.soak),
    ],
)
def test_a_kill_in_a_step(run: Run, smooth: Outcome, where: Where):
    outcome = run(train_sharded, fail_at(1, 4, where), spares=1, **HYBRID)
    assert_as_smooth(outcome, smooth)
    assert outcome.members == ("w0", "w4", "w2", "w3")


def test_all_that_hold_a_shard_killed_at_once(run: Run, smooth: Outcome):
    faults = fail_at(1, 4, Where.IN_BACKWARD), fail_at(3, 4, Where.IN_BACKWARD)
    assert_as_smooth(run(train_sharded, *faults, spares=2, **HYBRID), smooth)


def test_the_group_that_is_whole_goes_on_alone(run: Run, smooth: Outcome):
    outcome = run(train_sharded, fail_at(1, 4, Where.IN_BACKWARD), **HYBRID)
    assert_near(outcome, smooth)
    assert_every_sample_used_once(outcome)
    assert outcome.members == ("w2", "w3"), "nobody has to read anything"


def test_and_takes_the_others_back_once_they_are_a_group(run: Run, smooth: Outcome):
    fault = fail_at(1, 3, Where.IN_MICROBATCH)
    outcome = run(train_sharded, fault, spares=1, late={"w4": 5}, **HYBRID)
    assert_near(outcome, smooth)
    assert_every_sample_used_once(outcome)
    assert set(outcome.members) == {"w0", "w2", "w3", "w4"}
