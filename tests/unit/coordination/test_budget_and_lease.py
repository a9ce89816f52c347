import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainflow.coordination.failure_budget import FailureBudget
from trainflow.coordination.lease import Lease, is_majority


def test_one_failure_more_than_the_limit_is_too_many():
    budget = FailureBudget(2, window_s=100.0)
    assert not budget.is_overspent([0.0, 1.0], now_s=2.0)
    assert budget.is_overspent([0.0, 1.0, 2.0], now_s=2.0)


def test_failures_age_out_of_the_window():
    budget = FailureBudget(1, window_s=10.0)
    assert budget.is_overspent([0.0, 10.0], now_s=10.0)
    assert not budget.is_overspent([0.0, 10.5], now_s=10.5)
    assert budget.is_overspent([0.0, 10.5, 21.0, 22.0], now_s=22.0)


def test_failures_since_a_run_last_moved_on_count_however_old_they_are():
    budget = FailureBudget(1, window_s=10.0)
    assert budget.is_overspent([100.0, 200.0], 200.0, moved_on_at_s=100.0)
    assert not budget.is_overspent([100.0, 200.0], 200.0, moved_on_at_s=150.0)
    assert budget.is_overspent([100.0, 105.0], 105.0, moved_on_at_s=105.0), "the window is longer"


def test_none_never_ends_a_run_and_zero_ends_it_at_once():
    assert not FailureBudget(None, window_s=10.0).is_overspent([0.0] * 1000, now_s=0.0)
    assert FailureBudget(0, window_s=10.0).is_overspent([0.0], now_s=0.0)
    assert not FailureBudget(0, window_s=10.0).is_overspent([], now_s=0.0)


def test_a_lease_runs_out_unless_it_is_renewed():
    lease = Lease(10.0, now_s=0.0)
    assert not lease.is_expired(10.0)
    assert lease.is_expired(10.1)
    lease.renew(10.1)
    assert not lease.is_expired(20.0)
    lease.renew(9.0)
    assert not lease.is_expired(20.0), "what was asked before is answered after"


def test_an_answer_is_waited_for_until_the_end_of_a_lease_that_has_not_run_out():
    lease = Lease(10.0, now_s=5.0)
    assert lease.wait_until_s(14.9) == 15.0
    assert lease.wait_until_s(15.1) == math.inf


@pytest.mark.parametrize(
    ("num_heard", "num_peers", "is_more_than_half"),
    [(0, 0, True), (0, 1, False), (1, 1, True), (0, 2, False), (1, 2, True), (1, 3, False)],
)
def test_a_majority_counts_oneself(num_heard, num_peers, is_more_than_half):
    assert is_majority(num_heard, num_peers) is is_more_than_half


@given(st.integers(1, 1000), st.data())
def test_two_sides_of_a_partition_are_never_both_a_majority(num_keepers, data):
    here = data.draw(st.integers(1, num_keepers))
    there = num_keepers - here
    sides = [is_majority(here - 1, num_keepers - 1)]
    if there:
        sides.append(is_majority(there - 1, num_keepers - 1))
    assert sum(sides) <= 1
