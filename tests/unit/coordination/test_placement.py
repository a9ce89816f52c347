from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from trainflow.coordination.placement import choose_members, count_slots, number_nodes


def test_slots_are_bounded_by_the_scarcest_resource_of_each_node():
    nodes = [{"CPU": 8.0, "GPU": 1.0}, {"CPU": 3.0, "GPU": 4.0}, {"CPU": 9.0}]
    assert count_slots(nodes, {"CPU": 2.0, "GPU": 1.0}) == 2
    assert count_slots(nodes, {"CPU": 2.0, "GPU": 0.0}) == 4 + 1 + 4


def test_a_worker_that_needs_nothing_fits_once_on_each_node():
    assert count_slots([{"CPU": 1.0}, {}], {"CPU": 0.0}) == 2


def test_members_begin_spread_out():
    nodes = {0: "a", 1: "a", 2: "b", 3: "b", 4: "c"}
    assert choose_members(nodes, 3) == (0, 2, 4)


def test_nodes_are_numbered_as_they_come_up():
    assert number_nodes(["b", "a", "b", "c"]) == (0, 1, 0, 2)
    assert number_nodes([]) == ()


bundles = st.dictionaries(st.integers(0, 20), st.sampled_from("abcd"), min_size=1)


@given(bundles, st.integers(0, 20))
def test_the_members_are_distinct_bundles_as_many_as_there_are(nodes, num_members):
    members = choose_members(nodes, num_members)
    assert len(set(members)) == len(members) == min(num_members, len(nodes))
    assert set(members) <= nodes.keys()


@given(bundles, st.integers(1, 20))
def test_no_node_is_fuller_than_it_must_be(nodes, num_members):
    members = choose_members(nodes, num_members)
    load = Counter(nodes[bundle] for bundle in members)
    room = Counter(nodes.values())
    fullest = max(load.values())
    # A lower ceiling for every node could not hold as many members.
    assert sum(min(room[node], fullest - 1) for node in room) < len(members)


@given(bundles, st.integers(1, 20))
def test_any_node_can_be_replaced_where_some_choice_allows_it(nodes, num_members):
    room = Counter(nodes.values())
    members = choose_members(nodes, num_members)
    load = Counter(nodes[bundle] for bundle in members)

    def survives(load: Counter[str]) -> bool:
        spare = {node: room[node] - load[node] for node in room}
        total = sum(spare.values())
        return all(load[node] <= total - spare[node] for node in room)

    if any(survives(other) for other in _loads(room, len(members))):
        assert survives(load)


def _loads(room: Counter[str], num_members: int) -> list[Counter[str]]:
    """Return every way to spread that many members."""
    found = [Counter[str]()]
    for node, limit in room.items():
        found = [load + Counter({node: n}) for load in found for n in range(limit + 1)]
    return [load for load in found if load.total() == num_members]
