"""Which nodes have copies of a shard, and which of them of themselves."""

from hypothesis import given
from hypothesis import strategies as st

from trainflow.coordination.copy_targets import CopyTargets, find_members
from trainflow.coordination.topology import RACK, find_apart
from trainflow.epochs import PeerAddress, ShardId

FIRST, SECOND = ShardId(0, 2), ShardId(1, 2)


def address(name: str) -> PeerAddress:
    return PeerAddress(name, 1, "token")


def test_members_copies_come_first_and_others_make_up_the_number():
    b, c, d = map(address, "bcd")
    targets = CopyTargets((b, c), {FIRST: (d,), SECOND: (c, d)})
    assert targets.of(FIRST) == (d, b)
    assert targets.of(SECOND) == (c, d)
    assert targets.of(ShardId(0, 1)) == (b, c), "of which no member is known"
    assert CopyTargets().of(FIRST) == ()


names = st.lists(st.sampled_from("abcdef"), unique=True)


@given(names, names)
def test_there_are_as_many_copies_as_are_wanted_and_on_as_many_nodes(
    others: list[str], members: list[str]
):
    held = tuple(map(address, members[: len(others)]))
    found = CopyTargets(tuple(map(address, others)), {FIRST: held}).of(FIRST)
    assert len(found) == len(set(found)) == len(others)
    assert found[: len(held)] == held


def test_members_on_further_nodes_are_found_shard_by_shard():
    shards = {"a": {FIRST, SECOND}, "b": {FIRST}, "c": {FIRST}, "d": set[ShardId]()}
    counting = {"a": ["d", "c", "b"], "b": ["a"], "e": ["a"]}
    assert find_members(shards, counting, 1) == {
        "a": {FIRST: ["c"]},
        "b": {FIRST: ["a"]},
        "e": {},
    }
    assert find_members(shards, counting, 2)["a"] == {FIRST: ["c", "b"]}


def test_what_fails_together_is_no_copy_of_the_other_unless_all_do():
    one, other = {RACK: "r1"}, {RACK: "r2"}
    assert find_apart(one, [one, other, {}]) == [1, 2]
    assert find_apart(one, [one, one]) == [0, 1]
    assert find_apart({}, [one, {}]) == [0, 1]
    assert find_apart(one, []) == []
