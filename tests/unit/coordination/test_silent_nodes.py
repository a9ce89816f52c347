"""A Keeper that stands still, a node that is cut off, and how they are told apart."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ray.exceptions import ActorUnavailableError, RayError

from tests.distributed.jobs import make_job
from tests.unit.coordination.fakes import (
    FakeClock,
    FakePool,
    FakeSuperior,
    FakeWorker,
    Method,
    describe,
    guard_of,
    settle,
)
from trainflow.coordination.keeper import Heartbeat
from trainflow.coordination.keeper_deaths import BACK_WITHIN_S, KeeperDeaths
from trainflow.coordination.node_watch import NodeWatch
from trainflow.coordination.ray_drains import LivingNode
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.silent_nodes import SilentNodes
from trainflow.coordination.wakefulness import BEAT_EVERY_S

LEASE_S = 10.0
TICK_S = 0.5
GIVEN_UP_AFTER_S = LEASE_S + 1.0 + TICK_S


class Scene:
    """Nodes a, b and c, with a worker each that answers, and Keepers of which b's says nothing."""

    def __init__(self, directory: Path):
        self.clock = FakeClock()
        self.record = RunRecord(directory, self.clock)
        self.workers = {node: FakeWorker(f"slot{i}-1.{i}", None) for i, node in enumerate("abc")}
        self.pool = FakePool([*self.workers.values()])
        for node, worker in self.workers.items():
            self.place(worker.worker_id, node)
        self.alive = {node: LivingNode(f"10.0.0.{node}") for node in "abc"}
        self.superior = FakeSuperior(self.pool)
        self.given_up: list[str] = []
        self._guard = guard_of(self.record)
        self.begin()
        self.silent = {"b"}
        self.ended: list[str] = []

    def begin(self) -> None:
        """A coordinator begins."""
        self.nodes = NodeWatch("job-1", make_job(failures={"lease_s": LEASE_S}), self.clock)
        parts: Any = (self.pool, self.nodes, self.record, self, self.superior, self._guard)
        self.watch = SilentNodes(*parts)
        self.nodes.note_alive(self.alive)

    def place(self, worker_id: str, node_id: str) -> None:
        entry = self.pool.entries[worker_id]
        entry.description = replace(describe(worker_id), node_id=node_id)

    def on_node_lost(self, node_id: str) -> None:
        self.given_up.append(node_id)

    def cut_off(self, node_id: str) -> None:
        """Whom it is asked there doesn't answer, and its Keeper isn't heard."""
        self.silent.add(node_id)
        self.workers[node_id].describe = Method(asyncio.Event().wait)

    async def pass_time(self, for_s: float) -> None:
        """Let the Keepers that can beat, and the coordinator look after silent nodes."""
        for number in range(round(for_s / BEAT_EVERY_S)):
            self.clock.now_s += BEAT_EVERY_S
            self.nodes.awake.beat(self.clock.now_s)
            if number % 5 == 0:
                for node_id in {*"abc"} - self.silent:
                    self.hear(node_id)
                self.watch.tick()
                await settle()

    def hear(self, node_id: str, *, is_counted: bool = True) -> None:
        """Have a heartbeat come, whose Keeper was last answered that."""
        self.nodes.hear(node_id, {}, knows_peers=True)
        self.watch.hear(Heartbeat(node_id, {}, True, None, is_counted=is_counted))

    def events(self) -> list[tuple[str, str]]:
        return [(each["kind"], each["data"]["node"]) for each in self.record.events_since(0)]


Play = Callable[[Callable[[Scene], Awaitable[None]]], Scene]


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    scene: Any = None

    def make_keeper(_: NodeWatch, node_id: str) -> Any:
        keeper: Any = FakeWorker(node_id, None)
        for name in ("introduce", "forget_node"):
            setattr(keeper, name, Method(lambda *_: None))
        keeper.wait_exit = Method(asyncio.Event().wait)
        return keeper

    monkeypatch.setattr(NodeWatch, "_make_keeper", make_keeper)
    monkeypatch.setattr("ray.put", lambda value: value)
    monkeypatch.setattr("ray.kill", lambda keeper, **_: scene.ended.append(keeper.worker_id))

    def run(act: Callable[[Scene], Awaitable[None]]) -> Scene:
        async def main() -> Scene:
            nonlocal scene
            scene = Scene(tmp_path)
            await scene.nodes.ensure({*"abc"}, {*"abc"})
            await act(scene)
            for node_id in "abc":
                scene.nodes._deaths.forget(node_id)
                scene.nodes.answers.forget(node_id)
            return scene

        return asyncio.run(main())

    return run


