"""More workers where there is room, and a world that grows by them beyond its target."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.distributed.jobs import make_job
from tests.unit.coordination.fakes import FakeClock, FakePool, FakeWorker, describe, settle
from tests.unit.coordination.playing import play_from_first_commit
from tests.unit.coordination.test_epoch_control import FRESH, Scene
from trainflow.coordination import expansion as module
from trainflow.coordination.expansion import Expansion
from trainflow.coordination.placement import choose_room
from trainflow.coordination.unfit_nodes import UnfitNodes
from trainflow.epochs import EpochId, Flag


class Cluster:
    """Bundles 0 and 1 on the node a; others may be added where there are CPUs."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, **workers: Any):
        self.placed = {0: "a", 1: "a"}
        self.free = {"a": {"CPU": 0.0}, "b": {"CPU": 1.0}, "c": {"CPU": 2.0}}
        self.unfit = UnfitNodes()
        self.alive = dict.fromkeys(self.free, "10.0.0.1")
        self.kept: list[str] = []
        self.kept_out: set[str] = set()  # though not known as unfit
        self.goes: str | None = None  # while it is looked for room
        self.spawned: list[int] = []
        self.lost: list[int] = []
        self.num_asked = 0
        self.is_taken = False
        self.clock = FakeClock()
        self.pool: Any = FakePool()
        self.pool.bundles = self
        self.pool.bundle_nodes = lambda: self.placed
        self.pool.num_bundles = lambda: len(self.placed)
        self.control: Any = SimpleNamespace(epoch=EpochId(1, 1), incarnation=1)
        staffing = SimpleNamespace(
            respawn=self.respawn,
            withdraw=lambda entry: self.pool.entries.pop(entry.worker_id),
            takes_more=lambda node: node not in self.unfit and node not in self.kept_out,
        )
        nodes = SimpleNamespace(unfit=self.unfit, alive=self.alive, ensure=self.ensure)
        monkeypatch.setattr(module, "find_room", self.find_room)
        parts: Any = (self.pool, nodes, self.control, staffing, self.clock)
        job = make_job(**{"world": 2, "workers": {"maximum": 4}} | workers)
        self.expansion = Expansion(job, *parts)

    async def respawn(self, number: int, _incarnation: int) -> None:
        self.spawned.append(number)

    async def ensure(self, node_ids: set[str]) -> None:
        self.kept.extend(node_ids)

    def find_room(self) -> dict[str, dict[str, float]]:
        self.num_asked += 1
        if self.goes is not None:
            self.alive.pop(self.goes, None)
        return self.free

    def find_lost(self, placed: dict[int, str], alive: dict[str, str]) -> list[int]:
        return self.lost

    async def drop(self, number: int) -> None:
        del self.placed[number]

    async def add(self, node_id: str, within_s: float) -> int | None:
        if self.is_taken:
            return None
        number = len(self.placed)
        self.placed[number] = node_id
        self.free[node_id]["CPU"] -= 1.0
        return number

    def tick(self, times: int = 1) -> None:
        async def act() -> None:
            for _ in range(times):
                await self.expansion.tick()

        asyncio.run(act())


MakeCluster = Callable[..., Cluster]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> MakeCluster:
    return lambda **workers: Cluster(monkeypatch, **workers)


def test_bundles_are_added_up_to_maximum_and_spares_evenly_over_nodes(make: MakeCluster):
    cluster = make(spares=1)
    cluster.tick(10)
    assert cluster.placed == {0: "a", 1: "a", 2: "b", 3: "c", 4: "c"}
    assert cluster.spawned == [2, 3, 4]
    assert set(cluster.kept) == {"b", "c"}
    assert cluster.num_asked == 3, "once there are enough nobody is asked"


def test_where_there_is_no_room_it_is_looked_for_every_few_seconds(make: MakeCluster):
    cluster = make()
    cluster.free = {"a": {"CPU": 0.5}}
    cluster.tick(5)
    assert cluster.num_asked == 1
    cluster.clock.now_s += 2.0
    cluster.free["b"] = {"CPU": 1.0}
    cluster.tick(5)
    assert cluster.spawned == [2]


def test_without_a_maximum_only_what_is_missing_is_added(make: MakeCluster):
    cluster = make(workers={}, spares=1)
    cluster.tick(5)
    assert cluster.spawned == [2], "a spare for which there was no room at the start"


def test_workers_on_nodes_that_are_to_go_are_replaced_elsewhere(make: MakeCluster):
    cluster = make(workers={})
    cluster.unfit.draining |= {"a": 5.0, "b": 5.0}
    cluster.tick(5)
    assert cluster.placed == {0: "a", 1: "a", 2: "c", 3: "c"}


def test_workers_of_a_node_that_is_not_heard_are_placed_elsewhere_by_ray(make: MakeCluster):
    cluster = make(workers={})
    cluster.unfit.unheard |= {"a", "b"}
    cluster.tick(5)
    assert cluster.spawned == []


def test_workers_of_a_node_that_takes_no_ranks_and_then_goes_are_placed_elsewhere_by_ray(
    make: MakeCluster,
):
    """What was found free is where Ray is to place them: taken, one of them never would be."""
    cluster = make(workers={})
    cluster.unfit.isolated = frozenset({"a"})
    cluster.goes = "a"
    cluster.tick()
    assert cluster.num_asked == 1
    assert cluster.spawned == []


