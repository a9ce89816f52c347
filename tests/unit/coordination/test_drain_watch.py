"""A node that is to go is emptied between two steps, and what comes of it is told."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.jobs import make_job
from tests.unit.coordination.fakes import FakePool, FakeWorker, Method, describe, settle
from tests.unit.coordination.playing import play_from_first_commit
from tests.unit.coordination.test_epoch_control import FRESH, Scene
from trainflow.coordination import drain_watch as module
from trainflow.coordination.drain_watch import DrainWatch
from trainflow.coordination.preemption_notice import PreemptionNotice
from trainflow.coordination.ray_question import RayQuestion
from trainflow.coordination.run_state import RunState
from trainflow.coordination.unfit_nodes import UnfitNodes
from trainflow.epochs import EpochSpec, Flag, MemberReport
from trainflow.errors import CoordinationError

WORKERS = {"slot0-1.0": "a", "slot1-1.1": "b", "slot2-1.2": "c"}
SPARE, OTHER = "slot3-1.3", "slot4-1.4"


class Nodes:
    """Those of the workers, and one more that the run does not use."""

    def __init__(self) -> None:
        self.unfit = UnfitNodes()
        self.alive: dict[str, str] = {}
        self.node_ids = {"a", "b", "c", "d"}

    def note_alive(self, alive: dict[str, str]) -> None:
        self.alive = dict(alive)

    def host_of(self, node_id: str) -> str:
        return f"10.0.0.{node_id}"


class DrainScene(Scene):
    """Three members, one on each of the nodes a, b and c."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch):
        super().__init__(directory, FRESH)
        for worker_id, node_id in WORKERS.items():
            self.place(worker_id, node_id)
        self.nodes = Nodes()
        self.control.candidacy.unfit = self.nodes.unfit
        self.by_ray: dict[str, float | None] = {}
        self.alive = {node: f"10.0.0.{node}" for node in "abcdz"}
        monkeypatch.setattr(module, "find_draining_nodes", lambda: self.by_ray)
        monkeypatch.setattr(module, "find_alive_nodes", lambda: self.alive)
        self.watch = self.open()

    def open(self) -> DrainWatch:
        any_parts: Any = (self.pool, self.nodes, self.control, self.record, self.clock)
        return DrainWatch(make_job(world=3, minimum=2), *any_parts)

    def place(self, worker_id: str, node_id: str) -> None:
        self.pool.entries[worker_id].description = replace(
            describe(worker_id), node_id=node_id, host=f"10.0.0.{node_id}"
        )

    def add_spare(self, node_id: str, worker_id: str = SPARE) -> None:
        self.pool.entries |= FakePool([FakeWorker(worker_id, None)]).entries
        self.place(worker_id, node_id)
        self.control.advance()

    async def drain(self, *node_ids: str, left_s: float | None = 30.0) -> None:
        at_s = None if left_s is None else self.clock.now_s + left_s
        self.by_ray |= dict.fromkeys(node_ids, at_s)
        await self.watch.tick()
        await settle()

    async def reach_boundary(self, step: int = 2) -> None:
        self.commit_everywhere(step)
        self.report(0, step + 1, pausing=True)
        await settle()
        await self.watch.tick()

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.record.events_since(0) if event["kind"] == kind]

    def text(self, kind: str) -> str:
        (event,) = self.events(kind)
        return event["text"]


Play = Callable[[Callable[[DrainScene], Awaitable[None]]], DrainScene]