def test_a_keeper_that_stands_still_is_ended_and_costs_nobody_its_rank(play: Play):
    async def act(scene: Scene) -> None:
        await scene.pass_time(LEASE_S)
        assert scene.ended == []
        await scene.pass_time(8.0)
        assert scene.ended == ["b"]
        scene.silent.clear()
        scene.nodes.hear("b", {}, knows_peers=False)
        await scene.pass_time(2 * GIVEN_UP_AFTER_S)

    scene = play(act)
    assert (scene.superior.lost, scene.given_up) == ([], [])
    assert scene.events() == [("keeper_away", "b"), ("keeper_back", "b")]
    assert scene.ended == ["b"], "once"
    text = scene.record.events_since(0)[0]["text"]
    assert text.startswith("the Keeper of node 10.0.0.b stands still, though workers there answer:")


def test_one_that_does_not_come_back_is_waited_for_as_one_that_has_died(play: Play):
    async def act(scene: Scene) -> None:
        await scene.pass_time(LEASE_S + BACK_WITHIN_S)
        assert scene.given_up == []
        await scene.pass_time(2.0)

    scene = play(act)
    assert scene.superior.lost == [("slot1-1.1",)]
    assert scene.given_up == scene.ended == ["b"]


def test_one_that_goes_on_by_itself_and_stands_still_again_is_ended_again(play: Play):
    async def act(scene: Scene) -> None:
        for _ in range(2):
            scene.silent = {"b"}
            await scene.pass_time(LEASE_S + 2.0)
            scene.silent = set()
            await scene.pass_time(20.0)
            assert not scene.nodes.answers.were_asked("b")

    scene = play(act)
    assert scene.ended == ["b", "b"]
    assert scene.superior.lost == []


def test_one_that_can_t_be_ended_is_given_up(play: Play, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object, **__: object) -> None:
        raise RayError

    async def act(scene: Scene) -> None:
        monkeypatch.setattr("ray.kill", refuse)
        await scene.pass_time(GIVEN_UP_AFTER_S)

    assert play(act).given_up == ["b"]


def test_a_node_that_is_cut_off_is_given_up_at_the_end_of_its_lease(play: Play):
    async def act(scene: Scene) -> None:
        scene.cut_off("b")
        await scene.pass_time(LEASE_S + 0.5)
        assert scene.given_up == []
        await scene.pass_time(1.0)

    scene = play(act)
    assert scene.given_up == ["b"]
    assert scene.superior.lost == [("slot1-1.1",)]
    assert scene.ended == []


def test_a_node_is_given_up_without_ray_being_asked(play: Play, monkeypatch: pytest.MonkeyPatch):
    def refuse() -> list[Any]:
        raise AssertionError("heartbeats wait where it is asked, for as long as its head is silent")

    async def act(scene: Scene) -> None:
        monkeypatch.setattr("ray.nodes", refuse)
        scene.cut_off("b")
        await scene.pass_time(GIVEN_UP_AFTER_S + 1.0)
        assert "b" in scene.nodes.unfit, "as of when it was last looked it lives"
        del scene.alive["b"]
        scene.nodes.note_alive(scene.alive)
        assert "b" not in scene.nodes.unfit

    scene = play(act)
    assert scene.superior.lost[0] == ("slot1-1.1",)
    assert scene.given_up == ["b"]
    assert "detector_off" not in [each["kind"] for each in scene.record.events_since(0)]


def test_a_node_that_is_cut_off_while_its_keeper_is_waited_for_is_given_up_as_soon(play: Play):
    async def act(scene: Scene) -> None:
        await scene.pass_time(LEASE_S + 5.0)
        assert scene.ended == ["b"]
        scene.cut_off("b")
        await scene.pass_time(LEASE_S)
        assert scene.given_up == []
        await scene.pass_time(2.0)

    assert play(act).given_up == ["b"]


def test_a_connection_to_a_keeper_that_breaks_is_no_death_where_nobody_answers(play: Play):
    """Ray tells of either by the same error."""

    async def act(scene: Scene) -> None:
        def fail() -> None:
            raise ActorUnavailableError("connection reset", None)

        scene.nodes._keepers["b"].wait_exit = Method(fail)
        scene.nodes._deaths.forget("b")
        scene.nodes._deaths.follow("b", scene.nodes._keepers["b"])
        scene.cut_off("b")
        await scene.pass_time(GIVEN_UP_AFTER_S)

    assert play(act).given_up == ["b"]


