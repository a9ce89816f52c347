"""Who has failed too often, and when it is tried again."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainflow.coordination.node_isolation import Isolated, NodeIsolation

HOSTS = ("a", "b", "c")


def make(after: int | None = 2, window_s: float = 100.0, pause_s: float = 10.0) -> NodeIsolation:
    return NodeIsolation(after, window_s, pause_s)


def test_the_kth_failure_within_the_window_isolates_a_node():
    isolation = make()
    assert isolation.judge({"a": [0.0], "b": [0.0]}, HOSTS, 1.0) == []
    assert isolation.judge({"a": [0.0, 1.0], "b": [0.0]}, HOSTS, 1.0) == ["a"]
    assert isolation.isolated == {"a": Isolated(probe_at_s=11.0)}
    assert isolation.judge({"a": [0.0, 1.0], "b": [0.0]}, HOSTS, 2.0) == [], "it is already"
    assert isolation.judge({"b": [0.0, 101.0]}, HOSTS, 101.0) == [], "one of them is long past"


def test_nobody_is_isolated_unless_that_is_asked_for():
    assert make(after=None).judge({"a": [0.0] * 100}, HOSTS, 1.0) == []


def test_the_last_node_is_never_isolated_and_the_worst_go_first():
    isolation = make()
    failed = {"a": [0.0] * 2, "b": [0.0] * 4, "c": [0.0] * 3}
    assert isolation.judge(failed, HOSTS, 1.0) == ["b", "c"]
    assert isolation.judge(failed, ["b", "c"], 2.0) == []
    assert make().judge({"a": [0.0] * 2}, ["a"], 1.0) == []


def test_one_that_is_gone_is_isolated_for_when_it_is_back_and_is_nobody_s_alternative():
    isolation = make()
    assert isolation.judge({"gone": [0.0] * 2}, ["a"], 1.0) == ["gone"]
    assert isolation.judge({"gone": [0.0] * 2, "a": [0.0] * 2}, ["a"], 1.0) == []


def test_it_is_tried_after_a_pause_and_by_one_worker_alone():
    isolation = make()
    isolation.judge({"a": [0.0, 0.0]}, HOSTS, 0.0)
    assert not isolation.may_probe("a", 9.9)
    assert not isolation.may_probe("b", 1e9)
    assert isolation.may_probe("a", 10.0)
    isolation.begin_probe("a")
    assert not isolation.may_probe("a", 20.0)


def test_each_time_the_pause_is_twice_as_long_up_to_a_limit():
    isolation = make()
    isolation.judge({"a": [0.0, 0.0]}, HOSTS, 0.0)
    pauses: list[float] = []
    for _ in range(8):
        isolation.begin_probe("a")
        assert isolation.fail("a", 100.0)
        pauses.append(isolation.isolated["a"].probe_at_s - 100.0)
    assert pauses == [20.0, 40.0, 80.0, 160.0, 320.0, 640.0, 640.0, 640.0]
    assert not isolation.fail("a", 100.0), "it was no probe"
    assert not isolation.fail("b", 100.0)
    assert "b" not in isolation.isolated


def test_once_it_is_back_only_what_fails_from_then_on_counts():
    isolation = make()
    isolation.judge({"a": [0.0, 0.0]}, HOSTS, 0.0)
    isolation.readmit("a", 10.0)
    assert isolation.isolated == {}
    assert isolation.judge({"a": [0.0, 0.0, 11.0]}, HOSTS, 11.0) == []
    assert isolation.judge({"a": [0.0, 0.0, 11.0, 12.0]}, HOSTS, 12.0) == ["a"]
    assert isolation.isolated["a"] == Isolated(32.0, num_times=2)


def test_what_an_earlier_coordinator_decided_holds():
    isolation = make()
    isolation.restore("a", Isolated(50.0, num_times=3))
    assert isolation.judge({"a": [0.0] * 9}, HOSTS, 1.0) == []
    isolation.begin_probe("a")
    isolation.fail("a", 100.0)
    assert isolation.isolated["a"] == Isolated(180.0, num_times=4)


def test_a_probe_of_an_earlier_coordinator_fails_by_what_fails_after_the_pause():
    isolation = make()
    isolation.restore("a", Isolated(50.0, num_times=1))
    assert not isolation.fail("a", 49.0)
    assert isolation.fail("a", 51.0)
    assert isolation.isolated["a"] == Isolated(71.0, num_times=2)
    assert not isolation.may_probe("a", 70.0)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=40))
def test_in_any_life_some_node_takes_ranks(life: list[tuple[str, bool]]):
    isolation, failed = make(after=1), dict.fromkeys(HOSTS, [0.0][:0])
    for now_s, (host, fails) in enumerate(life):
        if fails:
            failed[host] = [*failed[host], float(now_s)]
            isolation.fail(host, now_s)
        elif isolation.may_probe(host, now_s) and not len(failed[host]) % 3:
            isolation.begin_probe(host)
        elif isolation.may_probe(host, now_s):
            isolation.readmit(host, now_s)
        isolation.judge(failed, HOSTS, now_s)
        assert len(isolation.isolated) < len(HOSTS)


@pytest.mark.parametrize("after", [1, 5])
def test_k_is_what_counts(after: int):
    isolation = make(after)
    assert isolation.judge({"a": [0.0] * (after - 1)}, HOSTS, 0.0) == []
    assert isolation.judge({"a": [0.0] * after}, HOSTS, 0.0) == ["a"]
