"""A rank dies at each place of a step; the run ends as if nothing had happened."""

from collections import Counter

import pytest

from tests.distributed.case import Outcome
from tests.distributed.conftest import Run
from tests.distributed.faults import Act, Fault, Where, fail_at
from tests.distributed.jobs import BATCH, MAX_STEPS
from tests.distributed.training import train
from trainflow.coordination.recovery_plan import NoLiveStateError


def assert_as_undisturbed(outcome: Outcome, undisturbed: Outcome) -> None:
    """Same bits on every rank, every step committed once, every sample of the pass used once."""
    assert outcome.crashes == {}
    for result in outcome.by_rank:
        for key in ("digest", "average", "num_updates"):
            assert result[key] == undisturbed.by_rank[0][key]
    assert sorted(outcome.used) == list(range(1, MAX_STEPS + 1))
    assert outcome.used == undisturbed.used
    assert outcome.samples == Counter(range(MAX_STEPS * BATCH))
    for number, report in outcome.steps.items():
        assert report.loss == undisturbed.steps[number].loss
        assert report.grad_norm == undisturbed.steps[number].grad_norm


def assert_disagreed(outcome: Outcome, epoch: int, steps: set[int]) -> None:
    """What the members held when they formed the epoch with this place in the run."""
    assert {r.version.step for r in outcome.reports[epoch] if r.version is not None} == steps


def test_nothing_goes_wrong(undisturbed: Outcome):
    assert len({result["digest"] for result in undisturbed.by_rank}) == 1
    assert_as_undisturbed(undisturbed, undisturbed)
    assert len(undisturbed.plans) == 1


@pytest.mark.parametrize("step", [1, 4, MAX_STEPS])
@pytest.mark.parametrize("where", [Where.IN_MICROBATCH, Where.AFTER_RECORD])
def test_a_kill_in_the_first_a_middle_and_the_last_step(run: Run, undisturbed, where, step):
    outcome = run(train, fail_at(1, step, where), spares=1)
    assert_as_undisturbed(outcome, undisturbed)
    assert outcome.members == ("w0", "w3", "w2")


@pytest.mark.parametrize(
    "where", [Where.IN_BACKWARD, Where.BEFORE_RECORD, Where.IN_OPTIMIZER, Where.IN_TAIL]
)
def test_a_kill_anywhere_in_a_step(run: Run, undisturbed, where):
    outcome = run(train, fail_at(1, 4, where), spares=1)
    assert_as_undisturbed(outcome, undisturbed)
    assert outcome.members == ("w0", "w3", "w2")


def test_a_kill_of_the_rank_that_hosts_the_store(run: Run, undisturbed):
    outcome = run(train, fail_at(0, 4, Where.IN_BACKWARD), spares=1)
    assert_as_undisturbed(outcome, undisturbed)
    assert outcome.members == ("w3", "w1", "w2")


def test_two_ranks_at_once(run: Run, undisturbed):
    faults = fail_at(0, 4, Where.IN_BACKWARD), fail_at(2, 4, Where.IN_MICROBATCH)
    outcome = run(train, *faults, spares=2)
    assert_as_undisturbed(outcome, undisturbed)


def test_one_failure_after_another(run: Run, undisturbed):
    faults = fail_at(1, 2, Where.BEFORE_RECORD), fail_at(2, 5, Where.IN_OPTIMIZER)
    outcome = run(train, *faults, Fault("w3", 7, Where.IN_MICROBATCH), spares=3)
    assert_as_undisturbed(outcome, undisturbed)


def test_the_rank_that_is_healed_dies_with_half_of_the_state(run: Run, undisturbed):
    healed = Fault("w3", 3, Where.IN_HEALING)
    outcome = run(train, fail_at(1, 4, Where.IN_MICROBATCH), healed, spares=2)
    assert_as_undisturbed(outcome, undisturbed)
    assert outcome.members == ("w0", "w4", "w2")


def test_the_rank_that_heals_another_dies(run: Run, undisturbed):
    source = fail_at(0, 3, Where.IN_HEALING)
    outcome = run(train, fail_at(1, 4, Where.IN_MICROBATCH), source, spares=2)
    assert_as_undisturbed(outcome, undisturbed)
    assert "w0" not in outcome.members


