"""No single loss of a node takes a state with it that ranks hold for recoverable."""

import threading
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.jobs import make_job
from tests.full_disk import room_for
from tests.unit.coordination.fakes import SleepyClock
from tests.unit.coordination.shard_copies import (
    GONE,
    MakeNode,
    Node,
    Rank,
    at,
    commit,
    recoverable_from,
)
from trainflow.checkpointing.held_snapshots import HeldSnapshots
from trainflow.clock import SYSTEM_CLOCK
from trainflow.coordination import replication
from trainflow.coordination.keeper import Heartbeat
from trainflow.coordination.memory_tier import MemoryTier
from trainflow.coordination.replication import Replicator
from trainflow.coordination.run_record import RunRecord
from trainflow.epochs import INITIAL_VERSION, ShardId

ALL = ShardId(0, 1)


class Run:
    """Ranks 0 and 1 on nodes a and b, whose copies go to c and d: of 2 all, 3 is on its way."""

    def __init__(self, make_node: MakeNode):
        self.a, self.b, self.c, self.d = (make_node(name) for name in "abcd")
        self.a.send_to(self.c)
        self.b.send_to(self.d)
        self.ranks = [Rank(self.a, 0), Rank(self.b, 1)]
        for rank in self.ranks:
            rank.begin(INITIAL_VERSION)
        for step in (1, 2, 3):
            assert not self.a.copy() + self.b.copy()
            commit(self.ranks, at(step))
        assert [rank.streaming.recoverable for rank in self.ranks] == [at(2), at(2)]


@pytest.fixture
def run(make_node: MakeNode) -> Run:
    return Run(make_node)


def tidy(clock: SleepyClock, folder: Path, *nodes: Node) -> None:
    """Let a minute pass, and every Keeper then do what the coordinator answers its heartbeat."""
    any_nodes: Any = type("Nodes", (), {"node_ids": {node.name for node in nodes}})
    record = RunRecord(folder, clock)
    memory = MemoryTier(make_job(parallel={"mode": "fsdp"}), any_nodes, record, clock)
    for _ in range(2):
        clock.now_s += 61.0
        for node in nodes:
            beat = Heartbeat(node.name, {}, knows_peers=True, held=None)
            held = node.held.all_held()
            memory.hear(Heartbeat(**vars(beat) | {"all_held": held}))
    clock.now_s += 1.0
    answers = {memory.hear(Heartbeat("nobody", {}, knows_peers=True, held=None))}
    (answer,) = answers
    for node in nodes:
        node.held.tidy(answer)


def test_while_one_rank_s_copy_takes_long_the_others_stay(
    run: Run, clock: SleepyClock, tmp_path: Path
):
    run.a.copy()
    for step in range(4, 9):
        commit(run.ranks, at(step))
    for _ in range(2):
        tidy(clock, tmp_path, run.a, run.b, run.c, run.d)
    assert run.c.holds(0) == [at(2), at(3)]
    assert recoverable_from(run.b, run.c, run.d) == at(3), "a is lost"
    assert recoverable_from(run.a, run.c, run.d) == at(2), "b is lost"
    run.b.copy()
    tidy(clock, tmp_path, run.a, run.b, run.c, run.d)
    assert run.c.holds(0) == [at(3)], "of which all have arrived"


def test_an_epoch_that_begins_anew_writes_over_nothing_that_is_recoverable(run: Run):
    run.a.copy()
    for step in range(4, 9):
        commit(run.ranks, at(step))
    for counter, base in ((2, 8), (3, 12)):
        for rank in run.ranks:
            rank.begin(at(base, counter - 1))
        for step in range(base + 1, base + 4):
            commit(run.ranks, at(step, counter))
        with run.c.held.writing_copy("ax0x2", run.ranks[0].streaming.recoverable, of_shard=True):
            left = recoverable_from(run.b, run.c, run.d)
            assert left in {at(2), at(8)}, "a is lost as it sends another"
        run.a.copy()  # b's copy never gets through


def test_what_all_have_though_no_rank_knows_it_yet_stays_too(run: Run):
    assert not run.a.copy() + run.b.copy()
    run.c.held.tidy(at(3))  # as the coordinator has it

    def receive(step: int, kept: int) -> None:
        with run.c.held.writing_copy("ax0x2", at(kept), of_shard=True) as slot:
            assert {at(3), at(kept)} <= set(run.c.holds(0))
            slot.begin(at(step), {}, [], shard=ShardId(0, 2))
            slot.complete(for_storage=False)

    receive(8, kept=2)
    assert run.c.holds(0) == [at(2), at(3), at(8)]
    receive(9, kept=8)
    run.c.held.tidy(at(9))
    assert len(list(run.c.folder.glob("copy-a*"))) == 2, "the third goes while its sender lives"


def test_a_version_that_one_rank_has_no_room_for_costs_no_recoverable_one(run: Run):
    assert not run.a.copy() + run.b.copy()
    commit(run.ranks, at(4), without_room=1)
    assert not run.a.copy()
    commit(run.ranks, at(5))
    assert run.ranks[0].streaming.recoverable == at(3)
    with run.c.held.writing_copy("ax0x2", at(3), of_shard=True):
        assert recoverable_from(run.b, run.c, run.d) == at(3), "a is lost as it sends another"


