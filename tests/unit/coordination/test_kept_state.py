"""What a run falls back on when no rank holds its state."""

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.jobs import make_job
from tests.unit.coordination.fake_cluster import FakeCluster
from tests.unit.coordination.fakes import FakeClock, FakePool, FakeSuperior
from trainflow.computation.reports import CheckpointUnusable, SnapshotLeftOut
from trainflow.config.job import SnapshotConfig
from trainflow.coordination.background import Background
from trainflow.coordination.copy_targets import CopyTargets
from trainflow.coordination.detector_guard import DetectorGuard
from trainflow.coordination.keeper import Heartbeat
from trainflow.coordination.kept_state import KeptState
from trainflow.coordination.memory_tier import MemoryTier
from trainflow.coordination.messages import Holding
from trainflow.coordination.recovery_plan import NoLiveStateError
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.topology import RACK
from trainflow.coordination.unfit_nodes import UnfitNodes
from trainflow.epochs import (
    INITIAL_VERSION,
    EpochId,
    EpochSpec,
    HeldState,
    MemberReport,
    PeerAddress,
    RecoveryPlan,
    StoredState,
    Version,
)
from trainflow.errors import CheckpointVersionError, StoreError

SPEC = EpochSpec(EpochId(1, 5), ("w0", "w1"), "127.0.0.1", 1)
PLAN = RecoveryPlan(SPEC, INITIAL_VERSION)
NOTHING = [MemberReport("w0", None), MemberReport("w1", None)]


def formed_by(*snapshot_ranks: int) -> RecoveryPlan:
    return replace(PLAN, spec=replace(SPEC, snapshot_ranks=snapshot_ranks))


def version(step: int, epoch: int = 1) -> Version:
    return Version(step, EpochId(1, epoch))


def address(node_id: str) -> PeerAddress:
    return PeerAddress("127.0.0.1", 1, node_id)


class FakeNodes(FakeCluster):
    def __init__(self, **newest: int | None):
        self.unfit = UnfitNodes()
        self.holdings = {
            node: Holding(node, address(node), None if step is None else version(step))
            for node, step in newest.items()
        }
        self.num_asked = 0
        self.late: dict[str, Holding] = {}
        self.waited_s: list[float] = []
        self.copies: dict[str, tuple[PeerAddress, ...]] = {}

    @property
    def node_ids(self) -> set[str]:
        return set(self.holdings)

    async def ask_holdings(
        self, timeout_s: float, *, also_dismissed: bool = False
    ) -> list[Holding]:
        self.num_asked += 1
        self.waited_s.append(timeout_s)
        late = self.late if timeout_s > 5.0 else {}
        return [*self.holdings.values(), *late.values()]

    async def ensure(self, node_ids: set[str]) -> None:
        for node in node_ids:
            self.holdings[node] = Holding(node, address(node), None)

    def send_copies(self, copies: dict[str, CopyTargets]) -> None:
        self.copies = {node: targets.others for node, targets in copies.items()}


class FakeCheckpoints:
    def __init__(self, *steps: int):
        self.stored = [StoredState("/store", step) for step in steps]
        self.quarantined: list[int] = []
        self.skipped: list[int] = []
        self.begun: tuple[EpochId, int] | None = None

    @property
    def newest(self) -> StoredState | None:
        return self.stored[-1] if self.stored else None

    async def tick(self, node_ids: set[str]) -> None:
        """Nothing is on its way."""

    async def collect_due(self) -> None:
        """Nothing is."""

    def on_unusable(self, step: int, reason: str) -> None:
        self.stored = [each for each in self.stored if each.step != step]

    async def quarantine(self, step: int) -> None:
        self.quarantined.append(step)

    def on_epoch(self, epoch: EpochId, step: int) -> None:
        self.begun = epoch, step

    def on_skipped(self, version: Version, reason: str) -> None:
        self.skipped.append(version.step)


