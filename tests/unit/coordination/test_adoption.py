"""A new coordinator takes over from one that was killed, at any moment of its life."""

import asyncio
import threading
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import RayError

from tests.distributed.jobs import make_job
from tests.unit.coordination.fakes import FakePool, FakeWorker, describe, settle
from tests.unit.coordination.test_epoch_control import FRESH, Scene
from tests.unit.coordination.test_run_record import STEP
from trainflow.coordination import adoption, names
from trainflow.coordination.adoption import Estate
from trainflow.coordination.copy_targets import CopyTargets
from trainflow.coordination.epoch_control import EpochControl
from trainflow.coordination.messages import Holding
from trainflow.coordination.ray_drains import LivingNode
from trainflow.coordination.run_state import RunState
from trainflow.coordination.unfit_nodes import UnfitNodes
from trainflow.epochs import (
    EpochId,
    EpochSpec,
    MemberReport,
    RecoveryPlan,
    StoredState,
    Version,
)
from trainflow.errors import CoordinationError

IDS = ("slot0-1.0", "slot1-1.1", "slot2-1.2")
SPEC = EpochSpec(EpochId(1, 3), IDS, "127.0.0.1", 1)


class FakeNodes:
    """Keepers that have promised ``earlier``; one in ``absent`` doesn't answer."""

    def __init__(self, earlier: Sequence[int], absent: int = 0, dead: int = 0):
        self.unfit = UnfitNodes()
        self.alive: dict[str, str] = {}
        self.earlier = list(earlier)
        self.num_keepers = len(self.earlier) + absent
        self.num_dead = dead
        self.asked: list[int] = []

    async def promise(self, incarnation: int, timeout_s: float) -> list[int]:
        self.asked.append(incarnation)
        before = list(self.earlier)
        self.earlier = [max(incarnation, promised) for promised in before]
        return before

    def note_alive(self, alive: dict[str, str]) -> None:
        """Nobody asks."""

    def host_of(self, node_id: str) -> str | None:
        return None

    def forget_dead(self) -> None:
        self.num_keepers -= self.num_dead
        self.num_dead = 0

    async def ensure(self, node_ids: set[str], there: Collection[str] = ()) -> None:
        """Every node has one."""

    async def ask_holdings(self, timeout_s: float, **_: Any) -> list[Holding]:
        return []

    def send_copies(self, copies: dict[str, CopyTargets]) -> None:
        """There is nothing to copy."""


def running(worker_id: str, **others: Any) -> Any:
    return describe(worker_id, **{"spec": SPEC, "has_begun": True} | others)


