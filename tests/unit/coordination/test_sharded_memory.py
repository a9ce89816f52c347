"""Where shards are looked for, what is waited for, and which nodes hold copies of them."""

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.jobs import make_job
from tests.unit.coordination.fake_cluster import FakeCluster
from tests.unit.coordination.fakes import FakeClock, FakePool, FakeSuperior
from tests.unit.coordination.test_kept_state import FakeCheckpoints
from trainflow.computation.reports import CheckpointUnusable
from trainflow.config.job import SnapshotConfig
from trainflow.coordination import memory_tier
from trainflow.coordination.copy_targets import CopyTargets
from trainflow.coordination.detector_guard import DetectorGuard
from trainflow.coordination.keeper import Heartbeat
from trainflow.coordination.kept_state import KeptState
from trainflow.coordination.memory_tier import MemoryTier
from trainflow.coordination.messages import Holding
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.sharded_recovery import Found
from trainflow.coordination.topology import RACK
from trainflow.coordination.unfit_nodes import UnfitNodes
from trainflow.epochs import (
    EpochId,
    EpochSpec,
    HeldShards,
    HeldState,
    MemberReport,
    PeerAddress,
    RecoveryPlan,
    ShardId,
    Version,
)

SPEC = EpochSpec(EpochId(1, 2), ("w0", "w1"), "host", 1, shard_size=2)
NOTHING = [MemberReport("w0", None, shard=ShardId(0, 2)), MemberReport("w1", None)]


def at(step: int) -> Version:
    return Version(step, EpochId(1, 1))


def address(node_id: str, port: int = 1) -> PeerAddress:
    return PeerAddress(node_id, port, "token")


def holding(node_id: str, port: int = 1, **steps: tuple[int, ...]) -> Holding:
    """Return what a node says that has the shards named ``s0`` and ``s1`` of these steps."""
    held = tuple((at(s), ShardId(int(k[1]), 2)) for k, many in steps.items() for s in many)
    return Holding(node_id, address(node_id, port), None, held)


class Nodes(FakeCluster):
    """Their Keepers answer at once, but those that are silent; time passes while they are asked."""

    def __init__(self, clock: FakeClock, *holdings: Holding):
        self._clock = clock
        self.unfit = UnfitNodes()
        self.holdings = {each.node_id: each for each in holdings}
        self.silent: set[str] = set()
        self.back_at_s: dict[str, tuple[float, Holding]] = {}
        self.waited_s: list[float] = []
        self.slow: list[asyncio.Event] = []  # each holds up one answer
        self.copies: dict[str, list[str]] = {}
        self.members: dict[str, dict[ShardId, list[str]]] = {}

    @property
    def node_ids(self) -> set[str]:
        return set(self.holdings)

    async def ask_holdings(self, timeout_s: float, *, also_dismissed: bool = False) -> Any:
        self.waited_s.append(timeout_s)
        self._clock.now_s += min(timeout_s, 3.0)
        if self.slow:
            await self.slow.pop(0).wait()
        for node_id, (back_at_s, back) in self.back_at_s.items():
            if self._clock.now_s >= back_at_s:
                self.silent.discard(node_id)
                self.holdings[node_id] = back
        return [each for each in self.holdings.values() if each.node_id not in self.silent]

    async def ensure(self, node_ids: set[str]) -> None:
        for node_id in node_ids - self.holdings.keys():
            self.holdings[node_id] = holding(node_id)

    def send_copies(self, copies: dict[str, CopyTargets]) -> None:
        self.copies = {node: [each.host for each in to.others] for node, to in copies.items()}
        self.members = {
            node: {shard: [each.host for each in found] for shard, found in to.members.items()}
            for node, to in copies.items()
        }


