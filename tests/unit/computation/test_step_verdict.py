"""Which steps are applied, and what is known of norms after them."""

import json
import math
from dataclasses import replace

import pytest

from tests.distributed.jobs import make_job
from trainflow.communication.commit_record import CommitDecision, CommitRecord, decide_commit
from trainflow.computation.fresh_state import FreshState, begin_state
from trainflow.computation.state_tree import flatten_state, unflatten_state
from trainflow.computation.step_verdict import judge_step, require_finite_steps
from trainflow.epochs import EpochId, Version
from trainflow.errors import TooManySkippedStepsError
from trainflow.monitoring.anomalies.norm_guard import NormGuard

JOB = make_job(monitoring={"anomalies": {"action": "skip"}})
VERSION = Version(100, EpochId(1, 1))


def decision_of(norm: float, loss: float = 2.0, weight: float = 4.0) -> CommitDecision:
    """What ranks come to whose mean gradient has this norm."""
    record = CommitRecord(1, 1, 1, weight=weight, loss_sum=loss * weight, norm=norm * weight)
    return decide_commit([record])


def known() -> NormGuard:
    guard: NormGuard | None = NormGuard()
    for step in range(100):
        guard = judge_step(decision_of(1.0 + 0.05 * math.sin(step)), guard, JOB).guard
    assert guard is not None
    return guard


def test_a_usual_step_is_applied_with_the_norm_of_the_mean_gradient():
    verdict = judge_step(decision_of(1.0), known(), JOB)
    assert verdict.is_applied
    assert verdict.norm == 1.0
    assert verdict.guard != known(), "it is learned from"


def test_one_with_an_odd_norm_is_finite_and_not_applied():
    verdict = judge_step(decision_of(1000.0), known(), JOB)
    assert verdict.is_finite
    assert not verdict.is_applied
    assert verdict.odd is not None
    assert verdict.guard is not None
    assert verdict.guard.num_skipped == 1


def test_without_a_guard_every_finite_step_is_applied():
    verdict = judge_step(decision_of(1000.0), None, make_job())
    assert (verdict.is_applied, verdict.guard) == (True, None)


@pytest.mark.parametrize(
    "decision",
    [
        decision_of(math.inf),
        decision_of(math.nan),
        decision_of(1.0, loss=math.nan),
        decision_of(1.0, weight=0.0),
    ],
)
def test_what_is_not_finite_or_of_no_samples_is_not_applied_nor_learned_from(
    decision: CommitDecision,
):
    verdict = judge_step(decision, known(), JOB)
    assert not verdict.is_finite
    assert not verdict.is_applied
    assert verdict.odd is None
    assert verdict.guard == known()


def test_as_many_in_a_row_as_the_limit_are_too_many():
    require_finite_steps(7, 4, 5)
    with pytest.raises(TooManySkippedStepsError, match=r"step 7: .* for 5 steps in a row"):
        require_finite_steps(7, 5, 5)


def test_what_is_known_goes_with_the_state_through_a_checkpoint():
    state, healed = begin_state(JOB), begin_state(JOB)
    state.norm_guard = replace(known(), num_skipped=2)
    skeleton = json.loads(json.dumps(flatten_state(state.tree()).skeleton))
    healed.load_tree(unflatten_state(skeleton, []), VERSION)
    assert healed.norm_guard == state.norm_guard


def test_of_a_run_that_skipped_nothing_nothing_is_known():
    state, resumed = begin_state(make_job()), begin_state(JOB)
    resumed.norm_guard = known()
    assert "norm_guard" not in state.tree()
    resumed.load_tree(state.tree(), VERSION)
    assert resumed.norm_guard == NormGuard()
    state.load_tree(resumed.tree(), VERSION)
    assert state.norm_guard is None


def test_a_rehearsal_teaches_nothing():
    state = begin_state(JOB)
    fresh = FreshState.capture(state)
    state.norm_guard = known()
    fresh.restore(state)
    assert state.norm_guard == NormGuard()
