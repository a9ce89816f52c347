"""Which pairs are cut, and that few leave, but never one too few."""

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainflow.coordination.link_cuts import Cut, choose_leaving, find_cuts

NODES = st.sampled_from("abcdefg")
CUTS = st.sets(st.tuples(NODES, NODES).filter(lambda two: two[0] < two[1]).map(lambda t: Cut(*t)))


def test_one_end_is_enough_to_tell_of_a_cut():
    assert find_cuts({"a": ["b"], "b": []}) == {Cut("a", "b")}
    assert find_cuts({"a": ["b"], "b": ["a"]}) == {Cut("a", "b")}
    assert find_cuts({"a": [], "b": []}) == frozenset()


def test_what_is_said_of_nodes_that_do_not_answer_counts_for_nothing():
    assert find_cuts({"a": ["gone"], "b": []}) == frozenset()


@pytest.mark.parametrize(
    ("cuts", "ranks_on", "leaving"),
    [
        ([Cut("a", "b")], {"a": [0], "b": [1], "c": [2]}, ["b"]),
        ([Cut("a", "b")], {"a": [1], "b": [0], "c": [2]}, ["a"]),
        ([Cut("a", "b")], {"a": [0], "b": [1, 2], "c": [3]}, ["a"]),
        ([Cut("a", "b"), Cut("a", "c")], {"a": [0, 1], "b": [2], "c": [3]}, ["a"]),
        ([Cut("a", "b"), Cut("c", "d")], {"a": [0], "b": [1], "c": [2], "d": [3]}, ["d", "b"]),
        ([Cut("a", "b")], {"a": [0], "c": [1]}, []),
        ([], {"a": [0], "b": [1]}, []),
    ],
    ids=[
        "rank 0 stays",
        "wherever it is",
        "fewest ranks go",
        "cut from most",
        "two pairs",
        "one without ranks needs not leave",
        "none",
    ],
)
def test_it_is_decided_which_node_leaves(
    cuts: list[Cut], ranks_on: dict[str, list[int]], leaving: list[str]
):
    assert choose_leaving(cuts, ranks_on) == leaving


@given(CUTS)
def test_those_that_stay_reach_each_other_and_nobody_leaves_for_nothing(cuts: set[Cut]):
    ranks_on = {node: [rank] for rank, node in enumerate("abcdefg")}
    leaving = choose_leaving(cuts, ranks_on)
    staying = [node for node in ranks_on if node not in leaving]
    assert all(Cut(*pair) not in cuts for pair in combinations(staying, 2))
    assert all(any(node in cut for cut in cuts) for node in leaving)
    assert choose_leaving(sorted(cuts, reverse=True), ranks_on) == leaving
