import pytest

from trainflow.epochs import INITIAL_VERSION, EpochId, EpochSpec, Phase, Version


def test_a_later_incarnation_outranks_any_counter():
    assert EpochId(2, 1) > EpochId(1, 99) > EpochId(1, 98)


def test_more_steps_are_newer_and_of_equal_steps_the_later_epoch_is():
    older, newer = EpochId(1, 1), EpochId(1, 2)
    assert Version(5, older) > Version(4, newer)
    assert Version(5, newer) > Version(5, older)
    assert Version(1, older) > INITIAL_VERSION


def test_names_read_as_in_events():
    assert str(Version(7, EpochId(1, 3))) == "7@1.3"


def test_the_rank_of_a_member_is_its_place():
    spec = EpochSpec(EpochId(1, 1), ("a", "b", "c"), "host", 1)
    assert [spec.rank_of(member) for member in spec.members] == [0, 1, 2]
    assert spec.world_size == 3
    with pytest.raises(ValueError, match="not in tuple"):
        spec.rank_of("d")


@pytest.mark.parametrize(
    ("nodes", "by_node"),
    [
        ((0, 0, 1, 1), ((0, 1), (2, 3))),
        ((0, 1, 0, 1), ((0, 2), (1, 3))),
        ((0, 1, 1, 0), ((0, 3), (1, 2))),
        ((0, 1, 2, 2, 0, 1), ((0, 4), (1, 5), (2, 3))),
        ((0, 0, 0, 1, 1, 1), ((0, 1, 2), (3, 4, 5))),
        ((0, 0, 1), ()),
        ((0, 0, 0, 1), ()),
        ((0, 1, 2, 3), ()),
        ((0, 0, 0, 0), ()),
        ((0,), ()),
        ((), ()),
    ],
)
def test_ranks_are_told_by_node_where_nodes_are_alike(nodes, by_node):
    members = tuple(map(str, range(len(nodes))))
    assert EpochSpec(EpochId(1, 1), members, "", 0, nodes=nodes).by_node == by_node


def test_a_rank_that_exchanges_commit_records_waits_for_others():
    assert Phase.COMMIT.is_waiting
    assert Phase.COMMIT.is_of_step


def test_no_phase_is_both_judged_and_excused_as_waiting():
    assert not [phase for phase in Phase if phase.is_judged and phase.is_waiting]
