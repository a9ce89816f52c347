"""Who probes whom, and whose link is slow, by plain numbers."""

from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainflow.checkpointing.link_speed import LinkSpeed
from trainflow.coordination.link_attribution import (
    MOST_ROUNDS,
    Probe,
    SlowLink,
    find_slow_links,
    is_cause,
    plan_probes,
)

FAST = LinkSpeed(100e6, 0.0003)
SLOW = LinkSpeed(10e6, 0.02)


def probes(num_nodes: int, *slow: str) -> list[Probe]:
    """Probe everybody with everybody; slow are nodes, or pairs as ``ab``."""
    names = "abcdefgh"[:num_nodes]
    found: list[Probe] = []
    for one, other in combinations(names, 2):
        is_slow = one in slow or other in slow or one + other in slow
        found.append(Probe(one, other, SLOW if is_slow else FAST))
    return found


@given(st.integers(0, 40))
def test_nobody_is_probed_twice_at_a_time_and_few_rounds_do(num_nodes: int):
    nodes = [f"n{number}" for number in range(num_nodes)]
    rounds = plan_probes(nodes)
    assert len(rounds) <= MOST_ROUNDS
    for pairs in rounds:
        seated = [node for pair in pairs for node in pair]
        assert len(set(seated)) == len(seated)
        assert len(seated) >= num_nodes - 1
    met = Counter(frozenset(pair) for pairs in rounds for pair in pairs)
    assert all(len(pair) == 2 for pair in met), "nobody probes itself"
    assert set(met.values()) <= {1}
    if num_nodes <= MOST_ROUNDS:
        assert len(met) == num_nodes * (num_nodes - 1) // 2, "everybody meets everybody"


def test_a_node_that_is_slow_with_all_others_is_named():
    assert find_slow_links(probes(3, "c")) == [SlowLink(("c",), SLOW, FAST)]
    assert find_slow_links(probes(5, "a")) == [SlowLink(("a",), SLOW, FAST)]


def test_half_of_the_nodes_can_be_named_and_more_are_what_is_usual():
    named = find_slow_links(probes(4, "a", "c"))
    assert [link.node_ids for link in named] == [("a",), ("c",)]
    assert find_slow_links(probes(4, "a", "b", "c")) == []


def test_what_is_slow_between_two_is_between_them():
    assert find_slow_links(probes(4, "bd")) == [SlowLink(("b", "d"), SLOW, FAST)]
    named = find_slow_links(probes(5, "bd", "a"))
    assert [link.node_ids for link in named] == [("a",), ("b", "d")]


def test_of_two_nodes_the_link_between_them_is_all_that_can_be_named():
    assert find_slow_links(probes(2)) == [SlowLink(("a", "b"), FAST, None)]


def test_where_all_are_alike_none_is_slow():
    assert find_slow_links(probes(4)) == []
    assert find_slow_links([]) == []


def test_a_link_of_which_nothing_is_known_is_not_named():
    known = [probe for probe in probes(4, "d") if "d" not in (probe.one, probe.other)]
    assert find_slow_links(known) == []


@pytest.mark.parametrize(
    ("num_bytes", "num_ranks", "excess_s", "expected"),
    [
        (10_000_000, 2, 2.0, True),
        (10_000_000, 2, 4.0, False),
        (0, 1, 0.05, True),
        (0, 2, 0.1, False),
        (0, 3, 0.1, True),
    ],
    ids=[
        "its bytes take half of it",
        "they take a quarter",
        "its messages take two fifths",
        "they take a fifth",
        "of more ranks there are more messages",
    ],
)
def test_a_link_is_a_cause_if_what_is_sent_takes_that_long(
    num_bytes: int, num_ranks: int, excess_s: float, *, expected: bool
):
    link = SlowLink(("c",), SLOW, FAST)
    assert is_cause(link, num_bytes, num_ranks, excess_s) is expected


def late(num_nodes: int, round_trip_s: float, *slow: str) -> list[Probe]:
    """Probe everybody with everybody; who is slow answers later, and takes as many bytes."""
    speed = LinkSpeed(FAST.bytes_per_s, round_trip_s)
    return [
        Probe(each.one, each.other, speed if each.speed == SLOW else FAST)
        for each in probes(num_nodes, *slow)
    ]


def test_a_link_that_answers_late_is_slow_though_it_takes_as_many_bytes():
    speed = LinkSpeed(FAST.bytes_per_s, 0.02)
    assert find_slow_links(late(3, 0.02, "c")) == [SlowLink(("c",), speed, FAST)]
    assert find_slow_links(late(4, 0.02, "bd")) == [SlowLink(("b", "d"), speed, FAST)]


def test_what_answers_a_little_later_is_not():
    assert find_slow_links(late(4, FAST.round_trip_s + 0.009, "c")) == []
    far = [Probe(each.one, each.other, LinkSpeed(100e6, 0.04)) for each in probes(3)]
    far[0] = Probe(far[0].one, far[0].other, LinkSpeed(100e6, 0.06))
    assert find_slow_links(far) == [], "all are far from each other"


def test_a_node_has_the_best_of_what_was_measured_with_it():
    """Its fastest probe had to wait at first, another one was sent beside something else."""
    healthy = late(4, 0.02, "ab")
    healthy[1] = Probe("a", "c", LinkSpeed(FAST.bytes_per_s / 2, FAST.round_trip_s))
    healthy[2] = Probe("a", "d", LinkSpeed(FAST.bytes_per_s / 2, FAST.round_trip_s))
    assert [link.node_ids for link in find_slow_links(healthy)] == [("a", "b")]


def test_noise_names_nobody_and_a_tenth_of_the_speed_is_named():
    """Each probe measures between .4 of the link and all of it, and round trips of up to 10 ms:
    training uses links and processors too.
    """
    random = np.random.default_rng(1)
    num_named = 0
    for _ in range(2000):
        healthy = [
            Probe(
                each.one,
                each.other,
                LinkSpeed(100e6 * random.uniform(0.4, 1.0), random.uniform(0.0003, 0.01)),
            )
            for each in probes(4)
        ]
        num_named += len(find_slow_links(healthy))
        slowed = [
            Probe(each.one, each.other, LinkSpeed(each.speed.bytes_per_s * 0.1, 0.1))
            if "c" in (each.one, each.other)
            else each
            for each in healthy
        ]
        assert [link.node_ids for link in find_slow_links(slowed)] == [("c",)]
    assert num_named == 0