@pytest.mark.parametrize("laggard", [0, 1, 2])
def test_a_rank_that_missed_the_commit_heals_to_the_newer_state(run: Run, undisturbed, laggard):
    others = tuple({0, 1, 2} - {laggard})
    fault = fail_at(laggard, 4, Where.AFTER_RECORD, Act.DROP, once_applied=others)
    outcome = run(train, fault)
    assert_as_undisturbed(outcome, undisturbed)
    assert_disagreed(outcome, 1, {3, 4})
    assert outcome.plans[1].base.step == 4
    assert outcome.plans[1].sources.keys() == {laggard}


def test_one_applied_one_missed_it_and_one_died_half_applied(run: Run, undisturbed):
    dirty = fail_at(0, 4, Where.IN_OPTIMIZER, once_applied=(1,))
    laggard = fail_at(2, 4, Where.AFTER_RECORD, Act.DROP, once_applied=(1,))
    outcome = run(train, dirty, laggard, spares=1)
    assert_as_undisturbed(outcome, undisturbed)
    assert_disagreed(outcome, 1, {3, 4})


def test_the_only_rank_that_applied_dies_and_the_step_is_done_again(run: Run, undisturbed):
    place = (4, Where.AFTER_RECORD, Act.DROP)
    dropped = [fail_at(rank, *place, once_applied=(0,)) for rank in (1, 2)]
    outcome = run(train, fail_at(0, 4, Where.IN_TAIL), *dropped, spares=1)
    assert_as_undisturbed(outcome, undisturbed)
    assert outcome.plans[1].base.step == 3


def test_a_half_received_state_is_no_state(run: Run, undisturbed):
    """The one rank that applied the step dies while it heals the first of two that did not."""
    place = (4, Where.AFTER_RECORD, Act.DROP)
    laggards = [fail_at(rank, *place, once_applied=(0,)) for rank in (1, 2)]
    outcome = run(train, fail_at(0, 4, Where.IN_HEALING), *laggards, spares=1)
    assert_as_undisturbed(outcome, undisturbed)
    assert [plan.base.step for plan in outcome.plans] == [0, 4, 3]
    assert outcome.plans[2].sources == {0: 2, 1: 2}


def test_when_every_holder_of_the_state_is_gone_it_stops(run: Run):
    """Two spares are warm, and what they rehearsed with is no state of the run."""
    faults = [fail_at(r, 4, Where.IN_TAIL, once_applied=(0, 1)) for r in (0, 1)]
    with pytest.raises(NoLiveStateError, match="none of 2 members holds a whole state"):
        run(train, *faults, world=2, spares=2)


def test_buffers_that_forward_changed_are_put_back(run: Run, undisturbed):
    outcome = run(train, fail_at(1, 4, Where.BEFORE_RECORD), spares=1)
    expected = undisturbed.results["w0"]["num_forwards"]
    assert [result["num_forwards"] for result in outcome.by_rank] == [expected] * 3


def test_survivors_see_the_step_again_with_its_number_of_tries(run: Run, undisturbed):
    outcome = run(train, fail_at(1, 4, Where.IN_MICROBATCH, once_begun=(0, 2)), spares=1)
    tries = outcome.results["w0"]["tries"]
    tail_of_3 = (3, 0)  # the lost rank may not have run it to its end
    assert tries[:6] == [(1, 0), (2, 0), (3, 0), (4, 0), tail_of_3, (4, 1)]
    assert tries[6:] == [(5, 0), (6, 0), (7, 0), (8, 0)]


def test_a_failed_collective_that_costs_nobody_repeats_that_step_alone(run: Run, undisturbed):
    outcome = run(train, fail_at(1, 4, Where.IN_BACKWARD, Act.DROP, once_begun=(0, 2)))
    assert_as_undisturbed(outcome, undisturbed)
    for result in outcome.by_rank:
        assert result["tries"] == [(n, 0) for n in (1, 2, 3, 4)] + [
            (n, n == 4) for n in range(4, 9)
        ]
        assert result["tails"] == list(range(1, 9))


def test_a_stopped_peer_is_left_behind_at_once(run: Run, undisturbed):
    outcome = run(train, fail_at(1, 4, Where.IN_BACKWARD, Act.STOP), spares=1)
    assert_as_undisturbed(outcome, undisturbed)
    assert all(report.freed_s < 2.0 for report in outcome.reports[1])
    assert outcome.hung.keys() == {"w1"}
    assert "has given no pulse" in outcome.hung["w1"]
