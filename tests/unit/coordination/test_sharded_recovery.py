"""Which version all can go on from, where each rank holds what no other does."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainflow.coordination.recovery_plan import NoLiveStateError
from trainflow.coordination.sharded_recovery import (
    Copies,
    Found,
    find_needed,
    newest_whole,
    plan_sharded_recovery,
)
from trainflow.epochs import (
    INITIAL_VERSION,
    EpochId,
    EpochSpec,
    HeldShards,
    MemberReport,
    PeerAddress,
    RecoveryPlan,
    ShardId,
    StoredState,
    Version,
)

EPOCH, WORLD = EpochId(1, 1), 3
SPEC = EpochSpec(EpochId(1, 2), ("a", "b", "c"), "host", 1, shard_size=WORLD)
NODES = [PeerAddress(f"node{k}", k, "token") for k in range(4)]
STORED = StoredState("/store", 4)


def at(step: int) -> Version:
    return Version(step, EPOCH) if step else INITIAL_VERSION


def shards(*indices: int, count: int = WORLD) -> list[ShardId]:
    return [ShardId(index, count) for index in indices]


def copies(node: int, step: int, *indices: int, count: int = WORLD) -> Copies:
    return Copies(NODES[node], tuple((at(step), each) for each in shards(*indices, count=count)))


def plan(
    live: list[int | None],
    *held: Copies,
    spec: EpochSpec = SPEC,
    count: int = WORLD,
    undone: Sequence[str] = (),
    **how,
) -> RecoveryPlan:
    """Plan for members that hold their shard at these steps; None: a spare."""
    reports = [
        MemberReport(
            member,
            None if step is None else at(step),
            tail_done=member not in undone,
            shard=ShardId(rank, count),
        )
        for rank, (member, step) in enumerate(zip(spec.members, live, strict=True))
    ]
    return plan_sharded_recovery(spec, reports[::-1], Found(held), **({"member_lost": True} | how))


def sources(made: RecoveryPlan) -> dict[int, list[str]]:
    assert isinstance(made.stored, HeldShards)
    return {each.shard.index: [s.host for s in each.sources] for each in made.stored.shards}


def test_a_spare_reads_the_shard_that_the_dead_rank_has_left():
    made = plan([5, None, 5], copies(1, 5, 1), copies(2, 5, 1))
    assert made.base == at(5)
    assert sources(made) == {1: ["node1", "node2"]}
    assert made.replay_tail


def test_where_the_dead_rank_came_less_far_the_others_go_back_to_their_own_copies():
    held = copies(0, 4, 0), copies(0, 5, 0), copies(1, 4, 1), copies(2, 4, 2), copies(2, 5, 2)
    made = plan([5, None, 5], *held)
    assert made.base == at(4)
    assert sources(made) == {0: ["node0"], 1: ["node1"], 2: ["node2"]}


def test_who_has_the_base_reads_nothing():
    made = plan([5, None, 4], copies(1, 4, 1), copies(0, 4, 0), copies(0, 5, 0))
    assert made.base == at(4)
    assert sources(made) == {0: ["node0"], 1: ["node1"]}


def test_a_copy_on_another_node_may_be_older_and_then_all_go_back_so_far():
    held = [copies(0, 5, 0), copies(0, 2, 0), copies(2, 5, 2), copies(2, 2, 2), copies(3, 2, 1)]
    assert plan([5, None, 5], *held, committed_step=5).base == at(2)


def test_a_smaller_world_reads_all_shards_of_the_larger():
    small = EpochSpec(EpochId(1, 2), ("a", "c"), "host", 1, shard_size=2)
    held = [copies(0, 5, 0), copies(1, 5, 1), copies(2, 5, 2)]
    made = plan([5, 5], *held, spec=small)
    assert made.base == at(5)
    assert sources(made) == {0: ["node0"], 1: ["node1"], 2: ["node2"]}


def test_what_only_a_member_holds_is_no_source_for_another_layout():
    small = EpochSpec(EpochId(1, 2), ("a", "c"), "host", 1, shard_size=2)
    held = [copies(0, 5, 0), copies(1, 5, 1)]
    with pytest.raises(NoLiveStateError, match="every shard"):
        plan([5, 5], *held, spec=small, committed_step=5)


def test_a_tail_that_who_no_longer_holds_the_state_has_not_done_comes_again():
    held = copies(1, 5, 0, 1, 2)
    for undone in (SPEC.members[1:2], SPEC.members):
        made = plan([None] * WORLD, held, member_lost=False, undone=undone)
        assert (made.base, made.replay_tail) == (at(5), True)
    assert not plan([None] * WORLD, held, member_lost=False).replay_tail


def test_nothing_is_done_yet_and_all_build_it():
    made = plan([0, None, 0])
    assert (made.base, made.stored, made.replay_tail) == (INITIAL_VERSION, None, False)


def test_a_first_state_that_was_copied_is_read():
    held = [copies(node, 0, node) for node in range(WORLD)]
    made = plan([1, None, 0], *held, copies(0, 1, 0))
    assert made.base == INITIAL_VERSION
    assert sources(made) == {0: ["node0"], 1: ["node1"]}


def test_owner_and_copies_of_a_shard_lost_together_end_the_run():
    with pytest.raises(NoLiveStateError, match="lost together"):
        plan([5, None, 5], copies(0, 5, 0), copies(2, 5, 2), committed_step=5)


def test_or_it_goes_on_from_storage():
    made = plan([5, None, 5], copies(0, 5, 0), copies(2, 5, 2), committed_step=5, stored=STORED)
    assert (made.base, made.stored) == (STORED.version, STORED)
    assert made.goes_on_from_kept(5)


def test_storage_is_read_only_where_it_is_newer():
    held = [copies(node, 3, node) for node in range(WORLD)]
    assert plan([None] * 3, *held, stored=STORED).stored == STORED
    held = [copies(node, 5, node) for node in range(WORLD)]
    made = plan([None] * 3, *held, stored=STORED)
    assert made.base == at(5)
    assert not made.goes_on_from_kept(5)
    assert made.goes_on_from_kept(6), "a committed step is done again"


def test_the_newest_whole_version_is_found_among_others():
    held = [copies(0, 7, 0, 1), copies(1, 6, 0, 1, 2), copies(2, 9, 0, count=2)]
    kept = newest_whole(Found(held))
    assert kept is not None
    assert kept.version == at(6)


def test_needed_is_what_is_whole_whichever_node_is_lost_and_what_is_newer():
    owners = [copies(node, 7, node) for node in range(3)]
    older = [copies(node, 5, node, (node + 1) % 3) for node in range(3)]
    assert find_needed(Found([*owners, *older])) == at(5)
    assert find_needed(Found([*owners, *older[1:]])) is None, "one copy is on its way"
    assert find_needed(Found(owners)) == at(7), "there are no copies to wait for"
    assert find_needed(Found(owners[1:])) is None
    assert find_needed(Found([copies(0, 7, 0, 1, 2)] * 2)) == at(7), "one node, and no other"


def test_with_more_copies_needed_is_what_is_whole_whichever_of_so_many_nodes_are_lost():
    newer = [copies(node, 7, node, (node + 1) % 3) for node in range(3)]
    older = [copies(node, 5, 0, 1, 2) for node in range(3)]
    assert find_needed(Found([*newer, *older]), 2) == at(5)
    assert find_needed(Found([*newer, *older]), 1) == at(7)
    assert find_needed(Found(newer), 2) is None, "third copies are on their way"
    assert find_needed(Found([copies(node, 7, node) for node in range(3)]), 2) == at(7)


def test_a_shard_that_a_member_on_another_node_holds_counts_as_a_copy():
    hybrid = [copies(node, 7, node % 2, count=2) for node in range(4)]
    assert find_needed(Found(hybrid)) == at(7)
    assert find_needed(Found(hybrid[1:])) is None


@given(st.data())
def test_whatever_node_is_lost_what_is_needed_can_be_gone_on_from(data: st.DataObject):
    """Unless nothing of it has a copy: then it is only what is whole now."""
    held = [
        copies(node, step, *data.draw(st.sets(st.integers(0, WORLD - 1))))
        for node in range(4)
        for step in (1, 2)
    ]
    needed = find_needed(Found(held))
    if needed is None:
        return
    whole = Found(held).kept(needed)
    assert whole is not None
    if any(len(set(each.sources)) > 1 for each in whole.shards):
        for lost in NODES:
            left = Found(each for each in held if each.address != lost)
            assert left.kept(needed) is not None


@given(st.data())
def test_one_step_apart_there_is_always_a_base(data: st.DataObject):
    """Each rank has copies of its last two steps; whoever dies leaves them behind."""
    step = data.draw(st.integers(2, 50))
    reached = [step - data.draw(st.integers(0, 1)) for _ in range(WORLD)]
    dead = data.draw(st.sets(st.integers(0, WORLD - 1), max_size=WORLD))
    held = [copies(r, reached[r] - back, r) for r in range(WORLD) for back in (0, 1)]
    made = plan([None if r in dead else reached[r] for r in range(WORLD)], *held)
    assert made.base == at(min(reached))
    lacking = {r for r in range(WORLD) if r in dead or reached[r] != min(reached)}
    assert lacking == (set() if made.stored is None else sources(made).keys())