class Now:
    """Runs in the background what a test then runs."""

    def __init__(self) -> None:
        self.started: list[Coroutine[Any, Any, None]] = []

    def start(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self.started.append(coroutine)

    def finish(self) -> None:
        while self.started:
            asyncio.run(self.started.pop(0))


class Scene:
    def __init__(self, directory: Path, nodes: FakeNodes, checkpoints: FakeCheckpoints, **s: Any):
        any_nodes: Any = nodes
        any_checkpoints: Any = checkpoints
        self.clock = FakeClock()
        self.record = RunRecord(directory, self.clock)
        job = make_job().model_copy(update={"snapshot": SnapshotConfig(**s)})
        self.memory = MemoryTier(job, any_nodes, self.record, self.clock)
        self.superior = FakeSuperior(FakePool())
        self.background = Now()
        any_background: Any = self.background
        guard = DetectorGuard(self.record, any_background, self.clock)
        self.kept = KeptState(
            any_checkpoints, self.memory, self.record, any_background, self.superior, guard
        )

    def plan(self, reports: list[MemberReport], committed_step: int) -> Any:
        plan = self.kept.plan(SPEC, reports, member_lost=True, committed_step=committed_step)
        return asyncio.run(plan)

    def events(self, kind: str) -> list[str]:
        return [e["text"] for e in self.record.events_since(0) if e["kind"] == kind]


def test_nobody_is_asked_while_a_member_has_the_state(tmp_path: Path):
    nodes = FakeNodes(a=7)
    reports = [MemberReport("w0", version(7)), MemberReport("w1", None)]
    plan = Scene(tmp_path, nodes, FakeCheckpoints(5)).plan(reports, 7)
    assert (plan.stored, plan.base, nodes.num_asked) == (None, version(7), 0)


def test_the_newest_in_memory_comes_before_what_is_stored(tmp_path: Path):
    nodes = FakeNodes(a=7, b=8, c=8, d=None)
    plan = Scene(tmp_path, nodes, FakeCheckpoints(5)).plan(NOTHING, 8)
    assert plan.stored == HeldState(version(8), (address("b"), address("c")))
    assert plan.base == version(8)
    assert plan.sources == {1: 0}
    assert plan.replay_tail


@pytest.mark.parametrize("nodes", [FakeNodes(a=4), FakeNodes(a=None), FakeNodes()])
def test_what_is_stored_comes_first_where_it_is_newer(tmp_path: Path, nodes: FakeNodes):
    plan = Scene(tmp_path, nodes, FakeCheckpoints(2, 5)).plan(NOTHING, 8)
    assert plan.stored == StoredState("/store", 5)


def test_without_snapshots_no_node_is_asked(tmp_path: Path):
    nodes = FakeNodes(a=8)
    plan = Scene(tmp_path, nodes, FakeCheckpoints(5), every_steps=None).plan(NOTHING, 8)
    assert (plan.stored, nodes.num_asked) == (StoredState("/store", 5), 0)


def test_where_nothing_was_kept_that_is_said(tmp_path: Path):
    with pytest.raises(NoLiveStateError, match="and every copy"):
        Scene(tmp_path, FakeNodes(a=None), FakeCheckpoints()).plan(NOTHING, 8)


def test_a_run_that_is_begun_again_takes_the_checkpoint_though_its_ranks_are_fresh(tmp_path: Path):
    fresh = [MemberReport("w0", INITIAL_VERSION), MemberReport("w1", INITIAL_VERSION)]
    plan = Scene(tmp_path, FakeNodes(a=None), FakeCheckpoints(5)).plan(fresh, 0)
    assert plan.stored == StoredState("/store", 5)


def test_a_bad_snapshot_is_left_for_what_is_there_beside_it(tmp_path: Path):
    scene = Scene(tmp_path, FakeNodes(a=8), FakeCheckpoints(5))
    bad = scene.plan(NOTHING, 8).stored
    scene.kept.take(CheckpointUnusable(bad, "a chunk is damaged"))
    scene.background.finish()
    assert scene.plan(NOTHING, 8).stored == StoredState("/store", 5)
    assert "a chunk is damaged" in scene.events("snapshot_unusable")[0]
    assert not scene.superior.endings


def test_a_bad_checkpoint_is_taken_away_and_with_nothing_left_the_run_ends(tmp_path: Path):
    checkpoints = FakeCheckpoints(5)
    scene = Scene(tmp_path, FakeNodes(a=None), checkpoints)
    scene.kept.take(CheckpointUnusable(StoredState("/store", 5), "a chunk is damaged"))
    scene.background.finish()
    assert checkpoints.quarantined == [5]
    assert "of the newest, step 5: a chunk is damaged" in scene.superior.endings[0].reason


def test_what_was_left_out_is_told_once_or_counted(tmp_path: Path):
    checkpoints = FakeCheckpoints()
    scene = Scene(tmp_path, FakeNodes(), checkpoints)
    for step in (1, 2):
        scene.kept.take(SnapshotLeftOut(version(step), for_storage=False, reason="no room"))
        scene.kept.take(SnapshotLeftOut(version(step), for_storage=True, reason="slow"))
    assert scene.events("snapshot_left_out") == [
        "the state of step 1 is not in the memory of nodes: no room"
    ]
    assert checkpoints.skipped == [1, 2]


def test_where_ranks_are_on_too_few_nodes_another_is_sent_copies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    cluster = [{"NodeID": node, "Alive": node != "dead"} for node in ("a", "dead", "b", "c")]
    monkeypatch.setattr(FakeNodes, "cluster", cluster)
    nodes = FakeNodes(a=1)
    scene = Scene(tmp_path, nodes, FakeCheckpoints())
    scene.kept.on_formed(formed_by(0), {"w0": "a", "w1": "a"})
    scene.background.finish()
    assert nodes.node_ids == {"a", "b"}
    assert nodes.copies == {"a": (address("b"),)}
    scene.kept.on_formed(formed_by(0, 1), {"w0": "a", "w1": "b"})
    scene.background.finish()
    assert nodes.copies == {"a": ()}


def test_copies_that_can_not_be_directed_end_no_run_and_are_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    cluster = [{"NodeID": node, "Alive": True} for node in ("a", "b")]
    monkeypatch.setattr(FakeNodes, "cluster", cluster)
    nodes = FakeNodes(a=1, b=1)
    scene = Scene(tmp_path, nodes, FakeCheckpoints())
    with monkeypatch.context() as broken:
        broken.setattr(FakeNodes, "send_copies", lambda *_: 1 / 0)
        scene.kept.on_formed(formed_by(0), {"w0": "a"})
        scene.background.finish()
        scene.clock.now_s += 6.0
        asyncio.run(scene.kept.tick({"a", "b"}))
        scene.background.finish()
    assert nodes.copies == {}
    (off,) = scene.events("detector_off")
    assert "nobody looks for nodes that lack copies of the state" in off
    scene.clock.now_s += 16.0
    asyncio.run(scene.kept.tick({"a", "b"}))
    scene.background.finish()
    assert nodes.copies == {"a": (address("b"),)}
    assert len(scene.events("detector_on")) == 1


def test_what_two_nodes_hold_makes_older_ones_needless(tmp_path: Path):
    memory = Scene(tmp_path, FakeNodes(a=9, b=8, c=2), FakeCheckpoints()).memory

    def hear(node_id: str, newest: Version | None) -> Version | None:
        return memory.hear(Heartbeat(node_id, {}, knows_peers=True, held=newest))

    assert hear("a", None) is None
    assert hear("a", version(9)) == version(9)
    assert hear("c", version(2)) == version(2)
    assert hear("b", version(8)) == version(8)
    assert hear("gone", version(10)) == version(8)
    assert hear("c", version(3, epoch=2)) == version(9), "what a later epoch has counts more"
    assert hear("b", version(4, epoch=2)) == version(3, epoch=2)


def test_a_history_that_the_run_went_back_from_counts_less(tmp_path: Path):
    nodes = FakeNodes(a=100, b=None)
    nodes.holdings["b"] = Holding("b", address("b"), version(81, epoch=5))
    plan = Scene(tmp_path, nodes, FakeCheckpoints(80)).plan(NOTHING, 81)
    assert plan.stored == HeldState(version(81, epoch=5), (address("b"),))


def test_slow_keepers_are_waited_for_while_something_newer_is_missing(tmp_path: Path):
    nodes = FakeNodes(a=7)
    nodes.late = {"b": Holding("b", address("b"), version(8))}
    scene = Scene(tmp_path, nodes, FakeCheckpoints())
    scene.record.last_step = 8
    assert scene.plan(NOTHING, 8).base == version(8)
    scene.record.last_step = 7
    nodes.waited_s.clear()
    assert scene.plan(NOTHING, 7).base == version(7)
    assert max(nodes.waited_s) < 5.0


def test_what_one_keeper_has_lost_another_may_have(tmp_path: Path):
    nodes = FakeNodes(a=8)
    scene = Scene(tmp_path, nodes, FakeCheckpoints(5))
    bad = scene.plan(NOTHING, 8).stored
    scene.kept.take(CheckpointUnusable(bad, "it is gone"))
    scene.background.finish()
    nodes.holdings["b"] = Holding("b", address("b"), version(8))
    assert scene.plan(NOTHING, 8).stored == HeldState(version(8), (address("b"),))


@pytest.mark.parametrize("change", ["a Keeper is new", "the target is gone"])
def test_copies_are_directed_anew_where_somebody_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
):
    cluster = [{"NodeID": node, "Alive": True} for node in ("a", "b", "c")]
    monkeypatch.setattr(FakeNodes, "cluster", cluster)
    nodes = FakeNodes(a=1)
    scene = Scene(tmp_path, nodes, FakeCheckpoints())
    asyncio.run(scene.memory.direct(["a"]))
    nodes.copies.clear()
    asyncio.run(scene.memory.look_after())
    assert nodes.copies == {}, "nothing has changed"
    if change == "a Keeper is new":
        nodes.holdings["b"] = Holding("b", PeerAddress("127.0.0.1", 2, "new"), None)
        scene.memory.hear(Heartbeat("b", {}, knows_peers=False, held=None))
    else:
        del nodes.holdings["b"]
        cluster.pop(1)
    asyncio.run(scene.memory.look_after())
    assert nodes.copies == {}, "not more often than every few seconds"
    scene.clock.now_s += 6.0
    asyncio.run(scene.memory.look_after())
    (target,) = nodes.copies["a"]
    assert target == (nodes.holdings["b"] if "b" in nodes.holdings else nodes.holdings["c"]).address