@pytest.fixture
def play(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Play:
    """Run a scene that has come to its first commit."""

    def run(act: Callable[[DrainScene], Awaitable[None]]) -> DrainScene:
        return play_from_first_commit(lambda: DrainScene(tmp_path, monkeypatch), act)

    return run


def test_its_rank_goes_to_a_spare_elsewhere_at_the_next_boundary(play: Play):
    async def act(scene: DrainScene) -> None:
        scene.add_spare("c")
        await scene.drain("b")
        assert scene.workers[0].requested == [Flag.PAUSE]
        assert scene.control.members == scene.ids, "before the boundary nothing happens"
        scene.clock.now_s += 2.0
        await scene.reach_boundary()
        await scene.watch.tick()

    scene = play(act)
    assert scene.control.members == (scene.ids[0], SPARE, scene.ids[2])
    assert scene.control.state is RunState.RUNNING
    assert scene.text("drain") == (
        "node 10.0.0.b is to be emptied within 30.0 s: Ray drains it; "
        "rank 1 leaves it at the end of the step under way"
    )
    assert scene.text("drained") == (
        f"node 10.0.0.b is empty, 28.0 s before its deadline: rank 1 is on {SPARE}"
    )
    assert scene.kinds() == ["epoch", "drain", "epoch", "drained"]
    assert not scene.superior.lost


def test_of_workers_that_are_ended_with_the_run_none_has_left_its_node(play: Play):
    async def act(scene: DrainScene) -> None:
        await scene.drain("a", "b", "c")
        scene.control.close()
        scene.pool.entries.clear()
        await scene.watch.tick()

    assert play(act).events("drained") == []


def test_all_ranks_of_several_nodes_leave_together(play: Play):
    async def act(scene: DrainScene) -> None:
        scene.add_spare("c")
        scene.add_spare("c", OTHER)
        await scene.drain("a", "b")
        await scene.reach_boundary()

    scene = play(act)
    assert scene.control.members == (SPARE, OTHER, scene.ids[2])
    assert [event["data"]["ranks"] for event in scene.events("drained")] == [[0], [1]]


def test_the_epoch_is_planned_once_those_who_leave_stand_still(play: Play):
    async def act(scene: DrainScene) -> None:
        scene.add_spare("c")
        stands = asyncio.Event()
        scene.workers[1].stand = Method(stands.wait)
        await scene.drain("b")
        await scene.reach_boundary()
        assert scene.pool.entries[SPARE].actor.formed
        assert not scene.pool.entries[SPARE].actor.plans, "what it holds may not be there yet"
        stands.set()
        await settle()
        assert scene.pool.entries[SPARE].actor.plans

    play(act)


def test_without_a_spare_the_world_shrinks(play: Play):
    async def act(scene: DrainScene) -> None:
        await scene.drain("b", left_s=None)
        await scene.reach_boundary()

    scene = play(act)
    assert scene.control.members == (scene.ids[0], scene.ids[2])
    assert scene.text("drain").startswith("node 10.0.0.b is to be emptied: Ray drains it; rank 1")
    assert (
        scene.text("drained")
        == "node 10.0.0.b is empty: no rank is there; the world had 3 and has 2"
    )


def test_not_below_the_minimum_and_the_node_with_most_time_goes_last(play: Play):
    async def act(scene: DrainScene) -> None:
        await scene.drain("b", left_s=60.0)
        await scene.drain("c", left_s=20.0)
        await scene.reach_boundary()
        assert scene.control.members == scene.ids[:2]
        assert [event["data"]["host"] for event in scene.events("drained")] == ["10.0.0.c"]
        scene.clock.now_s += 61.0
        await scene.watch.tick()
        await scene.watch.tick()

    scene = play(act)
    assert "rank 1 leaves it" in scene.events("drain")[0]["text"]
    (late,) = scene.events("drain_late")
    assert late["text"] == (
        "node 10.0.0.b is not empty at its deadline: no other worker is warm, and the world may "
        "not be below workers.minimum = 2"
    )


def test_who_stays_leaves_once_a_spare_is_warm(play: Play):
    async def act(scene: DrainScene) -> None:
        await scene.drain("a", "b")
        await scene.reach_boundary()
        scene.add_spare("d")
        await scene.watch.tick()
        await settle()
        await scene.reach_boundary(step=4)

    scene = play(act)
    assert scene.control.members == (SPARE, scene.ids[2])
    assert len(scene.events("drained")) == 2


def test_its_spares_are_no_candidates_as_long_as_there_are_others(play: Play):
    async def act(scene: DrainScene) -> None:
        scene.add_spare("d")
        await scene.drain("d")
        assert scene.control.num_spares == 0
        scene.lose(1)
        await settle()
        assert scene.control.members == (scene.ids[0], scene.ids[2])
        scene.lose(2)
        await settle()
        assert scene.control.members == (scene.ids[0], SPARE), "else training would wait"

    assert play(act).text("drain").endswith("no rank is there")


@pytest.mark.parametrize("when", ["stopping", "ending", "recovering", "pausing"])
def test_nobody_is_asked_to_pause_while_something_else_is_under_way(play: Play, when: str):
    async def act(scene: DrainScene) -> None:
        if when == "stopping":
            scene.control.request_stop()
        elif when == "ending":
            scene.control.on_finished(scene.ids[2])
        elif when == "recovering":
            scene.workers[0].stuck = True
            scene.lose(2)
            await settle()
        else:
            await scene.drain("b")
        await settle()
        before = list(scene.workers[0].requested)
        await scene.drain("b")
        assert scene.workers[0].requested == before

    play(act)


def test_a_loss_before_the_boundary_is_an_ordinary_recovery_and_told(play: Play):
    async def act(scene: DrainScene) -> None:
        scene.add_spare("c")
        await scene.drain("b", left_s=1.0)
        scene.record.add_event("failure", "lost slot1-1.1", worker=scene.ids[1])
        scene.lose(1)
        await settle()
        await scene.watch.tick()
        scene.alive.pop("b")
        scene.by_ray.clear()
        await scene.watch.tick()

    scene = play(act)
    assert scene.control.members == (scene.ids[0], SPARE, scene.ids[2])
    assert scene.text("drain_late") == (
        "node 10.0.0.b was not emptied in time: workers there were lost with their ranks"
    )
    assert "b" in scene.nodes.unfit, "it is gone for good"
    assert not scene.events("drain_over")


def test_a_node_that_goes_before_all_have_come_to_the_boundary_holds_nobody_up(play: Play):
    """Members wait for its rank in the tail of their step, and would do so for as long as TCP."""
    asked: list[tuple[str, bool]] = []

    def wait_in_the_tail(worker: FakeWorker) -> None:
        async def form(spec: EpochSpec, *, at_boundary: bool) -> MemberReport:
            asked.append((worker.worker_id, at_boundary))
            if at_boundary:
                await asyncio.Event().wait()
            return MemberReport(worker.worker_id, worker.version, tail_done=False)

        worker.form = Method(form)

    async def act(scene: DrainScene) -> None:
        scene.add_spare("c")
        await scene.drain("b")
        for index in (0, 2):
            wait_in_the_tail(scene.workers[index])
        await scene.reach_boundary()
        assert asked == [(scene.ids[0], True), (scene.ids[2], True)]
        scene.lose(1)
        assert scene.control.left_for_s(), "from here on it is judged who doesn't come out of it"
        await settle()
        assert asked[2:] == [(scene.ids[0], False), (scene.ids[2], False)]

    scene = play(act)
    assert scene.control.members == (scene.ids[0], SPARE, scene.ids[2])
    assert scene.pool.entries[SPARE].actor.plans[-1].replay_tail


@pytest.mark.parametrize("who", ["the last that stays", "who comes"])
def test_those_who_leave_are_not_left_out_before_all_have_come_to_the_boundary(
    play: Play, who: str
):
    """They may be all that hold the state: who takes their ranks has nothing yet."""

    async def act(scene: DrainScene) -> None:
        scene.add_spare("c")
        scene.add_spare("c", OTHER)
        await scene.drain("a", "b")
        scene.workers[2].stuck = True  # in the tail of its step
        await scene.reach_boundary()
        assert scene.pool.entries[SPARE].actor.formed
        scene.workers[2].stuck = False
        if who == "who comes":
            scene.control.on_gone(scene.pool.entries.pop(SPARE), "lost in a test")
        else:
            scene.lose(2)
        await settle()

    scene = play(act)
    assert scene.superior.endings == []
    assert scene.control.members[:2] == scene.ids[:2]
    assert scene.pool.entries[scene.ids[0]].actor.plans[-1].base.step == 2


def test_who_leaves_and_is_lost_is_not_waited_for_to_stand_still(play: Play):
    async def act(scene: DrainScene) -> None:
        scene.add_spare("c")
        scene.workers[1].stand = Method(asyncio.Event().wait)
        await scene.drain("b")
        await scene.reach_boundary()
        assert not scene.pool.entries[SPARE].actor.plans
        scene.lose(1)
        await settle()
        assert scene.pool.entries[SPARE].actor.plans

    play(act)


def test_a_deadline_that_is_nearer_than_a_step_takes_is_said(play: Play):
    async def act(scene: DrainScene) -> None:
        scene.watch.hear("b", PreemptionNotice(0.5, "f: got 'soon', expected seconds"))
        scene.clock.now_s += 1.0
        await scene.watch.tick()

    scene = play(act)  # its steps took 2 s
    assert scene.text("drain") == (
        "node 10.0.0.b is to be emptied within 0.5 s, which is less than a step takes: its machine "
        "is to be taken back (f: got 'soon', expected seconds); rank 1 leaves it at the end of the "
        "step under way"
    )
    assert not scene.events("drain_late")


def test_a_notice_that_is_taken_back_makes_the_node_as_good_as_any(play: Play):
    async def act(scene: DrainScene) -> None:
        await scene.watch.tick()
        scene.add_spare("d")
        for _ in range(2):
            scene.watch.hear("d", PreemptionNotice(60.0))
        assert scene.control.num_spares == 0
        await scene.drain("d", left_s=80.0)
        scene.watch.hear("d", None)
        assert scene.control.num_spares == 0, "Ray drains it still"
        scene.by_ray.clear()
        await scene.watch.tick()
        assert scene.control.num_spares == 1

    scene = play(act)
    assert scene.text("drain_over") == "node 10.0.0.d is no longer to be emptied"
    assert len(scene.events("drain")) == 1


def test_a_new_coordinator_tells_nothing_again(play: Play):
    async def act(scene: DrainScene) -> None:
        await scene.drain("b")
        scene.watch = scene.open()
        await scene.watch.tick()
        await scene.reach_boundary()
        scene.watch = scene.open()
        await scene.watch.tick()

    scene = play(act)
    assert scene.kinds() == ["epoch", "drain", "epoch", "drained"]


def test_ranks_that_go_with_their_node_while_there_is_no_coordinator_were_lost(play: Play):
    async def act(scene: DrainScene) -> None:
        scene.add_spare("c")
        await scene.drain("b")
        known = scene.control.epoch, scene.control.members
        scene.control.epoch, scene.control.members = None, ()  # the next one has yet to take over
        scene.watch = scene.open()
        await scene.watch.tick()
        assert not scene.events("drained")
        scene.control.epoch, scene.control.members = known
        scene.record.add_event("failure", "lost slot1-1.1", worker=scene.ids[1], rank=1)
        scene.lose(1)
        await settle()
        await scene.watch.tick()

    scene = play(act)
    assert "workers there were lost with their ranks" in scene.text("drain_late")
    assert not scene.events("drained")


def test_where_ranks_have_gone_is_known_to_a_new_coordinator(play: Play):
    async def act(scene: DrainScene) -> None:
        scene.add_spare("c")
        await scene.drain("b")
        await scene.reach_boundary()
        (event,) = scene.events("drained")
        scene.record._lasting.remove(event)  # as if the one before had not come to tell it
        scene.watch = scene.open()
        await scene.watch.tick()

    first, second = play(act).events("drained")
    assert first["text"] == second["text"]
    assert f"rank 1 is on {SPARE}" in second["text"]


def test_what_an_earlier_coordinator_heard_holds_until_it_is_heard_again_or_not(play: Play):
    async def act(scene: DrainScene) -> None:
        scene.watch.hear("d", PreemptionNotice(60.0))
        scene.watch.hear("b", PreemptionNotice(60.0))
        scene.nodes.unfit = UnfitNodes()
        scene.watch = scene.open()
        assert "d" in scene.nodes.unfit, "what is lost there now was to go"
        await scene.watch.tick()
        scene.watch.hear("b", PreemptionNotice(58.0))
        assert scene.nodes.unfit.all() == {"b", "d"}
        scene.clock.now_s += 11.0
        await scene.watch.tick()
        assert scene.nodes.unfit.all() == {"b"}

    scene = play(act)
    assert len(scene.events("drain")) == 2
    assert scene.text("drain_over") == "node 10.0.0.d is no longer to be emptied"


def test_a_node_that_the_run_does_not_use_is_avoided_and_not_told(play: Play):
    async def act(scene: DrainScene) -> None:
        await scene.drain("z")

    scene = play(act)
    assert "z" in scene.nodes.unfit
    assert scene.kinds() == ["epoch"]


def test_that_ray_does_not_tell_changes_nothing(play: Play, monkeypatch: pytest.MonkeyPatch):
    said: list[str] = []
    monkeypatch.setattr(module.logger, "exception", lambda _, what: said.append(what))

    async def act(scene: DrainScene) -> None:
        await scene.drain("b")

        def fail() -> dict[str, float | None]:
            raise AttributeError("Ray has changed")

        monkeypatch.setattr(module, "find_draining_nodes", fail)
        for _ in range(3):
            with pytest.raises(CoordinationError, match=r"it drains .AttributeError: Ray has ch"):
                await scene.watch.tick()
        assert "b" in scene.nodes.unfit

    play(act)
    assert said == ["which nodes it drains"]


def test_a_head_that_is_silent_is_waited_for_no_longer_than_it_takes(
    play: Play, monkeypatch: pytest.MonkeyPatch
):
    answer = threading.Event()
    monkeypatch.setattr(module.logger, "exception", lambda *_: None)

    async def act(scene: DrainScene) -> None:
        def wait() -> dict[str, float | None]:
            assert answer.wait(5.0)
            return {"b": None}

        monkeypatch.setattr(module, "find_draining_nodes", wait)
        scene.watch._draining = RayQuestion(within_s=0.01)
        for _ in range(2):
            with pytest.raises(CoordinationError, match=r"it drains .TimeoutError: Ray's head has"):
                await scene.watch.tick()
        assert scene.nodes.alive, "the rest is looked after"
        answer.set()
        scene.watch._draining._within_s = 5.0
        await scene.watch.tick()
        assert "b" in scene.nodes.unfit

    play(act)


def test_a_node_that_can_t_ask_its_provider_is_told_as_long_as_it_can_t(play: Play):
    async def act(scene: DrainScene) -> None:
        scene.watch.note_trouble("b", "PermissionError: no")
        scene.by_ray["c"] = None
        for _ in range(2):
            with pytest.raises(CoordinationError, match=r"10.0.0.b can't ask .* \(PermissionErr"):
                await scene.watch.tick()
        assert "c" in scene.nodes.unfit, "what others say is heard all the same"
        scene.watch.note_trouble("b", None)
        await scene.watch.tick()
        scene.watch.note_trouble("b", "PermissionError: no")
        del scene.alive["b"]
        await scene.watch.tick()

    play(act)


def test_which_nodes_live_is_known_also_where_ray_does_not_tell_which_it_drains(
    play: Play, monkeypatch: pytest.MonkeyPatch
):
    async def act(scene: DrainScene) -> None:
        monkeypatch.setattr(module, "find_draining_nodes", lambda: 1 / 0)
        monkeypatch.setattr(module.logger, "exception", lambda *_: None)
        with pytest.raises(CoordinationError):
            await scene.watch.tick()

    assert play(act).nodes.alive["b"] == "10.0.0.b"


def test_a_deadline_that_was_misread_at_first_is_gone_by_as_it_is_now(play: Play):
    async def act(scene: DrainScene) -> None:
        scene.watch.hear("b", PreemptionNotice(0.0))
        scene.watch.hear("b", PreemptionNotice(60.0))
        scene.clock.now_s += 61.0
        await scene.watch.tick()

    (late,) = play(act).events("drain_late")
    assert late["text"].endswith("is not empty at its deadline: no step has ended since")
