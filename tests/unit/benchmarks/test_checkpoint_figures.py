"""The order of turns, and what becomes of their times."""

from collections import Counter

import pytest

from benchmarks.checkpoint_figures import (
    STEP_COPIES,
    BlockPair,
    Pair,
    best_variants,
    by_variant,
    copy_rows,
    every_step_rows,
    pair_rows,
    plan_turns,
    products_for_step,
    restore_rows,
)


def make_pair(system, blocked_s, *, without_s=2.0, spilled_s=0.0):
    return Pair(
        system,
        with_s=without_s + blocked_s,
        without_s=without_s,
        after_s=without_s + spilled_s,
        call_s=0.01,
    )


def values_of(rows):
    return {(row.system, row.metric): row.value for row in rows}


def test_every_system_has_one_turn_a_round_and_saves_first_as_often_as_last():
    turns = plan_turns(["a", "b", "c"], num_rounds=4)
    for start in range(0, 12, 3):
        assert {turn.system for turn in turns[start : start + 3]} == {"a", "b", "c"}
    counts = Counter((turn.system, turn.saves_first) for turn in turns)
    assert set(counts.values()) == {2}
    assert len(counts) == 6


def test_the_order_of_a_round_is_not_always_the_same_but_is_on_every_rank():
    turns = plan_turns(["a", "b", "c"], num_rounds=8)
    assert turns == plan_turns(["a", "b", "c"], num_rounds=8)
    orders = {tuple(turn.system for turn in turns[start : start + 3]) for start in range(0, 24, 3)}
    assert len(orders) > 1


def test_a_step_is_made_as_long_as_copies_of_the_state():
    num_products = products_for_step(copy_s=0.1, update_s=0.3, product_s=0.01)
    assert num_products * 0.01 + 0.3 == pytest.approx(STEP_COPIES * 0.1)
    assert products_for_step(copy_s=0.1, update_s=9.0, product_s=0.01) == 1


def test_blocked_is_the_difference_within_a_pair():
    # Two pairs of a machine that has become slower: absolute times say nothing.
    pairs = [make_pair("a", 0.1), make_pair("a", 0.1, without_s=4.0, spilled_s=0.3)]
    values = values_of(pair_rows(pairs, copy_s=0.1))
    assert values["a", "blocked_s"] == pytest.approx(0.1)
    assert values["a", "blocked_copies"] == pytest.approx(1.0)
    assert values["a", "blocked_s_low"] <= 0.1 + 1e-9 <= values["a", "blocked_s_high"] + 1e-8
    assert values["a", "next_step_s"] == pytest.approx(0.15)
    assert values["no_save", "step_copies"] == pytest.approx(30.0)
    assert values["a", "pairs"] == 2


def test_the_variant_that_blocks_least_stands_for_its_system():
    pairs = [make_pair("a:x", 0.3), make_pair("a:y", 0.2), make_pair("b", 0.25)]
    assert best_variants(by_variant(pairs)) == {"a": "a:y", "b": "b"}
    values = values_of(pair_rows(pairs, copy_s=0.1))
    assert values["a", "blocked_s"] == pytest.approx(0.2)
    assert values["a:x", "blocked_s"] == pytest.approx(0.3)
    assert ("b:", "blocked_s") not in values


def test_a_variant_that_was_left_behind_stands_for_nothing():
    pairs = [make_pair("a:x", 0.1), make_pair("a:y", 0.2), make_pair("a:y", 0.4)]
    assert best_variants(by_variant(pairs)) == {"a": "a:y"}
    assert values_of(pair_rows(pairs, copy_s=0.1))["a", "blocked_s"] == pytest.approx(0.3)


def test_every_step_is_a_ratio_of_median_steps():
    blocks = [BlockPair((1.1, 1.1, 9.0), (1.0, 1.0, 1.0)), BlockPair((2.2,), (2.0,))]
    values = values_of(every_step_rows(blocks))
    assert values["trainflow_every_step", "step_ratio"] == pytest.approx(1.1)


def test_copies_and_restores_are_medians_with_their_interval():
    values = values_of([*copy_rows([1.0, 2.0, 9.0]), *restore_rows({"dcp": [3.0]})])
    assert values["memcpy", "copy_s"] == 2.0
    assert values["memcpy", "copy_s_low"] == 1.0
    assert values["dcp", "restore_s"] == 3.0