def test_an_isolated_node_that_has_just_come_back_is_given_none(make: MakeCluster):
    cluster = make()
    cluster.kept_out = {"b", "c"}
    cluster.tick()
    assert cluster.spawned == []
    cluster.kept_out = {"c"}
    cluster.clock.now_s += 10.0
    cluster.tick()
    assert cluster.placed[2] == "b"


def test_before_training_has_begun_and_without_room_after_all_nothing_is_added(make: MakeCluster):
    cluster = make()
    cluster.control.epoch = None
    cluster.tick()
    assert cluster.num_asked == 0
    cluster.control.epoch = EpochId(1, 1)
    cluster.is_taken = True
    cluster.clock.now_s += 2.0
    cluster.tick()
    assert (cluster.num_asked, cluster.spawned) == (1, [])


def test_what_was_added_on_a_node_that_is_gone_is_given_up(make: MakeCluster):
    cluster = make()
    cluster.free = {}
    cluster.placed |= {2: "b", 3: "c"}
    workers = [FakeWorker(each, None) for each in ("slot1-1.1", "slot2-1.r1", "slot3-1.r1")]
    cluster.pool.entries |= FakePool(workers).entries
    cluster.pool.entries["slot3-1.r1"].description = None
    cluster.lost = [2, 3]
    cluster.tick()
    assert cluster.placed == {0: "a", 1: "a"}
    assert set(cluster.pool.entries) == {"slot1-1.1", "slot2-1.r1"}, "its loss is heard of"


def test_where_bundles_are_is_looked_at_also_before_there_is_an_epoch(make: MakeCluster):
    """Others go by it, who must not wait for Ray themselves."""
    cluster = make()
    looked: list[int] = []
    cluster.pool.bundle_nodes = lambda: looked.append(1) or cluster.placed
    cluster.control.epoch = None
    cluster.tick()
    assert looked == [1]
    assert cluster.spawned == []


def test_it_is_not_asked_at_once_again_where_it_failed(
    make: MakeCluster, monkeypatch: pytest.MonkeyPatch
):
    cluster = make()
    monkeypatch.setattr(cluster, "find_lost", lambda *_: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        cluster.tick()
    cluster.tick()
    cluster.clock.now_s += 2.0
    with pytest.raises(ZeroDivisionError):
        cluster.tick()


def test_of_nodes_with_room_the_one_with_fewest_workers_is_chosen():
    free = {"a": {"CPU": 4.0}, "b": {"CPU": 0.5}, "c": {"CPU": 1.0, "GPU": 1.0}}
    assert choose_room(free, {"CPU": 1.0}, {"a": 1}) == "c"
    assert choose_room(free, {"CPU": 1.0}, {"a": 1, "c": 2}) == "a"
    assert choose_room(free, {"CPU": 1.0, "GPU": 2.0}, {}) is None


Play = Callable[[Callable[[Scene], Awaitable[None]]], Scene]


@pytest.fixture
def play(tmp_path: Path) -> Play:
    """Run a scene of three members, who may become five, and keep one spare."""

    def run(act: Callable[[Scene], Awaitable[None]]) -> Scene:
        def make() -> Scene:
            scene = Scene(tmp_path, FRESH)
            scene.pool._num_bundles = 9
            scene.control.candidacy._job = make_job(
                world=3, minimum=2, spares=1, workers={"maximum": 5}
            )
            return scene

        return play_from_first_commit(make, act)

    return run


async def add(scene: Scene, *numbers: int) -> None:
    """Bring workers to be warm, and the members to the next boundary if they are to stop there."""
    for number in numbers:
        worker_id = f"slot{number}-1.r1"
        scene.pool.entries |= FakePool([FakeWorker(worker_id, None)]).entries
        scene.pool.entries[worker_id].description = replace(describe(worker_id), node_id="n")
    scene.control.advance()
    await settle()
    if scene.workers[0].requested:
        scene.workers[0].requested.clear()
        step = scene.record.last_step
        scene.commit_everywhere(step + 1)
        scene.report(0, step + 2, pausing=True)
        await settle()


def test_the_world_grows_beyond_its_target_by_what_is_warm_beyond_the_spares(play: Play):
    async def act(scene: Scene) -> None:
        sizes: list[int] = []
        for number in range(3, 8):
            await add(scene, number)
            sizes.append(len(scene.control.members))
        assert sizes == [3, 4, 5, 5, 5]
        assert scene.control.members[:3] == scene.ids
        assert scene.control.num_spares == 3

    assert "failure" not in play(act).kinds()


def test_a_world_that_has_grown_takes_its_spare_and_stays_as_large_as_it_can(play: Play):
    async def act(scene: Scene) -> None:
        await add(scene, 3, 4)
        assert len(scene.control.members) == 4
        scene.lose(1)
        await settle()
        assert len(scene.control.members) == 4
        assert scene.control.num_spares == 0
        scene.lose(2)
        await settle()
        assert len(scene.control.members) == 3

    play(act)


def test_without_a_maximum_it_does_not_grow(play: Play):
    async def act(scene: Scene) -> None:
        scene.control.candidacy._job = make_job(world=3, minimum=2, spares=1)
        await add(scene, 3, 4, 5)
        assert scene.workers[0].requested == []
        assert scene.control.members == scene.ids
        assert Flag.PAUSE not in scene.workers[0].requested

    play(act)
