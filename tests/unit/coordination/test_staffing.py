"""What a loss counts as, and where another worker may be started."""

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.distributed.jobs import make_job
from tests.unit.coordination.fakes import (
    FakeClock,
    FakePool,
    FakeWorker,
    describe,
    guard_of,
    settle,
    until,
)
from trainflow.computation.reports import StepReport
from trainflow.coordination import losses
from trainflow.coordination.background import Background
from trainflow.coordination.isolation_watch import IsolationWatch
from trainflow.coordination.losses import Losses
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.run_state import RunState
from trainflow.coordination.staffing import Staffing
from trainflow.coordination.unfit_nodes import UnfitNodes
from trainflow.coordination.worker_pool import WorkerEntry
from trainflow.epochs import EpochId


class Scene:
    """Bundles 0 and 1, on the nodes a and b."""

    def __init__(self, directory: Path, minimum: int = 1):
        self.placed = {0: "a", 1: "b"}
        self.unfit = UnfitNodes()
        self.spawned: list[int] = []
        self.record = RunRecord(directory, FakeClock())
        pool: Any = FakePool()
        pool.bundle_nodes = lambda: self.placed
        pool.spawn = self.spawn
        nodes: Any = SimpleNamespace(unfit=self.unfit, host_of=lambda node: f"10.0.0.{node}")
        nodes.alive = {}
        nodes.quiet_nodes = list
        self.nodes = nodes
        self.clock = FakeClock()
        failures = {"max_failures": 3, "max_preemptions": 1, "isolate_after": 3}
        job = make_job(failures=failures | {"probe_after_s": 10.0}, workers={"minimum": minimum})
        self.isolation = IsolationWatch(job, pool, nodes, self.record, self.clock)
        self.guard = guard_of(self.record, self.clock)
        parts = (nodes, self.isolation, self.record, self.guard)
        self.staffing = Staffing(job, pool, *parts)
        self.pool = pool

    async def spawn(self, bundle: int, serial: str, *, rehearse: bool) -> Any:
        self.spawned.append(bundle)
        return SimpleNamespace(worker_id=f"slot{bundle}-{serial}")

    def fit(self) -> list[int]:
        return [bundle for bundle in (0, 1, 2) if self.staffing.may_start(bundle)]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_any_bundle_will_do_while_all_nodes_are_well(scene: Scene):
    assert scene.fit() == [0, 1, 2], "one that isn't placed is waited for by Ray"


def test_none_on_a_node_that_is_to_go_nor_one_that_may_come_there(scene: Scene):
    scene.unfit.draining["b"] = 5.0
    assert scene.fit() == [0]
    scene.placed = {0: "a", 1: "c", 2: "a"}
    assert scene.fit() == [0, 1, 2]


def test_none_on_a_node_whose_keeper_is_not_heard(scene: Scene):
    scene.unfit.unheard |= {"b"}
    assert scene.fit() == [0]


def test_none_on_a_node_that_is_quiet_until_it_is_heard_or_given_up(scene: Scene):
    """What was on it died with it, perhaps, and Ray has yet to find that."""
    scene.nodes.quiet_nodes = lambda: ["b"]
    assert scene.fit() == [0, 2]
    scene.unfit.draining |= {"a": 5.0, "b": 5.0}
    assert scene.fit() == [0, 2], "whatever the others are"
    scene.nodes.quiet_nodes = list
    assert scene.fit() == [0, 1, 2]


def test_where_no_node_is_better_any_will_do(scene: Scene):
    scene.unfit.draining |= {"a": 5.0, "b": 5.0}
    assert scene.fit() == [0, 1, 2]


def test_a_world_below_its_minimum_takes_nodes_that_are_to_go(tmp_path: Path):
    scene = Scene(tmp_path, minimum=3)
    scene.placed = {0: "a", 1: "a", 2: "b", 3: "c"}
    scene.unfit.draining |= {"b": 5.0}
    scene.unfit.unheard |= {"c"}
    assert [scene.staffing.may_start(bundle) for bundle in range(4)] == [True, True, True, False]
    scene.placed[3] = "d"
    assert [scene.staffing.may_start(bundle) for bundle in range(4)] == [True, True, False, True]