class Scene:
    def __init__(self, directory: Path, *holdings: Holding, replicas: int = 1, stored: int = 0):
        self.clock = FakeClock()
        self.nodes = Nodes(self.clock, *holdings)
        any_nodes: Any = self.nodes
        any_checkpoints: Any = FakeCheckpoints(*([stored] if stored else []))
        any_background: Any = self
        job = make_job(parallel={"mode": "fsdp"})
        job = job.model_copy(update={"snapshot": SnapshotConfig(replicas=replicas)})
        self.record = RunRecord(directory, self.clock)
        self.record.last_step = 8
        self.memory = MemoryTier(job, any_nodes, self.record, self.clock)
        self.superior = FakeSuperior(FakePool())
        guard = DetectorGuard(self.record, any_background, self.clock)
        self.kept = KeptState(
            any_checkpoints, self.memory, self.record, any_background, self.superior, guard
        )

    def start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        asyncio.run(coroutine)

    def plan(self) -> Any:
        return asyncio.run(self.kept.plan(SPEC, NOTHING, member_lost=True, committed_step=8))

    def sources(self) -> list[list[PeerAddress]]:
        return [list(each.sources) for each in self.plan().stored.shards]

    def events(self, kind: str) -> list[str]:
        return [e["text"] for e in self.record.events_since(0) if e["kind"] == kind]

    def pass_time(self, duration_s: float) -> None:
        self.clock.now_s += duration_s
        asyncio.run(self.memory.look_after())


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_tier, "_ASK_AGAIN_AFTER_S", 0.0)


def shards_of(step: int, *nodes: str) -> HeldShards:
    held = [HeldState(at(step), (address(n),), ShardId(k, 2)) for k, n in enumerate(nodes)]
    return HeldShards(at(step), tuple(held))


def test_one_keeper_that_is_not_reached_costs_no_other_its_shards(tmp_path: Path):
    scene = Scene(tmp_path, holding("a", s0=(8,)), holding("b", s1=(8,)))
    stored = shards_of(8, "a", "b")
    assert scene.plan().stored == stored
    scene.nodes.silent = {"b"}  # it was killed, and is started again on the memory that it left
    scene.nodes.back_at_s = {"b": (scene.clock.now_s + 20.0, holding("b", 2, s1=(8,)))}
    scene.kept.take(CheckpointUnusable(stored, "refused", (address("b"),)))
    assert not scene.superior.endings
    assert scene.sources() == [[address("a")], [address("b", 2)]]


def test_a_keeper_that_stays_away_is_given_up_after_a_while(tmp_path: Path):
    scene = Scene(tmp_path, holding("a", s0=(8, 7)), holding("b", s1=(8,)), holding("c", s1=(7,)))
    stored = scene.plan().stored
    assert stored == shards_of(8, "a", "b")
    del scene.nodes.holdings["b"]
    began_s = scene.clock.now_s
    scene.kept.take(CheckpointUnusable(stored, "refused", (address("b"),)))
    assert 30.0 <= scene.clock.now_s - began_s < 40.0
    assert scene.plan().base == at(7)
    del scene.nodes.holdings["c"]
    scene.kept.take(CheckpointUnusable(shards_of(7, "a", "c"), "refused"))
    assert "step 7: refused" in scene.superior.endings[0].reason


def test_what_is_damaged_is_left_out_shard_by_shard(tmp_path: Path):
    both = [holding(node, s0=(8,), s1=(8,)) for node in "ab"]
    scene = Scene(tmp_path, *both)
    bad = HeldShards(at(8), (HeldState(at(8), (address("a"),), ShardId(1, 2)),))
    scene.kept.take(CheckpointUnusable(bad, "a chunk is damaged"))
    assert scene.sources() == [[address("a"), address("b")], [address("b")]]


def test_a_slow_keeper_is_waited_for_before_steps_are_done_again(tmp_path: Path):
    scene = Scene(tmp_path, holding("a", s0=(8, 5)), holding("b", s1=(8,)), holding("c", s1=(5,)))
    scene.nodes.silent = {"b"}
    scene.nodes.back_at_s = {"b": (scene.clock.now_s + 20.0, scene.nodes.holdings["b"])}
    assert scene.plan().base == at(8)
    scene.nodes.back_at_s, scene.nodes.silent = {}, {"b"}
    began_s = scene.clock.now_s
    assert scene.plan().base == at(5)
    assert 30.0 <= scene.clock.now_s - began_s < 40.0
    del scene.nodes.holdings["b"]  # given up: what those that live hold is known
    began_s = scene.clock.now_s
    assert scene.plan().base == at(5)
    assert scene.clock.now_s - began_s < 4.0