def adopt(scene: Scene, nodes: FakeNodes) -> Estate:
    scene.pool.entries.clear()
    found = {worker.worker_id: worker for worker in scene.workers}
    any_pool: Any = scene.pool
    any_nodes: Any = nodes
    parts = any_pool, any_nodes, scene.control, scene.record, scene.clock
    return asyncio.run(adoption.adopt(found, *parts))


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setattr(adoption, "_ANSWER_WITHIN_S", 0.05)
    monkeypatch.setattr(adoption, "_LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(adoption, "_ANSWER_AT_LAST_WITHIN_S", 0.5)
    monkeypatch.setattr(adoption, "find_alive_nodes", dict[str, Any])
    scene = Scene(tmp_path, FRESH)
    scene.pool = FakePool(num_bundles=3)
    any_pool: Any = scene.pool
    scene.control._pool = scene.control.candidacy._pool = any_pool
    for worker in scene.workers:
        worker.description = running(worker.worker_id)
    return scene


def test_an_intact_epoch_goes_on(scene: Scene):
    estate = adopt(scene, FakeNodes([1, 1, 1]))
    assert estate == Estate({}, frozenset(), frozenset())
    assert scene.control.state is RunState.RUNNING
    assert (scene.control.epoch, scene.control.incarnation) == (SPEC.epoch, 2)


@pytest.mark.parametrize(
    "others",
    [
        {"failure": "connection reset"},
        {"standing": MemberReport(IDS[1], Version(4, SPEC.epoch))},
        {"has_begun": False},
        {"spec": EpochSpec(EpochId(1, 2), IDS, "127.0.0.1", 1)},
    ],
    ids=["its group failed", "it is parked", "it was not released", "it is behind"],
)
def test_an_epoch_with_a_member_that_does_not_train_is_formed_anew(scene: Scene, others: Any):
    scene.workers[1].description = running(IDS[1], **others)
    adopt(scene, FakeNodes([1, 1, 1]))
    assert scene.control.state is RunState.RECOVERING
    assert scene.control.members == IDS


def test_a_member_killed_while_the_others_are_asked_breaks_the_epoch(scene: Scene):
    """Its description is good and known; its death is heard before the epoch is taken over."""
    slow = scene.workers[2]

    async def answer_late() -> Any:
        scene.pool.entries.pop(IDS[0])
        return running(IDS[2])

    slow.describe = type(slow.describe)(answer_late)
    adopt(scene, FakeNodes([1, 1, 1]))
    assert scene.control.state is RunState.RECOVERING


def test_the_office_is_taken_before_anyone_is_asked(scene: Scene):
    nodes = FakeNodes([1, 1, 1])
    asked_before: list[int] = []
    for worker in scene.workers:
        described = worker.description

        async def answer(described: Any = described) -> Any:
            asked_before.append(scene.control.incarnation)
            return described

        worker.describe = type(worker.describe)(answer)
    adopt(scene, nodes)
    assert asked_before == [2, 2, 2]


def note_warm(scene: Scene, *numbers: int) -> None:
    """Let these have been warm in an earlier coordinator's life."""
    for number in numbers:
        scene.record.contacts.note(describe(IDS[number]))


def form_on_record(scene: Scene, epoch: EpochId, members: Sequence[str] = IDS) -> None:
    scene.record.add_event("epoch", "", epoch=str(epoch), base="0@0.0", members=list(members))


def test_who_is_slow_to_answer_keeps_its_rank(scene: Scene):
    """So too if it was slow while there was a coordinator: its pulse and its node's lease judge."""
    note_warm(scene, 0, 1, 2)
    scene.workers[1].description = None
    estate = adopt(scene, FakeNodes([1, 1, 1]))
    assert estate == Estate({}, frozenset({IDS[1]}), frozenset())
    assert scene.control.state is RunState.RUNNING
    assert scene.control.members == IDS
    entry = scene.pool.entries[IDS[1]]
    assert entry.is_on(f"node of {IDS[1]}"), "its node's lease is its own"


def test_of_an_epoch_that_is_broken_a_slow_member_is_a_member_of_the_next(scene: Scene):
    note_warm(scene, 0, 1, 2)
    scene.workers[1].description = None
    scene.workers[0].description = running(IDS[0], failure="connection reset")
    adopt(scene, FakeNodes([1, 1, 1]))
    assert scene.control.state is RunState.RECOVERING
    available = scene.control.candidacy.available(scene.control.members)
    assert {each.worker_id for each in available} == {*IDS}


def test_members_are_watched_before_they_have_answered(scene: Scene):
    """One that died with its node and the coordinator is known to be gone within a moment."""
    note_warm(scene, 0, 1, 2)
    scene.workers[1].description = None
    describe_entry, watched = scene.pool.describe, list[str]()

    def watch(description: Any) -> None:
        watched.append(description.worker_id)
        describe_entry(description)
        if description.worker_id == IDS[1]:
            del scene.pool.entries[IDS[1]]

    any_pool: Any = scene.pool
    any_pool.describe = watch
    estate = adopt(scene, FakeNodes([1, 1, 1]))
    assert watched[:3] == [*IDS]
    assert estate == Estate({}, frozenset(), frozenset())
    assert scene.control.state is RunState.RECOVERING


def test_a_silent_member_of_whom_nothing_is_known_is_waited_for_and_then_lost(scene: Scene):
    starting = FakeWorker("slot3-1.3", None)
    starting.description = None
    scene.workers[1].description = None
    scene.workers.append(starting)
    estate = adopt(scene, FakeNodes([1, 1, 1]))
    assert estate.lost == {IDS[1]: "it did not answer the new coordinator"}
    assert estate.unheard == {"slot3-1.3"}
    assert scene.control.state is RunState.RECOVERING


def answer_once(scene: Scene, number: int, reached: asyncio.Event) -> None:
    """Have a worker answer late."""
    worker = scene.workers[number]
    described = worker.description

    async def answer() -> Any:
        await reached.wait()
        return described

    worker.describe = type(worker.describe)(answer)


def test_nothing_is_taken_over_before_one_of_the_newest_epoch_has_answered(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
):
    """A spare may have been in an older one."""
    note_warm(scene, 0, 1)
    form_on_record(scene, SPEC.epoch, IDS[:2])
    older = EpochSpec(EpochId(1, 2), IDS, "127.0.0.1", 1)
    scene.workers[2].description = running(IDS[2], spec=older)
    reached = asyncio.Event()
    answer_once(scene, 0, reached)
    answer_once(scene, 1, asyncio.Event())
    num_looks = 0

    def is_enough(*heard: Any) -> bool:
        nonlocal num_looks
        num_looks += 1
        if num_looks == 3:
            reached.set()
        return enough(*heard)

    enough = adoption._is_enough
    monkeypatch.setattr(adoption, "_is_enough", is_enough)
    estate = adopt(scene, FakeNodes([1, 1, 1]))
    assert scene.control.epoch == SPEC.epoch
    assert scene.control.members == IDS
    assert estate.unheard == {IDS[1]}
    assert num_looks < 10, "once one has answered nobody else is waited for"


@pytest.mark.parametrize("old", [None, EpochId(1, 2)], ids=["nobody answers", "a spare does"])
def test_where_all_members_are_silent_their_epoch_is_known_from_the_record(
    scene: Scene, old: EpochId | None
):
    """Whatever holds all of them up: none is to blame, and none loses its rank."""
    note_warm(scene, 0, 1, 2)
    form_on_record(scene, SPEC.epoch)
    for worker in scene.workers:
        worker.description = None
    if old is not None:
        spare = FakeWorker("slot3-1.3", None)
        spare.description = running("slot3-1.3", spec=EpochSpec(old, IDS, "127.0.0.1", 1))
        scene.workers.append(spare)
    estate = adopt(scene, FakeNodes([1, 1, 1]))
    assert estate == Estate({}, frozenset(IDS), frozenset())
    assert (scene.control.epoch, scene.control.members) == (SPEC.epoch, IDS)
    assert scene.control.state is RunState.RUNNING


def test_an_epoch_on_record_whose_members_are_all_gone_is_over(scene: Scene):
    form_on_record(scene, EpochId(1, 9), ["slot7-1.r7"])
    adopt(scene, FakeNodes([1, 1, 1]))
    assert scene.control.epoch == SPEC.epoch


def test_where_nobody_is_left_but_a_spare_the_epoch_on_record_is_broken(scene: Scene):
    """The next one begins as after any loss, and waits for no more workers than it needs."""
    note_warm(scene, 0, 1, 2)
    form_on_record(scene, SPEC.epoch)
    spare = FakeWorker("slot3-1.3", None)
    spare.description = describe("slot3-1.3")
    scene.workers[:] = [spare]
    adopt(scene, FakeNodes([1, 1, 1]))
    assert (scene.control.epoch, scene.control.members) == (SPEC.epoch, IDS)
    assert scene.control.state is RunState.RECOVERING


@pytest.mark.parametrize("has_any", [True, False])
def test_keepers_are_had_wherever_a_bundle_is(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, *, has_any: bool
):
    asked: list[tuple[set[str], set[str]]] = []

    async def find(_job_id: str) -> set[str]:
        return {"a"} if has_any else set()

    async def ensure(node_ids: set[str], there: set[str]) -> None:
        asked.append((node_ids, there))

    async def look_at_bundles() -> None:
        placed.update({0: "a", 1: "b"} if has_any else {})

    placed: dict[int, str] = {}
    monkeypatch.setattr(adoption, "find_keeper_nodes", find)
    nodes: Any = SimpleNamespace(ensure=ensure, num_keepers=2 if has_any else 0)
    staffing: Any = SimpleNamespace(look_at_bundles=look_at_bundles, find_placed=lambda: placed)
    assert asyncio.run(adoption.find_nodes("job-1", staffing, nodes)) is has_any
    assert asked == [({"a", "b"}, {"a"}) if has_any else (set(), set())]


BACK = RecoveryPlan(SPEC, Version(4, EpochId(0, 0)), stored=StoredState("/store", 4))


def kinds_of(scene: Scene) -> list[str]:
    return [event["kind"] for event in scene.record.events_since(0)]


@pytest.mark.parametrize("lost", [False, True], ids=["all train", "one died since"])
def test_an_epoch_that_began_though_nobody_lived_to_say_so_is_on_record_all_the_same(
    scene: Scene, *, lost: bool
):
    """Else steps of the history that it goes back from would count, and its own not."""
    scene.record.add_event("epoch", "", epoch="1.2", base="0@0.0", members=list(IDS))
    scene.record.add_step(replace(STEP, step=9, epoch=EpochId(1, 2)))
    for worker in scene.workers:
        worker.description = running(worker.worker_id, plan=BACK)
    if lost:
        del scene.workers[2]
    adopt(scene, FakeNodes([1, 1, 1]))
    assert kinds_of(scene)[1:] == ["resumed", "epoch", *([] if lost else ["taken_over"])]
    assert scene.record.beginnings[-1] == (SPEC.epoch, 4)
    assert scene.record.losses.members == IDS
    assert scene.record.last_step == 4
    scene.record.add_step(replace(STEP, step=5, epoch=SPEC.epoch))
    assert scene.record.last_step == 5
    assert scene.record.is_void(Version(9, EpochId(1, 2)))


@pytest.mark.parametrize("on_record", [True, False])
def test_one_that_is_on_record_or_that_nobody_was_released_into_is_not_told_of(
    scene: Scene, *, on_record: bool
):
    if on_record:
        form_on_record(scene, SPEC.epoch)
    for worker in scene.workers:
        released = {"plan": BACK} if on_record else {"has_begun": False}
        worker.description = running(worker.worker_id, **released)
    before = kinds_of(scene)
    adopt(scene, FakeNodes([1, 1, 1]))
    assert kinds_of(scene) == [*before, *(["taken_over"] if on_record else [])]


NEXT = EpochSpec(EpochId(1, 4), ("slot3-1.3", "slot4-1.4"), "127.0.0.1", 1)


@pytest.mark.parametrize(
    ("on_record", "begun", "counts"),
    [(SPEC.epoch, 0, SPEC), (SPEC.epoch, 1, NEXT), (EpochId(1, 2), 0, NEXT)],
    ids=["nobody has begun", "one has", "who left did so long before"],
)
def test_while_all_are_to_leave_those_who_hold_the_state_stay_in(
    scene: Scene, on_record: EpochId, begun: int, counts: EpochSpec
):
    """They stand at the boundary for an epoch that was never begun: who comes holds nothing."""
    form_on_record(scene, on_record)
    for worker in scene.workers:
        standing = MemberReport(worker.worker_id, Version(4, SPEC.epoch))
        worker.description = running(worker.worker_id, standing=standing)
    for number, worker_id in enumerate(NEXT.members):
        worker = FakeWorker(worker_id, None)
        worker.description = running(worker_id, spec=NEXT, has_begun=number < begun)
        scene.workers.append(worker)
    adopt(scene, FakeNodes([1, 1, 1]))
    assert (scene.control.epoch, scene.control.members) == (counts.epoch, counts.members)
    assert scene.control.state is RunState.RECOVERING


def test_an_epoch_that_all_are_to_leave_goes_on_to_the_end_of_its_step(scene: Scene):
    form_on_record(scene, SPEC.epoch)
    for worker_id in NEXT.members:
        worker = FakeWorker(worker_id, None)
        worker.description = running(worker_id, spec=NEXT, has_begun=False)
        scene.workers.append(worker)
    adopt(scene, FakeNodes([1, 1, 1]))
    assert (scene.control.epoch, scene.control.members) == (SPEC.epoch, IDS)
    assert scene.control.state is RunState.RUNNING


def test_one_that_died_while_it_was_starting_is_left_to_who_heard_of_it(scene: Scene):
    starting = FakeWorker("slot3-1.3", None)

    async def die() -> Any:
        scene.pool.entries.pop("slot3-1.3")
        await asyncio.Event().wait()

    starting.describe = type(starting.describe)(die)
    scene.workers.append(starting)
    assert adopt(scene, FakeNodes([1, 1, 1])) == Estate({}, frozenset(), frozenset())


def test_a_worker_whose_training_is_over_is_lost(scene: Scene):
    scene.workers[1].description = running(IDS[1], returned=True)
    assert adopt(scene, FakeNodes([1, 1, 1])).lost.keys() == {IDS[1]}
    assert scene.control.state is RunState.RECOVERING


def test_members_that_have_left_as_they_were_asked_to_stop_are_not_lost(scene: Scene):
    scene.record.add_event("stopping", "asked to stop")
    for worker in scene.workers[:2]:
        worker.description = running(worker.worker_id, returned=True)
    assert not adopt(scene, FakeNodes([1, 1, 1])).lost
    assert scene.control.is_whole
    assert scene.pool.left == {*IDS[:2]}


def test_a_bundle_without_a_worker_is_vacant(scene: Scene):
    del scene.workers[1]
    assert adopt(scene, FakeNodes([1, 1, 1])).vacant == {1}


def test_members_that_have_finished_are_known(scene: Scene):
    for worker in scene.workers:
        standing = MemberReport(worker.worker_id, Version(9, SPEC.epoch), finished=True)
        worker.description = running(worker.worker_id, standing=standing)
    adopt(scene, FakeNodes([1, 1, 1]))
    assert scene.control.all_finished()


def take_office(scene: Scene, nodes: FakeNodes) -> None:
    any_nodes: Any = nodes
    asyncio.run(adoption.take_office(any_nodes, scene.control, scene.clock))


def test_the_incarnation_is_above_every_promise(scene: Scene):
    nodes = FakeNodes([4, 2, 1])
    take_office(scene, nodes)
    assert scene.control.incarnation == 5
    assert nodes.asked == [2, 5]


def test_a_later_attempt_takes_office_above_all_epochs_of_the_earlier_ones(scene: Scene):
    scene.record.add_event("epoch", "epoch 3.7", epoch="3.7", base="0@0.0", members=[])
    parts: Any = (scene.pool, scene.record, scene.kept)
    control = EpochControl(make_job(), *parts, scene.clock, superior=scene.superior)
    any_nodes: Any = FakeNodes([0, 0, 0])  # of Keepers that have promised nobody anything
    asyncio.run(adoption.take_office(any_nodes, control, scene.clock))
    assert control.incarnation == 4


def test_a_keeper_on_a_dead_node_does_not_count(scene: Scene):
    """Of two nodes one died with the coordinator: the other alone is no majority of two."""
    take_office(scene, FakeNodes([1], absent=1, dead=1))
    assert scene.control.incarnation > 1


def test_where_ray_does_not_tell_which_nodes_live_it_is_asked_on(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
):
    answers = iter([RuntimeError("no answer"), {"a": LivingNode("10.0.0.1")}])

    def find() -> dict[str, LivingNode]:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    class Nodes(FakeNodes):
        def note_alive(self, alive: Any) -> None:
            self.alive = alive

        def forget_dead(self) -> None:
            if self.alive:
                super().forget_dead()

    monkeypatch.setattr(adoption, "find_alive_nodes", find)
    monkeypatch.setattr(adoption, "_ASK_AGAIN_AFTER_S", 0.0)
    take_office(scene, Nodes([1], absent=2, dead=2))
    assert scene.control.incarnation == 4
    assert next(answers, None) is None, "it was asked twice"


@pytest.mark.parametrize("nodes", [FakeNodes([]), FakeNodes([1], absent=2)])
def test_without_a_majority_it_says_how_many_answered(scene: Scene, nodes: FakeNodes):
    def later() -> float:
        scene.clock.now_s += 50.0
        return scene.clock.now_s

    any_clock: Any = scene.clock
    any_clock.monotonic_s = later
    with pytest.raises(CoordinationError, match=rf"from \d of {nodes.num_keepers} Keepers"):
        take_office(scene, nodes)
    assert scene.control.incarnation == 1


def test_the_event_loop_goes_on_while_ray_does_not_tell_of_actors(monkeypatch: pytest.MonkeyPatch):
    may_answer = threading.Event()
    entries = [
        {"namespace": names.NAMESPACE, "name": names.worker_name("job-1", "slot0-1.0")},
        {"namespace": names.NAMESPACE, "name": names.keeper_name("job-1", "a")},
        {"namespace": "another", "name": names.keeper_name("job-1", "b")},
    ]

    def list_actors(**_: Any) -> list[dict[str, str]]:
        assert may_answer.wait(5.0)
        return entries

    monkeypatch.setattr(adoption, "list_named_actors", list_actors)
    monkeypatch.setattr(adoption.ray, "get_actor", lambda name, _: f"handle of {name}")

    async def act() -> None:
        found = adoption.find_workers("job-1"), adoption.find_keeper_nodes("job-1")
        finding = [asyncio.ensure_future(each) for each in found]
        await settle()
        assert not any(each.done() for each in finding)
        may_answer.set()
        workers, nodes = await asyncio.gather(*finding)
        assert workers == {"slot0-1.0": f"handle of {entries[0]['name']}"}
        assert nodes == {"a"}

    asyncio.run(act())


def test_what_is_left_is_looked_for_until_ray_answers(monkeypatch: pytest.MonkeyPatch):
    answers: list[Any] = [RayError("no answer"), ValueError("removed"), {"known": 1, "left": 2}]
    entries: dict[str, Any] = {"known": "as it was"}

    async def find_workers(_job_id: str) -> dict[str, Any]:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def find(*_: str) -> set[str]:
        return set()

    monkeypatch.setattr(adoption, "find_workers", find_workers)
    monkeypatch.setattr(adoption, "find_keeper_nodes", find)
    bundles = SimpleNamespace(find=find)
    pool: Any = SimpleNamespace(bundles=bundles, entries=entries, adopt=entries.__setitem__)
    nodes: Any = FakeNodes([0])
    asyncio.run(adoption.find_remains("job-1", pool, nodes))
    assert entries == {"known": "as it was", "left": 2}