def isolate(scene: Scene, node_id: str) -> None:
    for number in range(3):
        scene.record.add_event("failure", "lost", worker=f"w{number}", host=f"10.0.0.{node_id}")
        scene.isolation.on_failure(node_id)


def test_an_isolated_node_that_is_gone_gets_no_worker_before_it_is_seen_again(scene: Scene):
    """Ray has placed its bundle before it was looked which nodes there are."""
    hosts = {"a": "10.0.0.a", "b": "10.0.0.b"}
    scene.nodes.host_of = hosts.get
    scene.nodes.alive = dict(hosts)
    isolate(scene, "b")
    assert scene.unfit.isolated == {"b"}
    del scene.nodes.alive["b"]
    scene.isolation.tick()
    scene.placed = {0: "a"}
    assert scene.fit() == [0], "Ray has to place it first"
    scene.placed = {0: "a", 1: "b2"}
    assert scene.fit() == [0], "nobody knows which machine that is"
    scene.nodes.alive["b2"] = hosts["b2"] = "10.0.0.b"
    assert scene.fit() == [0], "its pause is not over"
    scene.clock.now_s += 10.0
    assert scene.fit() == [0, 1]
    assert scene.fit() == [0], "one is enough"


def test_an_isolated_node_that_has_just_come_back_takes_no_more(scene: Scene):
    scene.nodes.host_of = {"a": "10.0.0.a", "b": "10.0.0.b", "b2": "10.0.0.b"}.get
    scene.nodes.alive = {"a": "10.0.0.a", "b": "10.0.0.b"}
    isolate(scene, "b")
    assert [scene.staffing.takes_more(node) for node in ("a", "b", "b2")] == [True, False, False]


def test_another_node_takes_the_worker_of_one_that_is_isolated_and_gone(scene: Scene):
    scene.nodes.alive = {"a": "10.0.0.a", "b": "10.0.0.b"}
    isolate(scene, "b")
    scene.nodes.alive = {"a": "10.0.0.a", "c": "10.0.0.c"}
    scene.isolation.tick()
    scene.placed = {0: "a", 1: "c"}
    assert scene.fit() == [0, 1]


def test_one_that_is_given_up_before_it_began_is_told_of_and_is_no_failure(scene: Scene):
    scene.pool.entries["slot2-1.r1"] = entry = WorkerEntry("slot2-1.r1", None)
    scene.pool.drop = scene.pool.entries.pop
    scene.staffing.withdraw(entry)
    (event,) = scene.record.events_since(0)
    assert (event["kind"], event["data"]) == ("withdrawn", {"worker": "slot2-1.r1"})
    assert (scene.pool.entries, scene.record.num_failures) == ({}, 0)


@pytest.mark.parametrize("outcome", ["goes on", "is to stop", "is needed", "ends"])
def test_a_replacement_waits_for_a_node_that_is_well(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, outcome: str
):
    monkeypatch.setattr(losses, "_FIT_AGAIN_AFTER_S", 0.0)
    monkeypatch.setattr("trainflow.coordination.staffing._RESPAWN_AFTER_S", 0.0)
    scene.unfit.draining["b"] = 5.0
    looks: list[int] = []
    may_start = scene.staffing.may_start
    monkeypatch.setattr(scene.staffing, "may_start", lambda b: looks.append(b) or may_start(b))

    async def settled() -> None:
        return None

    async def act() -> None:
        state = RunState.WAITING if outcome == "is needed" else RunState.RUNNING
        control: Any = SimpleNamespace(wait_settled=settled, incarnation=1, state=state)
        superior: Any = None
        background = Background(pytest.fail)
        parts = (scene.pool, scene.record, control, scene.staffing, background, superior)
        lost = Losses(*parts)
        lost.replace(1)
        await until(lambda: len(looks) > 3)
        assert scene.spawned == []
        lost.replaces = outcome == "goes on"
        if outcome == "ends":
            lost.end()
        scene.placed[1] = "c"
        if outcome == "is to stop":
            await settle()
            assert background._tasks, "it may be needed yet"
            lost.end()
        await until(lambda: not background._tasks)

    asyncio.run(act())
    assert scene.spawned == ([1] if outcome in {"goes on", "is needed"} else [])