def test_where_nothing_is_whole_those_that_were_given_up_are_asked_at_last(tmp_path: Path):
    scene = Scene(tmp_path, holding("a", s0=(8,)), stored=4)
    assert scene.plan().stored.step == 4
    alone = Scene(tmp_path / "alone", holding("a", s0=(8,)))
    assert asyncio.run(alone.kept.find_newest()) is None
    assert max(alone.nodes.waited_s) > 20.0


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    nodes = [{"NodeID": f"n{k:02}", "Alive": True} for k in range(10)]
    monkeypatch.setattr(Nodes, "cluster", nodes)
    return nodes


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(("replicas", "num_further"), [(0, 0), (1, 0), (2, 1), (4, 3)])
def test_only_as_many_further_nodes_as_are_needed_have_a_keeper(
    tmp_path: Path, replicas: int, num_further: int
):
    scene = Scene(tmp_path, holding("n00"), holding("n01"), replicas=replicas)
    asyncio.run(scene.memory.direct(["n00", "n01"]))
    assert len(scene.nodes.node_ids) == 2 + num_further
    assert {len(others) for others in scene.nodes.copies.values()} == {replicas}


def test_the_further_one_is_the_best(tmp_path: Path, cluster: list[dict[str, Any]]):
    for node, rack in zip(cluster, "112", strict=False):
        node["Labels"] = {RACK: rack}
    scene = Scene(tmp_path, holding("n00"), replicas=1)
    asyncio.run(scene.memory.direct(["n00"]))
    assert scene.nodes.copies == {"n00": ["n02"]}
    assert scene.nodes.node_ids == {"n00", "n02"}


GROUPS = {f"n{k:02}": {ShardId(k % 2, 2)} for k in range(4)}  # two, each on two nodes


@pytest.mark.parametrize("replicas", [1, 2])
def test_where_members_hold_a_shard_so_many_copies_less_are_sent(
    tmp_path: Path, cluster: list[dict[str, Any]], replicas: int
):
    del cluster[4:]
    scene = Scene(tmp_path, *map(holding, GROUPS), replicas=replicas)
    asyncio.run(scene.memory.direct([*GROUPS], GROUPS))
    pairs = {"n00": "n02", "n01": "n03", "n02": "n00", "n03": "n01"}
    assert scene.nodes.members == {n: {ShardId(k % 2, 2): [pairs[n]]} for k, n in enumerate(pairs)}
    assert {len(others) for others in scene.nodes.copies.values()} == {replicas}


def test_what_fails_with_a_node_counts_only_where_all_do(
    tmp_path: Path, cluster: list[dict[str, Any]]
):
    for node, rack in zip(cluster, "1122", strict=False):
        node["Labels"] = {RACK: rack}
    del cluster[4:]
    everywhere = {node: {ShardId(0, 2)} for node in GROUPS}
    scene = Scene(tmp_path, *map(holding, GROUPS), replicas=3)
    asyncio.run(scene.memory.direct([*GROUPS], everywhere))
    assert scene.nodes.members["n00"] == {ShardId(0, 2): ["n02", "n03"]}
    for node in cluster:
        node["Labels"] = {RACK: "1"}
    asyncio.run(scene.memory.direct([*GROUPS], everywhere))
    assert scene.nodes.members["n00"] == {ShardId(0, 2): ["n01", "n02", "n03"]}


def test_copies_go_to_another_rack_though_its_nodes_then_hold_more(
    tmp_path: Path, cluster: list[dict[str, Any]]
):
    for node, rack in zip(cluster, "112", strict=False):
        node["Labels"] = {RACK: rack}
    del cluster[3:]
    scene = Scene(tmp_path, *map(holding, ("n00", "n01", "n02")))
    asyncio.run(scene.memory.direct(["n00", "n01", "n02"]))
    assert scene.nodes.copies["n00"] == scene.nodes.copies["n01"] == ["n02"]
    assert len(scene.nodes.copies["n02"]) == 1