def test_no_worker_is_started_where_nobody_is_heard_until_somebody_is(play: Play):
    async def act(scene: Scene) -> None:
        scene.cut_off("b")
        await scene.pass_time(GIVEN_UP_AFTER_S)
        assert "b" in scene.nodes.unfit
        scene.hear("b")
        assert "b" in scene.nodes.unfit, "it may have been said long ago"
        scene.hear("b", is_counted=False)
        assert "b" not in scene.nodes.unfit
        await scene.pass_time(1.0)

    assert play(act).events() == [("node_unheard", "b"), ("node_heard", "b")]


def test_where_workers_are_started_again_any_heartbeat_tells_that_somebody_lives(play: Play):
    """Its Keeper is answered that its node counts: there is no other that is fit."""

    async def act(scene: Scene) -> None:
        scene.cut_off("b")
        await scene.pass_time(GIVEN_UP_AFTER_S)
        await scene.nodes.ensure({"b"})
        assert "b" in scene.nodes.unfit
        scene.hear("b")
        assert "b" not in scene.nodes.unfit

    play(act)


def test_a_node_that_ray_has_given_up_is_no_longer_told_of(play: Play):
    async def act(scene: Scene) -> None:
        scene.cut_off("b")
        await scene.pass_time(GIVEN_UP_AFTER_S)
        del scene.alive["b"]
        scene.nodes.note_alive(scene.alive)
        assert "b" not in scene.nodes.unfit
        await scene.pass_time(1.0)

    assert play(act).events() == [("node_unheard", "b")]


def test_only_workers_that_are_warm_are_asked_and_none_twice_before_it_answers(play: Play):
    asked: list[str] = []

    async def act(scene: Scene) -> None:
        def note(worker_id: str) -> Callable[[], Any]:
            def wait() -> Any:
                asked.append(worker_id)
                return asyncio.Event().wait()

            return wait

        starting = FakeWorker("slot3-1.3", None)
        scene.pool.entries |= FakePool([starting]).entries
        scene.pool.entries["slot3-1.3"].description = None
        for worker in (*scene.workers.values(), starting):
            worker.describe = Method(note(worker.worker_id))
        await scene.pass_time(2.5)
        assert asked == []
        await scene.pass_time(3.0)

    play(act)
    assert asked == ["slot1-1.1"]


def test_a_keeper_that_dies_again_after_it_was_heard_has_all_of_its_time_again():
    """A connection that broke, and no death, leaves nothing behind either."""
    clock = FakeClock()
    deaths = KeeperDeaths(clock)
    deaths._died_at_s["b"] = clock.now_s
    deaths.note_heard("b", is_new=False)
    assert deaths.is_coming_back("b"), "it may have said so right before"
    clock.now_s += 6.0
    deaths.note_heard("b", is_new=False)
    assert not deaths.is_coming_back("b")
    deaths._died_at_s["b"] = clock.now_s
    deaths.note_heard("b", is_new=True)
    assert not deaths.is_coming_back("b")


def test_a_keeper_that_takes_long_to_come_back_is_told_as_dead_where_it_has_died(play: Play):
    async def act(scene: Scene) -> None:
        scene.nodes._deaths._died_at_s["b"] = scene.clock.now_s
        await scene.pass_time(GIVEN_UP_AFTER_S)
        assert scene.events() == [("keeper_away", "b")]
        await scene.pass_time(BACK_WITHIN_S)

    scene = play(act)
    away, unheard = scene.record.events_since(0)[:2]
    assert away["text"].startswith("the Keeper of node 10.0.0.b has died, and is being started")
    assert scene.given_up == ["b"]
    assert unheard["kind"] == "node_unheard", "it is not back: the node is lost"


def test_a_keeper_is_missed_only_where_workers_live(play: Play):
    """Its node has lost them all: it may be that it is gone, which Ray has yet to find."""

    async def act(scene: Scene) -> None:
        del scene.pool.entries["slot1-1.1"]
        scene.nodes._deaths._died_at_s["b"] = scene.clock.now_s
        await scene.pass_time(BACK_WITHIN_S - 1.0)
        assert scene.given_up == []

    assert play(act).events() == []


def test_a_new_coordinator_knows_who_was_given_up_and_tells_when_he_is_heard(play: Play):
    async def act(scene: Scene) -> None:
        scene.cut_off("b")
        await scene.pass_time(GIVEN_UP_AFTER_S)
        assert scene.events()[-1] == ("node_unheard", "b")
        scene.begin()
        assert "b" in scene.nodes.unfit
        await scene.pass_time(GIVEN_UP_AFTER_S)
        assert scene.events()[-1] == ("node_unheard", "b"), "which is told already"
        scene.hear("b")
        await scene.pass_time(1.0)
        assert scene.events()[-1] == ("node_heard", "b")
        scene.begin()
        assert "b" not in scene.nodes.unfit

    play(act)
