import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainflow.checkpointing.retention import RetentionPolicy, best_interval_s, choose_kept

STEPS = [10, 20, 30, 40, 50]
POLICIES = st.builds(
    RetentionPolicy,
    keep_last=st.integers(0, 4),
    keep_every=st.none() | st.integers(1, 7),
    keep_best=st.integers(0, 4),
)


@pytest.mark.parametrize(
    ("policy", "kept"),
    [
        (RetentionPolicy(keep_last=2), {40, 50}),
        (RetentionPolicy(keep_last=1, keep_every=20), {20, 40, 50}),
        (RetentionPolicy(keep_last=1, keep_best=2), {20, 40, 50}),
        (RetentionPolicy(keep_last=9), {*STEPS}),
    ],
)
def test_what_any_rule_wants_stays(policy: RetentionPolicy, kept: set[int]):
    values = {10: 3.0, 20: 1.0, 30: math.nan, 40: 2.0}
    assert choose_kept(STEPS[::-1], values, policy) == kept


def test_of_equal_values_the_older_is_best():
    policy = RetentionPolicy(keep_last=1, keep_best=1)
    assert choose_kept(STEPS, dict.fromkeys(STEPS, 1.0), policy) == {10, 50}


@given(st.sets(st.integers(1, 100)), POLICIES, st.dictionaries(st.integers(1, 100), st.floats()))
def test_the_newest_always_stays_and_nothing_is_invented(steps, policy, values):
    kept = choose_kept(list(steps), values, policy)
    assert kept <= steps
    assert not steps or max(steps) in kept


@given(st.sets(st.integers(1, 100), min_size=1), st.integers(1, 50), st.integers(1, 5))
def test_what_went_once_is_not_missed_later(steps, newer, last):
    """Keeping in two goes, with a checkpoint in between, is keeping once."""
    policy = RetentionPolicy(keep_last=last, keep_every=10)
    first = choose_kept(list(steps), {}, policy)
    added = max(steps) + newer
    assert choose_kept([*first, added], {}, policy) == choose_kept([*steps, added], {}, policy)


def test_the_interval_balances_saving_and_losing():
    def cost(interval_s: float) -> float:
        return 2.0 / interval_s + interval_s / (2 * 3600.0)

    best_s = best_interval_s(2.0, 3600.0)
    assert best_s == pytest.approx(120.0)
    assert cost(best_s) < min(cost(best_s * 1.1), cost(best_s * 0.9))


def test_the_interval_is_never_longer_than_the_time_between_failures():
    assert best_interval_s(10.0, 15.0) == 15.0
