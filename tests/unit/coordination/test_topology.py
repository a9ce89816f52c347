"""Copies of a state don't die together where labels tell what does, and stay near."""

from hypothesis import given
from hypothesis import strategies as st

from trainflow.coordination.placement import choose_snapshot_ranks
from trainflow.coordination.topology import RACK, REGION, ZONE, choose_apart, rank_apart


def at(zone: str | None = None, rack: str | None = None, region: str | None = None):
    named = {REGION: region, ZONE: zone, RACK: rack}
    return {label: value for label, value in named.items() if value is not None}


labels = st.builds(
    at,
    *[st.sampled_from([None, "a", "b"])] * 3,
)


def test_another_rack_comes_first_and_of_those_the_nearest():
    source = at("z1", "r1")
    others = [at("z1", "r1"), at("z2", "r1"), at("z1", "r2"), at("z1", "r3")]
    assert choose_apart([source], others, 1) == [2]
    assert choose_apart([source], others, 4) == [2, 3, 1, 0]


def test_racks_of_a_zone_have_names_of_their_own():
    assert choose_apart([at("z1", "r1")], [at("z1", "r1"), at("z2", "r1")], 1) == [1]


def test_a_rack_that_is_known_to_be_another_is_better_than_one_unknown():
    assert choose_apart([at(rack="r1")], [at(rack="r1"), at(), at(rack="r2")], 3) == [2, 1, 0]


def test_copies_have_a_rack_each():
    others = [at(rack="r2"), at(rack="r2"), at(rack="r3")]
    assert choose_apart([at(rack="r1")], others, 2) == [0, 2]


def test_the_way_is_counted_from_where_copies_come_from():
    assert choose_apart([at("z1"), at("z2")], [at("z2"), at("z1")], 1) == [1]


def test_without_racks_copies_stay_in_the_zone_and_then_in_the_region():
    here, near, far = at("a", region="us"), at("b", region="us"), at("x", region="eu")
    assert choose_apart([here], [here, far], 1) == [0]
    assert choose_apart([here], [far, near, here], 3) == [2, 1, 0]
    assert choose_apart([at("a")], [at("b"), at("a")], 1) == [1]


def test_another_region_is_no_rack_of_its_own_beside_nodes_with_racks():
    source = at("a", "r1", "us")
    others = [at("x", region="eu"), at("a", region="us"), at("a", "r2", "us")]
    assert choose_apart([source], others, 3) == [2, 1, 0]


@given(st.lists(labels, max_size=4), st.lists(labels, max_size=6), st.integers(0, 8))
def test_the_choice_is_of_distinct_nodes_as_many_as_there_are(holding, others, count):
    chosen = choose_apart(holding, others, count)
    assert len(set(chosen)) == len(chosen) == min(count, len(others))


@given(labels, st.lists(labels, max_size=6))
def test_others_are_ranked_each_by_itself(source, others):
    ranked = rank_apart([source], others)
    assert sorted(ranked) == list(range(len(others)))
    assert ranked[:1] == choose_apart([source], others, 1)


@given(st.integers(1, 6))
def test_without_labels_the_order_stays(count):
    assert choose_apart([{}], [{}] * count, count) == list(range(count))


class TestSnapshotRanks:
    def test_one_on_each_of_as_many_nodes_as_copies(self):
        nodes = ["a", "a", "b", "c"]
        plain = {node: at() for node in nodes}
        assert choose_snapshot_ranks(nodes, plain, 1) == (0,)
        assert choose_snapshot_ranks(nodes, plain, 2) == (0, 2)
        assert choose_snapshot_ranks(nodes, plain, 9) == (0, 2, 3)

    def test_in_racks_of_their_own(self):
        racks = {"a": at(rack="r1"), "b": at(rack="r1"), "c": at(rack="r2")}
        assert choose_snapshot_ranks(["a", "b", "c"], racks, 2) == (0, 2)
        assert choose_snapshot_ranks(["c", "b", "a"], racks, 2) == (0, 1)