def test_copies_leave_a_node_that_is_to_go_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    cluster = [{"NodeID": node, "Alive": True} for node in ("a", "b", "c")]
    monkeypatch.setattr(FakeNodes, "cluster", cluster)
    nodes = FakeNodes(a=1, b=1)
    scene = Scene(tmp_path, nodes, FakeCheckpoints())
    asyncio.run(scene.memory.direct(["a"]))
    assert nodes.copies == {"a": (address("b"),)}
    nodes.unfit.draining["b"] = 5.0
    asyncio.run(scene.memory.look_after())
    assert nodes.copies == {"a": (address("c"),)}
    nodes.unfit.draining["c"] = 5.0
    asyncio.run(scene.memory.look_after())
    assert len(nodes.copies["a"]) == 1, "as long as there are others"
    nodes.unfit.draining = {"a": 5.0}
    asyncio.run(scene.memory.look_after())
    assert len(nodes.copies["a"]) == 2, "what is in its own memory goes with it"


def test_copies_go_to_another_rack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    racks = {"a": "r1", "b": "r1", "c": "r2"}
    cluster = [
        {"NodeID": node, "Alive": True, "Labels": {RACK: rack}} for node, rack in racks.items()
    ]
    monkeypatch.setattr(FakeNodes, "cluster", cluster)
    nodes = FakeNodes(a=1, b=1, c=1)
    scene = Scene(tmp_path, nodes, FakeCheckpoints())
    asyncio.run(scene.memory.direct(["a"]))
    assert nodes.copies["a"] == (nodes.holdings["c"].address,)


