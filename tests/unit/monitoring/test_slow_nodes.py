"""Which rank of each node the others wait for."""

from hypothesis import given
from hypothesis import strategies as st

from trainflow.monitoring.slow_nodes import SlowestRank, find_slowest

RANKS = st.lists(st.tuples(st.floats(0, 100), st.integers(0, 5)), min_size=1)


def by_rank(*times_s: float) -> dict[int, float]:
    return dict(enumerate(times_s))


def test_the_slowest_node_comes_first_by_its_slowest_rank():
    found = find_slowest(by_rank(0.1, 0.9, 0.4, 0.3), ["a", "a", "b", "b"])
    assert found == [SlowestRank(1, 0.9), SlowestRank(2, 0.4)]


def test_of_equals_the_first_counts():
    found = find_slowest(by_rank(*[0.5] * 4), [1, 0, 1, 0])
    assert found == [SlowestRank(0, 0.5), SlowestRank(1, 0.5)]


def test_ranks_that_are_left_out_are_of_no_node():
    found = find_slowest({0: 0.1, 3: 0.3}, ["a", "a", "b", "c"])
    assert found == [SlowestRank(3, 0.3), SlowestRank(0, 0.1)]


@given(RANKS)
def test_each_node_is_there_once_with_the_most_of_its_ranks(ranks: list[tuple[float, int]]):
    times_s, nodes = zip(*ranks, strict=True)
    found = find_slowest(by_rank(*times_s), nodes)
    assert [each.compute_s for each in found] == sorted(
        (max(t for t, node in ranks if node == wanted) for wanted in set(nodes)), reverse=True
    )
    assert len({nodes[each.rank] for each in found}) == len(set(nodes)) == len(found)
    assert all(times_s[each.rank] == each.compute_s for each in found)