def lose(scene: Scene, worker_id: str, node_id: str | None) -> None:
    """Lose a worker that was warm on a node, or one that has said nothing yet."""
    description = None if node_id is None else replace(describe(worker_id), node_id=node_id)
    scene.pool.drop = lambda _: None
    scene.nodes.fence = lambda *_: None
    scene.staffing.drop(WorkerEntry(worker_id, None, description), "killed", None, 1)


def pause_s(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> float:
    """Return for how long the start of another worker of bundle 0 would wait."""
    slept_s: list[float] = []

    async def note(delay_s: float) -> None:
        slept_s.append(delay_s)

    monkeypatch.setattr("trainflow.coordination.staffing.asyncio.sleep", note)
    asyncio.run(scene.staffing.pause(0))
    return slept_s[0]


def start_and_lose(scene: Scene, *, warm_s: float | None, rank: int | None = None) -> None:
    """Have a worker of bundle 0 be lost so long after it was warm; None: it never was."""
    entry = WorkerEntry(f"slot0-1.r{len(scene.record.events_since(0))}", None)
    scene.pool.drop = lambda _: None
    scene.nodes.fence = lambda *_: None
    if warm_s is not None:
        entry.description = replace(describe(entry.worker_id), node_id="a")
        scene.staffing.on_ready(entry, "a")
        scene.clock.now_s += warm_s
    scene.staffing.drop(entry, "killed", rank, 1)


def test_the_more_starts_in_a_row_were_in_vain_the_longer_the_next_one_waits(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
):
    waits_s: list[float] = []
    for warm_s in (None, 1.0, 59.0, None):
        start_and_lose(scene, warm_s=warm_s)
        waits_s.append(pause_s(scene, monkeypatch))
    assert waits_s == [3.0, 6.0, 12.0, 24.0]
    for _ in range(20):
        start_and_lose(scene, warm_s=1.0)
    assert pause_s(scene, monkeypatch) == 300.0


def test_that_starts_are_in_vain_is_told_and_the_next_coordinator_waits_as_long(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
):
    for _ in range(3):
        start_and_lose(scene, warm_s=None)
    told = [event for event in scene.record.events_since(0) if event["kind"] == "failure"]
    texts = [event["text"] for event in told]
    assert [text.partition("killed")[2] for text in texts] == [
        "",
        "; 2 starts in a row were in vain: the next one waits 6 s",
        "; 3 starts in a row were in vain: the next one waits 12 s",
    ]
    following = Scene(scene.record.directory)
    assert pause_s(following, monkeypatch) == 12.0
    found = WorkerEntry("slot0-2.r1", None, replace(describe("slot0-2.r1"), node_id="a"))
    following.pool.drop, following.nodes.fence = (lambda *_: None,) * 2
    following.staffing.drop(found, "killed", None, 2)
    assert pause_s(following, monkeypatch) == 12.0, "for how long it was warm nobody knows"
    start_and_lose(following, warm_s=None)
    assert pause_s(following, monkeypatch) == 24.0
    following.record.add_event("submitted", "launched from nothing")
    assert pause_s(following, monkeypatch) == 1.5


def test_spares_that_are_lost_while_members_live_are_no_failures(scene: Scene):
    scene.pool.drop, scene.nodes.fence = (lambda *_: None,) * 2
    for number in range(9):
        entry = WorkerEntry(f"slot0-1.r{number}", None)
        scene.staffing.drop(entry, "killed", None, 1, members_live=True)
    losses = scene.record.losses
    assert (len(losses.failed_at_s), len(losses.spares_lost_at_s)) == (0, 9)
    assert scene.staffing.find_overspent() is None
    assert scene.record.events_since(0)[-1]["data"]["spare"]
    again = RunRecord(scene.record.directory, FakeClock())
    assert (again.num_failures, len(again.losses.spares_lost_at_s)) == (0, 9)
    for number in range(4):
        assert scene.staffing.find_overspent() is None
        member = WorkerEntry(f"slot1-1.r{number}", None)
        scene.staffing.drop(member, "killed", 1, 1, members_live=True)
    assert scene.staffing.find_overspent() == "failures.max_failures = 3 failures"


def test_spares_count_against_the_node_that_they_are_lost_on(scene: Scene):
    scene.pool.drop, scene.nodes.fence = (lambda *_: None,) * 2
    for number in range(3):
        entry = WorkerEntry(f"slot1-1.r{number}", None)
        scene.staffing.drop(entry, "killed", None, 1, members_live=True)
    assert "isolate" in [event["kind"] for event in scene.record.events_since(0)]


@pytest.mark.parametrize(("warm_s", "rank"), [(60.0, None), (1.0, 2)], ids=["it stood by", "rank"])
def test_one_that_was_of_use_is_made_up_for_at_once(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, warm_s: float, rank: int | None
):
    start_and_lose(scene, warm_s=1.0)
    start_and_lose(scene, warm_s=warm_s, rank=rank)
    assert pause_s(scene, monkeypatch) == 1.5


def test_what_goes_with_a_node_that_was_to_go_is_no_failure(scene: Scene):
    scene.unfit.draining["b"] = 5.0
    lose(scene, "slot0-1.0", "a")
    lose(scene, "slot1-1.1", "b")
    losses = scene.record.losses
    assert (len(losses.failed_at_s), len(losses.preempted_at_s)) == (1, 1)
    assert scene.staffing.find_overspent() is None
    lose(scene, "slot1-1.r1", None)  # it was starting in its bundle there
    assert scene.staffing.find_overspent() == "failures.max_preemptions = 1 preemptions"
    again = RunRecord(scene.record.directory, FakeClock()).losses
    assert again.preempted_at_s == losses.preempted_at_s
    assert again.failed_on == {"10.0.0.a": [1000.0]}


def test_so_too_if_no_coordinator_was_there_when_it_went(scene: Scene):
    """What was lost elsewhere meanwhile counts, also against its node."""
    for number, node_id in enumerate("aaac"):
        contact = replace(describe(f"slot{number}-1.0"), node_id=node_id, host=f"10.0.0.{node_id}")
        scene.record.contacts.note(contact)
    scene.unfit.draining["c"] = 5.0
    members = [f"slot{number}-1.0" for number in range(4)]
    scene.record.add_event("epoch", "the first", epoch="1.1", members=[*members, "slot9-1.9"])
    scene.staffing.tell_missing(())
    losses = scene.record.losses
    assert (len(losses.failed_at_s), len(losses.preempted_at_s)) == (4, 1)
    assert losses.failed_on == {"10.0.0.a": [1000.0] * 3}
    told = [each["data"] for each in scene.record.events_since(0) if each["kind"] == "failure"]
    assert [each["node"] for each in told] == ["a", "a", "a", "c", None]
    assert [each["host"] for each in told] == ["10.0.0.a"] * 3 + ["10.0.0.c", None]
    assert [each["preempted"] for each in told] == [False] * 3 + [True, False]
    assert "isolate" in [event["kind"] for event in scene.record.events_since(0)]


def test_each_budget_is_its_own(scene: Scene):
    for number in range(4):
        assert scene.staffing.find_overspent() is None
        lose(scene, f"slot{number}-1.0", "ab"[number % 2])
    assert scene.staffing.find_overspent() == "failures.max_failures = 3 failures"
    scene.record.losses.failed_at_s.clear()
    assert scene.staffing.find_overspent() is None


def test_a_step_that_hangs_in_epoch_after_epoch_is_given_up(scene: Scene):
    def hang(number: int) -> None:
        data = {"worker": "slot1-1.0", "stands_in": "step", "after_step": 0}
        scene.record.add_event("hang", "it stands still", epoch=f"1.{number}", **data)

    for number in range(10):
        hang(number)
        assert scene.staffing.find_overspent() is None
    hang(10)
    expected = "failures.max_hangs = 10 epochs in a row with a hang after step 0"
    assert scene.staffing.find_overspent() == expected


def test_failures_count_until_a_step_is_committed(scene: Scene):
    scene.record.losses.failed_at_s.extend([-1e4] * 4)
    assert scene.staffing.find_overspent() == "failures.max_failures = 3 failures"
    counts: dict[str, Any] = {"weight": 8.0, "compute_s": 0.3, "wait_s": 0.2, "wire_bytes": 0}
    values = {"committed_at_s": 1e3, "applied": True, "loss": 1.0, "grad_norm": 1.0, "lr": 0.1}
    step = StepReport(step=1, epoch=EpochId(1, 1), rank=0, world_size=2, **values | counts)
    scene.record.add_step(step)
    assert scene.staffing.find_overspent() is None


def test_an_isolated_node_gets_one_worker_to_show_that_it_is_well(scene: Scene):
    for number in range(3):
        lose(scene, f"slot1-1.r{number}", "b" if number else None)
    assert scene.record.events_since(0)[-1]["text"] == (
        "node 10.0.0.b takes no more ranks: 3 failures there or more; it is tried in 10 s"
    )
    scene.nodes.alive = {"a": "10.0.0.a", "b": "10.0.0.b"}
    scene.isolation.tick()
    scene.placed = {0: "a", 1: "b", 2: "b"}
    assert scene.fit() == [0]
    scene.clock.now_s += 10.0
    scene.unfit.draining["b"] = 5.0
    assert scene.fit() == [0], "it is to go besides"
    del scene.unfit.draining["b"]
    assert scene.fit() == [0, 1], "one alone"
    assert scene.fit() == [0]
    scene.staffing.on_ready(WorkerEntry("slot1-1.r4", None), "b")
    assert scene.fit() == [0, 1, 2]


def test_an_isolated_node_whose_probe_was_taken_with_a_notice_is_tried_again(scene: Scene):
    for number in range(3):
        lose(scene, f"slot1-1.r{number}", "b")
    scene.nodes.alive = {"a": "10.0.0.a", "b": "10.0.0.b"}
    scene.isolation.tick()
    scene.clock.now_s += 10.0
    assert scene.fit() == [0, 1]
    assert scene.fit() == [0], "it is tried"
    scene.unfit.draining["b"] = 5.0
    lose(scene, "slot1-1.r4", "b")
    del scene.unfit.draining["b"]
    assert scene.fit() == [0, 1]


def test_no_worker_is_started_that_the_run_does_not_need(scene: Scene):
    workers = [FakeWorker(f"slot{number}-1.0", None) for number in range(3)]
    scene.pool.entries |= FakePool(workers).entries
    assert scene.fit() == [], "there are three, as many as wanted"
    scene.unfit.draining["elsewhere"] = 5.0
    assert scene.fit() == []
    scene.pool.entries["slot1-1.0"].description = replace(describe("slot1-1.0"), node_id="b")
    scene.unfit.draining["b"] = 5.0
    assert scene.fit() == [0], "one of them is on a node that is to go"


def test_where_ray_does_not_tell_which_bundle_is_where_others_are_started_all_the_same(
    scene: Scene,
):
    def refuse() -> dict[int, str]:
        raise RuntimeError("no answer from the head")

    scene.pool.bundle_nodes = refuse
    lose(scene, "slot0-1.0", None)
    lose(scene, "slot1-1.1", "b")
    scene.unfit.draining["b"] = 5.0
    assert scene.fit() == [0, 1, 2]
    kinds = [event["kind"] for event in scene.record.events_since(0)]
    assert kinds == ["detector_off", "failure", "failure"]


def test_workers_of_a_node_that_are_none_of_the_run_s_are_ended(scene: Scene):
    ended: list[tuple[int, str, str]] = []
    scene.nodes.fence = lambda *order: ended.append(order)
    scene.pool.entries |= FakePool([FakeWorker("slot0-1.0", None)]).entries
    scene.staffing.end_strangers("a", ["slot0-1.0", "slot1-1.1"], 3)
    assert ended == [(3, "a", "slot1-1.1")]


@pytest.mark.parametrize("call", ["on_ready", "on_failure", "may_start"])
def test_an_isolation_that_fails_is_told_once_and_keeps_nobody_from_being_replaced(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, call: str
):
    scene.nodes.alive = {"a": "10.0.0.a", "b": "10.0.0.b"}
    isolate(scene, "b")
    monkeypatch.setattr(scene.isolation, call, lambda _node: 1 / 0)
    for _ in range(2):
        scene.staffing.on_ready(WorkerEntry("slot0-1.0", None), "a")
        lose(scene, "slot0-1.0", "a")
        assert scene.fit() == ([0, 1] if call == "may_start" else [0])
    (off,) = scene.guard.describe()
    assert off["detector"] == "isolation"
    told = [event for event in scene.record.events_since(0) if event["kind"] == "detector_off"]
    assert len(told) == 1