def test_a_spare_on_the_same_node_knows_what_is_recoverable_from_the_rank_before(run: Run):
    run.a.copy()
    spare = Rank(run.a, 0, "spare")
    for rank in (spare, run.ranks[1]):
        rank.begin(at(3))
    commit([spare, run.ranks[1]], at(4, 2))
    (wanted,) = run.a.held.find_wanted() or [None]
    assert wanted is None or wanted.kept == at(2)
    for base in (4, 6, 8):
        spare.begin(at(base, 2))
        for step in (base + 1, base + 2):
            spare.commit(at(step, 2), spare.flags())
        run.a.copy()
        assert at(2) in run.c.holds(0), "whatever has arrived of newer ones"


def test_without_room_for_a_third_copy_what_not_all_have_gives_way(run: Run):
    run.a.copy()
    for rank in run.ranks:
        rank.begin(at(3))
        rank.streaming.begin(at(3))
    commit(run.ranks, at(4, 2))
    run.ranks[0].begin(at(4, 2))
    with room_for(5000):
        assert not run.a.copy()
    assert run.c.holds(0) == [at(2), at(4, 2)]


def test_what_is_there_from_another_sender_is_not_sent_again(run: Run, make_node: MakeNode):
    assert not run.a.copy() + run.b.copy()
    elsewhere = make_node("e")
    elsewhere.send_to(run.c)
    ranks = [Rank(elsewhere, 0), run.ranks[1]]
    for rank in ranks:
        rank.begin(at(3))
    assert not elsewhere.copy()
    commit(ranks, at(4, 2))
    assert ranks[0].streaming.recoverable == at(3)
    assert not [path.name for path in run.c.folder.glob("copy-e*")]
    assert not elsewhere.copy()
    assert run.c.holds(0) == [at(2), at(3), at(4, 2)]


def test_a_run_that_went_back_has_its_base_copied_though_newer_ones_are_there(
    run: Run, make_node: MakeNode
):
    run.a.copy()  # 3, which nobody goes on from
    elsewhere = make_node("e")
    elsewhere.send_to(run.c)
    fresh = Rank(elsewhere, 0)
    fresh.begin(at(1))
    assert not elsewhere.copy()
    assert at(1) in run.c.holds(0)


def test_a_node_without_room_or_gone_costs_one_copy_and_not_the_others(
    run: Run, make_node: MakeNode
):
    run.b.send_to(run.d, GONE)
    assert not run.a.copy()
    assert "refused" in run.b.copy()
    assert run.ranks[1].flags(), "it is tried again"
    assert not run.b.copy()
    commit(run.ranks, at(4))
    assert run.ranks[0].streaming.recoverable == at(3)
    run.b.send_to(make_node("full"), run.d)
    with room_for(100):
        assert not run.b.copy()
    assert not run.ranks[1].flags()
    assert "enlarge" in str(run.b.replicator.trouble)


def test_where_no_node_takes_a_copy_what_is_recoverable_stands_still(run: Run, make_node: MakeNode):
    run.b.send_to(make_node("full"), GONE)
    for step in range(4, 9):
        assert not run.a.copy()
        with room_for(100):
            assert run.b.copy()
        commit(run.ranks, at(step))
    assert run.ranks[0].streaming.recoverable == at(2)
    assert "enlarge" in str(run.b.replicator.trouble)


def test_copies_go_on_whatever_once_failed(
    run: Run, monkeypatch: pytest.MonkeyPatch, clock: SleepyClock
):
    monkeypatch.setattr(replication, "yield_to_training", lambda: None)
    find, failures = HeldSnapshots.find_wanted, [ValueError("77 is no state"), KeyError("gone")]

    def find_at_last(held: HeldSnapshots) -> Any:
        if failures:
            raise failures.pop()
        return find(held)

    monkeypatch.setattr(HeldSnapshots, "find_wanted", find_at_last)
    copies = threading.Thread(target=Replicator.run, args=(run.a.replicator,))
    copies.start()
    give_up_at_s = SYSTEM_CLOCK.monotonic_s() + 10.0
    while at(3) not in run.c.holds(0) and SYSTEM_CLOCK.monotonic_s() < give_up_at_s:
        assert copies.is_alive()
    run.a.replicator.stop()
    copies.join(timeout=10.0)
    assert run.c.holds(0) == [at(2), at(3)]


def test_who_is_left_alone_has_its_states_copied_as_before(run: Run):
    assert not run.a.copy() + run.b.copy()
    alone = run.ranks[0]
    alone.begin(at(3), ALL)
    assert not run.a.copy()
    assert run.c.held.holds(at(3), ALL)
    for step in range(4, 10):
        commit([alone], at(step, 2))
        assert not run.a.copy()
    assert alone.streaming.recoverable == at(8, 2)
    assert recoverable_from(run.c) == at(9, 2), "a is lost"
    alone.begin(at(5, 2))  # the run goes back for its loss
    assert not run.a.copy()
    commit([alone], at(6, 3))
    assert alone.streaming.recoverable == at(5, 2)


def test_while_a_world_that_is_cut_anew_is_copied_its_states_stay_in_memory(run: Run):
    """Its first state is there twice for a while: as it was cut before, and as it is now."""
    assert not run.a.copy() + run.b.copy()
    alone = run.ranks[0]
    alone.begin(at(3), ALL)
    for step in range(4, 10):
        commit([alone], at(step, 2))  # and no copy of any arrives
        assert recoverable_from(run.a) == at(step, 2)
    assert recoverable_from(run.c, run.d) == at(3), "a is lost"