def test_once_a_group_is_lost_the_other_s_shards_are_sent(
    tmp_path: Path, cluster: list[dict[str, Any]]
):
    del cluster[4:]
    scene = Scene(tmp_path, *map(holding, GROUPS))
    spec = EpochSpec(EpochId(1, 2), ("a", "b", "c", "d"), "host", 1, (0, 1, 2, 3), shard_size=2)
    node_of = dict(zip(spec.members, GROUPS, strict=True))
    scene.kept.on_formed(RecoveryPlan(spec, at(8)), node_of)
    assert scene.nodes.members["n00"] == {ShardId(0, 2): ["n02"]}
    left = replace(spec, members=("c", "d"), snapshot_ranks=(0, 1))
    scene.kept.on_formed(RecoveryPlan(left, at(8)), node_of)
    assert scene.nodes.members == {"n02": {}, "n03": {}}
    assert {len(others) for others in scene.nodes.copies.values()} == {1}


def test_a_member_s_keeper_that_missed_the_question_is_asked_again(
    tmp_path: Path, cluster: list[dict[str, Any]]
):
    del cluster[4:]
    scene = Scene(tmp_path, *map(holding, GROUPS))
    scene.nodes.silent = {"n02"}
    asyncio.run(scene.memory.direct([*GROUPS], GROUPS))
    assert scene.nodes.members["n00"] == {}
    scene.nodes.silent = set()
    scene.pass_time(6.0)
    assert scene.nodes.members["n00"] == {ShardId(0, 2): ["n02"]}
    scene.nodes.members = {}
    scene.pass_time(60.0)
    assert scene.nodes.members == {}, "nothing has changed"


def test_a_late_answer_directs_no_copies_of_the_world_before(
    tmp_path: Path, cluster: list[dict[str, Any]]
):
    del cluster[4:]
    scene = Scene(tmp_path, *map(holding, GROUPS))

    async def direct_twice() -> None:
        late = asyncio.Event()
        scene.nodes.slow = [late]
        async with asyncio.TaskGroup() as both:
            both.create_task(scene.memory.direct([*GROUPS], GROUPS))
            await asyncio.sleep(0)
            await scene.memory.direct(["n02", "n03"], {})
            late.set()

    asyncio.run(direct_twice())
    assert scene.nodes.copies.keys() == {"n02", "n03"}
    assert scene.nodes.members == {"n02": {}, "n03": {}}


def test_a_coordinator_that_takes_an_epoch_over_tells_a_keeper_that_restarts_where_copies_go(
    tmp_path: Path, cluster: list[dict[str, Any]]
):
    del cluster[2:]
    scene = Scene(tmp_path, holding("n00"), holding("n01"))
    spec = EpochSpec(EpochId(1, 2), ("a", "b"), "host", 1, (0, 1), shard_size=2)
    scene.kept.send_copies(spec, {"a": "n00", "b": "n01"})
    assert scene.nodes.copies == {"n00": ["n01"], "n01": ["n00"]}
    scene.nodes.copies = {}
    scene.memory.hear(Heartbeat("n00", {}, knows_peers=False, held=None))
    scene.pass_time(6.0)
    assert scene.nodes.copies == {"n00": ["n01"], "n01": ["n00"]}


def test_a_keeper_that_missed_the_question_has_a_target_once_it_answers(
    tmp_path: Path, cluster: list[dict[str, Any]]
):
    del cluster[2:]
    scene = Scene(tmp_path, holding("n00"), holding("n01"))
    scene.nodes.silent = {"n01"}
    asyncio.run(scene.memory.direct(["n00", "n01"]))
    assert scene.nodes.copies == {"n00": [], "n01": ["n00"]}
    assert len(scene.events("copies_short")) == 1
    scene.nodes.silent = set()
    scene.pass_time(1.0)
    assert scene.nodes.copies["n00"] == []
    scene.pass_time(5.0)
    assert scene.nodes.copies == {"n00": ["n01"], "n01": ["n00"]}
    scene.nodes.copies = {}
    scene.pass_time(60.0)
    assert scene.nodes.copies == {}, "nothing has changed"


