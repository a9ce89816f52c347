"""Groups of ranks that hold the same shards: what a member elsewhere has is not sent there."""

from typing import Any

import pytest

from tests.unit.coordination.fakes import SleepyClock, free_pace
from tests.unit.coordination.shard_copies import (
    MakeNode,
    Node,
    Rank,
    at,
    commit,
    recoverable_from,
)
from trainflow.checkpointing.snapshot_slots import CopyState
from trainflow.coordination import replication
from trainflow.coordination.replication import Replicator
from trainflow.epochs import INITIAL_VERSION


class Run:
    """Two groups of two ranks, the first on node a, the other on b; c has no member."""

    def __init__(self, make_node: MakeNode):
        self.a, self.b, self.c = (make_node(name) for name in "abc")
        self.groups = [[Rank(node, k, f"{node.name}{k}") for k in (0, 1)] for node in self.nodes]
        self.a.send_to(self.c, members={0: self.b, 1: self.b})
        self.b.send_to(self.c, members={0: self.a, 1: self.a})
        for rank in self.ranks:
            rank.begin(INITIAL_VERSION)

    @property
    def nodes(self) -> list[Node]:
        return [self.a, self.b]

    @property
    def ranks(self) -> list[Rank]:
        return [rank for group in self.groups for rank in group]

    def copy(self) -> None:
        for node in self.nodes:
            assert not node.copy()

    def commit(self, step: int, counter: int = 1) -> None:
        commit(self.ranks, at(step, counter))

    def lose_the_second_group(self) -> None:
        """The world shrinks to the first, whose copies go to the node without members."""
        self.groups.pop()
        self.b.server.close()

    def has_arrived(self, rank: Rank) -> bool:
        assert rank.streaming.under_way is not None
        return rank.writer.copy_state_of(rank.streaming.under_way, rank.shard) is CopyState.DONE


@pytest.fixture
def run(make_node: MakeNode) -> Run:
    return Run(make_node)


def recoverable(run: Run) -> set[object]:
    return {rank.streaming.recoverable for rank in run.ranks}


def test_nothing_is_sent_while_each_shard_is_on_two_nodes(run: Run):
    for step in range(1, 6):
        run.copy()
        run.commit(step)
        assert recoverable(run) == {at(step - 1)}, "what all have is as new as it can be"
    assert run.c.held.all_held() == ()
    assert not [path for node in run.nodes for path in node.folder.glob("copy-*")]
    assert recoverable_from(run.a) == recoverable_from(run.b) == at(5)


def test_a_member_s_shard_counts_only_once_it_is_there(run: Run):
    for step in (1, 2):
        run.copy()
        run.commit(step)
    run.copy()  # of 2, by all
    first, second = run.groups
    for rank in first:
        rank.commit(at(3), rank.flags())
    run.copy()
    assert not any(run.has_arrived(rank) for rank in first), "the other group hasn't got so far"
    assert run.b.holds(0)[-1] == at(2), "it was not sent a copy meanwhile"
    for rank in second:
        rank.commit(at(3), rank.flags())
    run.copy()
    assert all(run.has_arrived(rank) for rank in run.ranks)
    assert run.c.held.all_held() == ()


def test_a_member_that_does_not_get_there_is_sent_a_copy_in_the_end(run: Run, clock: SleepyClock):
    run.copy()
    first = run.groups[0]
    for rank in first:
        rank.commit(at(1), rank.flags())
    run.copy()
    assert not any(run.has_arrived(rank) for rank in first)
    clock.now_s += 6.0
    run.copy()
    assert all(run.has_arrived(rank) for rank in first)
    assert recoverable_from(run.b) == at(1)


def test_once_the_other_group_is_lost_what_the_run_goes_on_from_is_sent_at_once(run: Run):
    for step in (1, 2, 3):
        run.copy()
        run.commit(step)
    run.copy()
    assert all(run.has_arrived(rank) for rank in run.ranks)
    run.lose_the_second_group()
    for rank in run.ranks:
        rank.begin(at(3))
    run.a.send_to(run.c)
    assert not any(run.has_arrived(rank) for rank in run.ranks), "the member's copy is gone"
    assert not run.a.copy()
    assert recoverable_from(run.c) == at(3)
    for step in (4, 5):
        commit(run.ranks, at(step, 2))
        assert not run.a.copy()
    assert recoverable(run) == {at(4, 2)}
    assert recoverable_from(run.c) == at(5, 2)


def test_targets_that_change_while_a_copy_is_sent_are_looked_at_before_it_counts(
    run: Run, make_node: MakeNode, monkeypatch: pytest.MonkeyPatch
):
    last, send = make_node("d"), replication.send_copy
    run.copy()

    def send_and_change(*args: Any, **options: Any) -> None:
        send(*args, **options)
        run.a.send_to(last)

    run.commit(1)
    run.a.send_to(run.c)
    with monkeypatch.context() as patch:
        patch.setattr(replication, "send_copy", send_and_change)
        assert not run.a.copy()
    assert len(run.c.held.all_held()) == 1, "the others go to new targets"
    assert not any(run.has_arrived(rank) for rank in run.groups[0])
    assert not run.a.copy()
    assert all(run.has_arrived(rank) for rank in run.groups[0])
    assert recoverable_from(last) == at(1)


def test_until_new_targets_are_known_the_lost_group_s_shards_count_for_nothing_new(
    run: Run, monkeypatch: pytest.MonkeyPatch
):
    for step in (1, 2, 3):
        run.copy()
        run.commit(step)
    run.lose_the_second_group()

    def send_in_vain(*_: Any) -> None:
        raise AssertionError("a node that has just not answered is tried again")

    monkeypatch.setattr(replication, "send_copy", send_in_vain)
    assert "refused" in run.a.copy(), "it is not known yet that the node is gone"
    for step in (4, 5):
        commit(run.ranks, at(step, 1))
        assert run.a.copy()
    assert recoverable(run) == {at(2)}
    assert recoverable_from(run.a) == at(5)


def test_where_more_copies_are_wanted_than_groups_have_the_rest_is_sent_once(
    run: Run, make_node: MakeNode
):
    run.a.send_to(run.b, run.c, members={0: run.b, 1: run.b})
    run.b.send_to(run.c, make_node("d"), members={0: run.a, 1: run.a})
    for step in (1, 2, 3):
        run.copy()
        run.commit(step)
    run.copy()
    assert recoverable(run) == {at(2)}
    assert recoverable_from(run.c) == at(3)
    assert not [*run.c.folder.glob("copy-b*")], "the other group's was there"


def test_a_keeper_that_was_restarted_asks_and_sends_nothing(run: Run, clock: SleepyClock):
    for step in (1, 2, 3):
        run.copy()
        run.commit(step)
    run.copy()
    run.a.replicator = Replicator(run.a.held, "a", free_pace(clock), clock)
    run.copy()
    run.commit(4)
    assert recoverable(run) == {at(3)}, "it was not told yet where copies go"
    run.copy()
    run.commit(5)
    assert recoverable(run) == {at(3)}
    run.a.send_to(run.c, members={0: run.b, 1: run.b})
    run.copy()
    run.commit(6)
    assert recoverable(run) == {at(4)}
    assert run.c.held.all_held() == ()


def test_what_was_left_by_a_member_that_died_is_not_sent_to_new_targets(run: Run):
    run.copy()
    run.commit(1)
    run.copy()
    (run.a.folder / "a0.stamp").unlink()
    run.a.send_to(run.c)
    assert not run.a.copy()
    assert run.c.holds(0) == []
    assert run.c.holds(1) == [at(1)]