def test_that_a_node_takes_no_copies_is_told_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    cluster = [{"NodeID": node, "Alive": True} for node in ("a", "b")]
    monkeypatch.setattr(FakeNodes, "cluster", cluster)
    nodes = FakeNodes(a=1)

    async def ensure(node_ids: set[str]) -> None:
        """It doesn't come up."""

    monkeypatch.setattr(nodes, "ensure", ensure)
    scene = Scene(tmp_path, nodes, FakeCheckpoints())
    for _ in range(3):
        asyncio.run(scene.memory.direct(["a"]))
    assert len(scene.events("copies_short")) == 1
    cluster.pop()
    alone = Scene(tmp_path / "alone", nodes, FakeCheckpoints())
    asyncio.run(alone.memory.direct(["a"]))
    assert alone.events("copies_short") == []


def test_a_new_coordinator_waits_for_the_store_only_if_training_has_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Where it has begun nobody is held up; where it hasn't, it must not begin anew."""
    monkeypatch.setattr("trainflow.coordination.kept_state._FIND_WITHIN_S", 0.05)
    monkeypatch.setattr("trainflow.coordination.kept_state._FIND_AGAIN_AFTER_S", 0.01)

    async def look_again(directory: Path, *, begun: bool, silences: int) -> int:
        checkpoints = FakeCheckpoints()
        scene = Scene(directory, FakeNodes(), checkpoints)
        if begun:
            scene.record.add_event("epoch", "the first")
        num_asked = 0

        async def find_stored() -> None:
            nonlocal num_asked
            num_asked += 1
            if num_asked <= silences:
                raise StoreError("503")
            checkpoints.stored.append(StoredState("/store", 5))

        monkeypatch.setattr(checkpoints, "find_stored", find_stored, raising=False)
        any_background: Any = Background(scene.superior.failures.append)
        monkeypatch.setattr(scene.kept, "_background", any_background)
        await scene.kept.find_stored_again(members_live=begun)
        return len(checkpoints.stored)

    assert asyncio.run(look_again(tmp_path / "a", begun=False, silences=20)) == 1
    assert asyncio.run(look_again(tmp_path / "b", begun=True, silences=10**6)) == 0


