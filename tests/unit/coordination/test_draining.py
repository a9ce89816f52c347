"""Which nodes are to be emptied, and how far that has come."""

import math
from typing import Any

import pytest

from trainflow.coordination.draining import (
    Drain,
    Notice,
    Stage,
    Told,
    find_stranded,
    find_told,
    group_by_deadline,
    merge_notices,
)
from trainflow.coordination.unfit_nodes import UnfitNodes


def until(deadline_at_s: float | None, source: str = "Ray") -> Notice:
    return Notice(deadline_at_s, source)


def test_of_two_notices_the_one_that_leaves_less_time_counts():
    ray = {"a": until(None), "b": until(50.0), "c": until(70.0)}
    cloud = {"a": until(60.0, "cloud"), "b": until(55.0, "cloud"), "d": until(None, "cloud")}
    merged = merge_notices([ray, cloud])
    assert {node: (n.deadline_at_s, n.source) for node, n in merged.items()} == {
        "a": (60.0, "cloud"),
        "b": (50.0, "Ray"),
        "c": (70.0, "Ray"),
        "d": (None, "cloud"),
    }


def test_a_deadline_that_clocks_tell_differently_is_the_same():
    assert until(50.0).is_like(until(50.9))
    assert not until(50.0).is_like(until(52.0))
    assert not until(50.0).is_like(until(None))
    assert until(None).is_like(until(None))


def test_nodes_that_go_at_the_same_time_are_one_group_and_those_with_most_time_come_first():
    deadlines = {"a": 50.0, "b": 90.0, "c": 50.9, "d": math.inf, "e": math.inf, "f": 30.0}
    assert group_by_deadline(deadlines) == [{"d", "e"}, {"b"}, {"a", "c"}, {"f"}]
    assert group_by_deadline({}) == []


def test_a_node_is_empty_once_its_ranks_are_elsewhere_and_stays_so():
    drain = Drain(until(100.0))
    assert drain.observe({"w1": 1, "w2": 2}, [], 90.0) is None
    assert drain.observe({"w2": 2}, [], 91.0) is None
    assert drain.observe({}, [], 92.0) is Stage.EMPTY
    assert drain.ranks == {"w1": 1, "w2": 2}
    assert drain.observe({}, ["w1", "w2"], 110.0) is None, "they go with the node, without a rank"


def test_workers_that_were_lost_with_their_ranks_were_too_late():
    drain = Drain(until(100.0))
    drain.observe({"w1": 1, "w2": 2}, [], 90.0)
    assert drain.observe({}, ["w2"], 92.0) is Stage.LOST
    assert drain.observe({}, ["w1", "w2"], 93.0) is None


def test_a_deadline_that_passes_is_told_once_and_the_node_may_be_emptied_yet():
    drain = Drain(until(100.0))
    assert drain.observe({"w1": 1}, [], 100.0) is None
    assert drain.observe({"w1": 1}, [], 100.1) is Stage.LATE
    assert drain.observe({"w1": 1}, [], 101.0) is None
    assert drain.observe({}, [], 102.0) is Stage.EMPTY


@pytest.mark.parametrize(
    "drain", [Drain(until(None)), Drain(until(100.0), is_short=True)], ids=["none", "too short"]
)
def test_without_a_deadline_that_could_be_kept_nothing_is_late(drain: Drain):
    assert drain.observe({"w1": 1}, [], 1e9) is None
    assert drain.observe({}, [], 1e9) is Stage.EMPTY


def test_one_that_gets_a_rank_again_has_to_be_emptied_again():
    drain = Drain(until(None), stage=Stage.EMPTY)
    assert drain.observe({}, [], 1.0) is None
    assert drain.observe({"w3": 0}, ["w1"], 2.0) is None
    assert drain.observe({}, ["w1"], 3.0) is Stage.EMPTY
    assert drain.observe({"w4": 0}, [], 4.0) is None
    assert drain.ranks == {"w4": 0}, "what was there before is past"


def test_unfit_nodes_are_left_out_where_the_others_are_enough():
    unfit = UnfitNodes({"b": 5.0}, frozenset({"c"}))
    assert [node for node in "abcd" if node in unfit] == ["b", "c"]
    assert unfit.all() == {"b", "c"}
    assert unfit.leave_out(["a", "b", "c", "d"], at_least=2) == ["a", "d"]
    assert unfit.leave_out(["a", "b", "c", "d"], at_least=3) == ["a", "b", "c", "d"]


def test_what_events_tell_of_nodes_is_known_again():
    def tell(kind: str, node: str, **data: Any) -> dict[str, Any]:
        return {"kind": kind, "data": {"node": node, **data}}

    there = {"workers": {"w1": 1}, "world_size": 3}
    events = [
        tell("drain", "a", **there),
        tell("drain", "b", **there),
        tell("drain_late", "b", lost=False, **there),
        tell("drain", "c", **there),
        tell("drain_late", "c", lost=True, **there),
        tell("drain", "d", **there),
        tell("drained", "d", workers={"w1": 1, "w2": 2}, world_size=3),
        tell("drain", "e", **there),
        tell("drain_over", "e"),
        tell("drain", "f"),
    ]
    assert find_told(events) == {
        "a": Told(Stage.OPEN, {"w1": 1}, 3),
        "b": Told(Stage.LATE, {"w1": 1}, 3),
        "c": Told(Stage.LOST, {"w1": 1}, 3),
        "d": Told(Stage.EMPTY, {"w1": 1, "w2": 2}, 3),
        "f": Told(Stage.OPEN, {}, 0),
    }


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([], ""),
        ([("nowhere_to_go", "ab")], "ab"),
        ([("nowhere_to_go", "ab"), ("drained", "a")], "b"),
        ([("nowhere_to_go", "ab"), ("drain_over", "b")], "a"),
        ([("nowhere_to_go", "ab"), ("nowhere_to_go", "c"), ("drain", "a")], "c"),
    ],
)
def test_what_events_tell_of_nowhere_to_go_is_known_again(
    events: list[tuple[str, str]], expected: str
):
    told = [{"kind": k, "data": {"node": which, "nodes": list(which)}} for k, which in events]
    assert find_stranded(told) == set(expected)
