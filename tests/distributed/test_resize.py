"""Without a spare the world shrinks, and grows back at a step boundary."""

from collections import Counter

import pytest

from tests.distributed.case import Outcome
from tests.distributed.conftest import Run
from tests.distributed.faults import Where, fail_at
from tests.distributed.jobs import BATCH
from tests.distributed.training import train

STEPS = 40


def assert_exactly_once(outcome: Outcome) -> None:
    assert outcome.crashes == {}
    assert sorted(outcome.used) == list(range(1, STEPS + 1))
    assert outcome.samples == Counter(range(STEPS * BATCH))
    assert len({result["digest"] for result in outcome.by_rank}) == 1
    assert {result["num_updates"] for result in outcome.by_rank} == {STEPS}


@pytest.mark.parametrize("where", [Where.IN_BACKWARD, Where.IN_OPTIMIZER])
def test_the_world_shrinks_and_uses_every_sample_once(run: Run, where):
    settings = {"max_steps": STEPS}
    fault = fail_at(1, 4, where, once_begun=(0, 2))
    outcome = run(train, fault, num_samples=STEPS * BATCH, training=settings)
    assert_exactly_once(outcome)
    assert outcome.members == ("w0", "w2")
    assert [outcome.steps[n].world_size for n in (3, 5, STEPS)] == [3, 2, 2]


def test_batch_and_learning_rate_follow_the_world_where_that_is_asked_for(run: Run):
    expected = [BATCH] * 3 + [7] * (STEPS - 3)  # of ten for three ranks, those of two
    digests: set[str] = set()
    for rule, factor in (("linear", 0.7), ("sqrt", 0.7**0.5)):
        settings = {"max_steps": STEPS, "batch_scaling": rule}
        fault = fail_at(1, 4, Where.IN_BACKWARD, once_begun=(0, 2))
        outcome = run(train, fault, num_samples=sum(expected), training=settings)
        assert outcome.crashes == {}
        assert [outcome.used[number].total() for number in range(1, STEPS + 1)] == expected
        assert outcome.samples == Counter(range(sum(expected))), "one pass, each sample once"
        rates = [outcome.steps[number].lr * number for number in range(1, STEPS + 1)]
        assert rates == pytest.approx([0.01] * 3 + [0.01 * factor] * (STEPS - 3))
        digests |= {result["digest"] for result in outcome.by_rank}
    assert len(digests) == 2, "the two differ in nothing but the rates that optimizers used"


def test_it_grows_back_at_a_step_boundary(run: Run):
    settings = {"max_steps": STEPS}
    outcome = run(
        train,
        fail_at(1, 4, Where.IN_MICROBATCH, once_begun=(0, 2)),
        late={"w3": 12},
        spares=1,
        num_samples=STEPS * BATCH,
        training=settings,
    )
    assert_exactly_once(outcome)
    assert [plan.spec.world_size for plan in outcome.plans] == [3, 2, 3]
    grown = outcome.plans[-1]
    assert outcome.steps[grown.base.step].pausing
    assert not grown.replay_tail, "nobody was interrupted"
    survivor = outcome.results["w0"]
    assert all(retry == 0 for number, retry in survivor["tries"] if number != 4)


def test_a_world_of_one_is_enough(run: Run):
    settings = {"max_steps": STEPS}
    faults = fail_at(0, 4, Where.IN_BACKWARD), fail_at(2, 9, Where.IN_MICROBATCH)
    outcome = run(train, *faults, num_samples=STEPS * BATCH, training=settings)
    assert_exactly_once(outcome)
    assert outcome.members == ("w1",)