@pytest.mark.parametrize("held", [True, False], ids=["a node has the state", "none has"])
def test_where_all_ranks_are_gone_the_store_is_waited_for_if_no_node_has_their_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, held: bool
):
    """Else the run would end, as if there were no checkpoint."""
    monkeypatch.setattr("trainflow.coordination.kept_state._FIND_WITHIN_S", 0.05)
    checkpoints, may_answer = FakeCheckpoints(), asyncio.Event()
    scene = Scene(tmp_path, FakeNodes(), checkpoints)
    scene.record.add_event("epoch", "the first")
    monkeypatch.setattr(checkpoints, "find_stored", may_answer.wait, raising=False)

    async def find_newest() -> StoredState | None:
        return StoredState("memory", 5) if held else None

    monkeypatch.setattr(scene.kept, "find_newest", find_newest)

    async def act() -> bool:
        any_background: Any = Background(scene.superior.failures.append)
        monkeypatch.setattr(scene.kept, "_background", any_background)
        finding = asyncio.ensure_future(scene.kept.find_stored_again(members_live=False))
        done, _ = await asyncio.wait({finding}, timeout=30.0 if held else 0.2)
        may_answer.set()
        await finding
        return bool(done)

    assert asyncio.run(act()) is held


@pytest.mark.parametrize("begun", [False, True])
def test_a_checkpoint_of_another_release_is_not_passed_over_by_a_run_that_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, begun: bool
):
    checkpoints = FakeCheckpoints()
    scene = Scene(tmp_path, FakeNodes(), checkpoints)
    if begun:
        scene.record.add_event("epoch", "the first")

    async def find_stored() -> None:
        raise CheckpointVersionError("got version 2, expected 1")

    async def act() -> None:
        any_background: Any = Background(scene.superior.failures.append)
        monkeypatch.setattr(scene.kept, "_background", any_background)
        async with asyncio.timeout(4.0):
            await scene.kept.find_stored_again(members_live=begun)

    monkeypatch.setattr(checkpoints, "find_stored", find_stored, raising=False)
    asyncio.run(act())
    reasons = [ending.reason for ending in scene.superior.endings]
    assert reasons == ([] if begun else ["got version 2, expected 1"])