def test_a_lost_node_gets_no_keeper_while_its_ranks_are_still_to_be_replaced(
    tmp_path: Path, cluster: list[dict[str, Any]]
):
    del cluster[3:]
    scene = Scene(tmp_path, *[holding(f"n{k:02}") for k in range(3)])
    asyncio.run(scene.memory.direct(["n00", "n01", "n02"]))
    del scene.nodes.holdings["n01"]
    cluster[1]["Alive"] = False
    scene.pass_time(6.0)
    assert scene.nodes.node_ids == {"n00", "n02"}
    assert scene.nodes.copies == {"n00": ["n02"], "n02": ["n00"]}


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(("trouble", "needed"), [(None, 2), ("no space", 3)])
def test_what_is_needed_is_on_as_many_nodes_as_asked_for_unless_one_refuses(
    tmp_path: Path, trouble: str | None, needed: int
):
    scene = Scene(tmp_path, *map(holding, ("n00", "n01", "n02")), replicas=2)
    asyncio.run(scene.memory.direct(["n00", "n01"]))
    for node_id, steps in (("n00", (2, 3)), ("n01", (2, 3)), ("n02", (2,))):
        held = holding(node_id, s0=steps, s1=steps).held
        beat = Heartbeat(node_id, {}, knows_peers=True, held=None, all_held=held, trouble=trouble)
        answer = scene.memory.hear(beat)
    assert answer == at(needed)


def test_a_node_that_is_to_go_holds_copies_only_where_there_is_no_other(
    tmp_path: Path, cluster: list[dict[str, Any]]
):
    del cluster[4:]
    scene = Scene(tmp_path, *[holding(f"n{k:02}") for k in range(4)])
    scene.nodes.unfit.draining["n01"] = 5.0
    asyncio.run(scene.memory.direct(["n00", "n01", "n02"]))
    targets = {node: others[0] for node, others in scene.nodes.copies.items()}
    assert targets.keys() == {"n00", "n01", "n02"}, "what it holds itself is needed elsewhere"
    assert "n01" not in targets.values()
    scene.nodes.unfit.draining |= {"n02": 5.0, "n03": 5.0}
    scene.nodes.copies = {}
    scene.pass_time(0.1)
    assert {len(others) for others in scene.nodes.copies.values()} == {1}, "at once, and somewhere"


def test_what_members_on_a_node_that_is_to_go_hold_does_not_count(
    tmp_path: Path, cluster: list[dict[str, Any]]
):
    del cluster[4:]
    scene = Scene(tmp_path, *map(holding, GROUPS))
    scene.nodes.unfit.draining["n02"] = 5.0
    asyncio.run(scene.memory.direct([*GROUPS], GROUPS))
    assert scene.nodes.members["n00"] == {}
    assert scene.nodes.copies["n00"] != ["n02"]
    assert scene.nodes.members["n02"] == {ShardId(0, 2): ["n00"]}


def test_what_nodes_hold_is_looked_at_less_often_than_they_tell_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    scene = Scene(tmp_path, holding("a"), holding("b"))
    looks: list[None] = []
    find = memory_tier.find_needed

    def find_and_count(found: Found, num_copies: int) -> Version | None:
        looks.append(None)
        return find(found, num_copies)

    monkeypatch.setattr(memory_tier, "find_needed", find_and_count)

    def hear(node_id: str, s0: tuple[int, ...], s1: tuple[int, ...]) -> Version | None:
        held = holding(node_id, s0=s0, s1=s1).held
        beat = Heartbeat(node_id, {}, knows_peers=True, held=None, all_held=held)
        return scene.memory.hear(beat)

    assert hear("a", s0=(1, 2, 3), s1=(2,)) is None, "of the other it isn't known"
    assert hear("b", s0=(2, 3), s1=(2,)) == at(2)
    assert {hear("a", s0=(1, 2, 3), s1=(2, 3)) for _ in range(100)} == {at(2)}
    assert {hear("b", s0=(2, 3), s1=(2, 3)) for _ in range(100)} == {at(2)}
    scene.clock.now_s += 1.0
    assert {hear("b", s0=(2, 3), s1=(2, 3)) for _ in range(100)} == {at(3)}
    assert len(looks) == 2


def test_once_the_run_is_over_nobody_is_said_to_hold_too_few_copies(
    tmp_path: Path, cluster: list[dict[str, Any]]
):
    """Its Keepers are gone by then, and its nodes are not."""
    del cluster[2:]
    scene = Scene(tmp_path, holding("n00"), holding("n01"))
    asyncio.run(scene.memory.direct(["n00", "n01"], {}))
    copies = dict(scene.nodes.copies)
    scene.nodes.holdings.clear()
    scene.nodes.is_closing = True
    scene.pass_time(6.0)
    assert scene.events("copies_short") == []
    assert scene.nodes.copies == copies
