"""What the coordinator does about an epoch, with workers that answer as a test says."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.jobs import make_job
from tests.unit.coordination.fakes import (
    FakeClock,
    FakeKept,
    FakePool,
    FakeSuperior,
    FakeWorker,
    Method,
    describe,
    settle,
    until,
)
from tests.unit.coordination.test_run_record import STEP
from trainflow.computation.reports import Joined, StepReport
from trainflow.config.job import JobConfig
from trainflow.coordination.epoch_control import EpochControl
from trainflow.coordination.epoch_troubles import has_paused
from trainflow.coordination.hang_detection import Progress
from trainflow.coordination.messages import WorkerDescription
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.run_state import RunState
from trainflow.epochs import (
    INITIAL_VERSION,
    EpochId,
    EpochSpec,
    Flag,
    MemberReport,
    Phase,
    Version,
)


class Scene:
    """Three members and a control that has taken office."""

    job: JobConfig = make_job(world=3, minimum=2)

    def __init__(self, directory: Path, versions: list[Version | None]):
        self.clock = FakeClock()
        self.workers = [FakeWorker(f"slot{i}-1.{i}", v) for i, v in enumerate(versions)]
        self.pool = FakePool(self.workers)
        self.record = RunRecord(directory, self.clock)
        self.superior = FakeSuperior(self.pool)
        pool: Any = self.pool
        self.kept = FakeKept()
        kept: Any = self.kept
        self._parts = self.job, pool, self.record, kept, self.clock
        self.control = self.follow(incarnation=1)

    def follow(self, incarnation: int) -> EpochControl:
        """Return the control of this coordinator, or of one that comes after it."""
        control = EpochControl(*self._parts, superior=self.superior)
        control.incarnation = incarnation
        return control

    @property
    def ids(self) -> tuple[str, ...]:
        return tuple(worker.worker_id for worker in self.workers)

    def lose(self, index: int) -> None:
        entry = self.pool.entries.pop(self.ids[index])
        self.control.on_gone(entry, "lost in a test")

    def report(self, rank: int, step: int, **others: Any) -> None:
        assert self.control.epoch is not None
        values: dict[str, Any] = {
            "epoch": self.control.epoch,
            "world_size": len(self.control.members),
            "committed_at_s": self.clock.now_s,
            "applied": True,
            **dict.fromkeys(("loss", "grad_norm", "lr", "weight", "compute_s", "wait_s"), 1.0),
        }
        self.control.on_step(StepReport(step=step, rank=rank, wire_bytes=0, **values | others))

    def commit_everywhere(self, step: int) -> None:
        for rank, member in enumerate(self.control.members):
            assert self.control.epoch is not None
            self.pool.entries[member].actor.version = Version(step, self.control.epoch)
            self.report(rank, step, joined=Joined(0.0, 0.0, healed=False))

    def kinds(self) -> list[str]:
        return [event["kind"] for event in self.record.events_since(0)]


Play = Callable[[Callable[[Scene], Awaitable[None]], list[Version | None]], Scene]


@pytest.fixture
def play(tmp_path: Path) -> Play:
    """Run a scene in an event loop of its own."""

    def run(act: Callable[[Scene], Awaitable[None]], versions: list[Version | None]) -> Scene:
        async def main() -> Scene:
            scene = Scene(tmp_path, versions)
            await act(scene)
            scene.control.close()
            return scene

        return asyncio.run(main())

    return run


FRESH: list[Version | None] = [INITIAL_VERSION] * 3


def seen(phase: Phase, age_s: float) -> Progress:
    return Progress(1, 1, EpochId(1, 1), phase, progress_age_s=age_s, pulse_age_s=0.0)


def test_the_first_epoch_begins_once_all_members_are_formed(play: Play):
    async def act(scene: Scene) -> None:
        assert scene.control.state is RunState.PENDING
        scene.control.open()
        await settle()

    scene = play(act, FRESH)
    assert scene.control.state is RunState.RUNNING
    assert scene.control.members == scene.ids
    assert [worker.plans[0].base for worker in scene.workers] == [INITIAL_VERSION] * 3
    assert scene.kept.node_of == {member: f"node of {member}" for member in scene.ids}


def test_a_lost_member_is_replaced_in_a_new_epoch_and_the_recovery_is_recorded(play: Play):
    async def act(scene: Scene) -> None:
        spare = FakeWorker("slot3-1.3", None)
        scene.pool.entries |= FakePool([spare]).entries
        scene.control.open()
        await settle()
        scene.commit_everywhere(1)
        scene.lose(1)
        assert scene.control.state is RunState.RECOVERING
        await settle()
        assert scene.control.members == (scene.ids[0], "slot3-1.3", scene.ids[2])
        assert spare.plans[0].sources == {1: 0}
        scene.commit_everywhere(2)

    scene = play(act, FRESH)
    assert scene.control.state is RunState.RUNNING
    recovered = scene.record.events_since(0)[-1]
    assert recovered["kind"] == "recovered"
    assert recovered["data"]["causes"] == ["lost in a test"]
    assert recovered["data"]["steps_lost"] == 0
    steps = scene.record.steps_since(0)
    assert [(line["world_size"], line["num_spares"]) for line in steps] == [(3, 1), (3, 0)]


def test_a_step_that_rank_0_did_not_live_to_report_is_known_before_the_next_epoch_begins(
    play: Play,
):
    known: list[int] = []

    async def act(scene: Scene) -> None:
        spare = FakeWorker("slot3-1.3", None)
        spare.on_begin = lambda _: known.append(scene.record.last_step)
        scene.pool.entries |= FakePool([spare]).entries
        scene.control.open()
        await settle()
        scene.commit_everywhere(1)
        assert scene.control.epoch is not None
        unheard = replace(STEP, step=2, epoch=scene.control.epoch, rank=1)
        for each in scene.workers:
            each.version, each.steps = unheard.version, (unheard,)
        scene.lose(0)
        await settle()
        scene.commit_everywhere(3)

    scene = play(act, FRESH)
    assert known == [2]
    assert [line["step"] for line in scene.record.steps_since(0)] == [1, 2, 3]


def test_members_are_told_which_of_them_share_a_node(play: Play):
    async def act(scene: Scene) -> None:
        for entry, node in zip(scene.pool.entries.values(), ("x", "y", "x"), strict=True):
            assert entry.description is not None
            entry.description = replace(entry.description, node_id=node)
        scene.control.open()
        await settle()

    scene = play(act, FRESH)
    assert [worker.formed[0].nodes for worker in scene.workers] == [(0, 1, 0)] * 3
    assert scene.workers[0].formed[0].snapshot_ranks == (0, 1)
    assert "hierarchical_off" not in scene.kinds()


@pytest.mark.parametrize(("hierarchical", "num_events"), [(True, 1), (None, 0), (False, 0)])
def test_that_sums_cannot_go_by_node_is_said_once_to_who_asked(
    play: Play, hierarchical, num_events
):
    async def act(scene: Scene) -> None:
        communication = {"compression": "int8", "hierarchical": hierarchical}
        scene.control._job = make_job(world=3, minimum=2, communication=communication)
        scene.control.open()
        await settle()
        scene.commit_everywhere(1)
        scene.lose(2)
        await settle()

    scene = play(act, FRESH)
    assert scene.kinds().count("epoch") == 2
    assert scene.kinds().count("hierarchical_off") == num_events


def test_a_member_lost_while_an_epoch_is_formed_restarts_the_forming(play: Play):
    async def act(scene: Scene) -> None:
        scene.workers[2].stuck = True
        scene.control.open()
        await settle()
        assert scene.control.epoch is None
        scene.pool.entries |= FakePool([FakeWorker("slot3-1.3", INITIAL_VERSION)]).entries
        scene.lose(2)
        await settle()

    scene = play(act, FRESH)
    assert scene.control.members == (*scene.ids[:2], "slot3-1.3")
    assert scene.control.epoch == EpochId(1, 2)


def test_a_failure_heard_between_begin_and_its_note_still_breaks_the_epoch(play: Play):
    """A member can be released, fail and say so before the coordinator has noted the epoch."""

    async def act(scene: Scene) -> None:
        def fail_at_once(plan: Any) -> None:
            scene.workers[1].on_begin = lambda plan: None
            failed = plan.spec.epoch
            scene.control.troubles.on_group_failed(scene.ids[1], failed, "connection reset")

        scene.workers[1].on_begin = fail_at_once
        scene.control.open()
        await until(lambda: scene.control.epoch == EpochId(1, 2))

    scene = play(act, FRESH)
    assert scene.superior.failures == [f"a collective failed on {scene.ids[1]}: connection reset"]
    assert scene.control.state is RunState.RECOVERING


def test_a_failure_heard_before_an_epoch_is_taken_over_breaks_it(play: Play):
    async def act(scene: Scene) -> None:
        spec = EpochSpec(EpochId(1, 4), scene.ids, "127.0.0.1", 1)
        scene.control.incarnation = 2
        scene.control.troubles.on_group_failed(scene.ids[0], spec.epoch, "connection reset")
        scene.control.take_over(spec, intact=True)
        scene.control.open()
        await until(lambda: scene.control.epoch == EpochId(2, 1))

    assert play(act, FRESH).kinds() == ["taken_over", "failure", "epoch"]


def test_copies_of_an_epoch_that_is_taken_over_go_on(play: Play):
    async def act(scene: Scene) -> None:
        spec = EpochSpec(EpochId(1, 4), scene.ids, "127.0.0.1", 1)
        scene.control.take_over(spec, intact=True)

    scene = play(act, FRESH)
    assert scene.kept.node_of.keys() == set(scene.ids)


def test_a_failure_of_a_past_epoch_changes_nothing(play: Play):
    async def act(scene: Scene) -> None:
        spec = EpochSpec(EpochId(1, 4), scene.ids, "127.0.0.1", 1)
        scene.control.troubles.on_group_failed(scene.ids[0], EpochId(1, 3), "connection reset")
        scene.control.take_over(spec, intact=True)
        scene.control.open()
        scene.control.troubles.on_group_failed(scene.ids[0], EpochId(1, 3), "connection reset")
        await asyncio.sleep(0.1)  # longer than the grace

    assert play(act, FRESH).control.epoch == EpochId(1, 4)


def test_a_member_that_parked_unheard_gets_a_new_epoch(play: Play):
    async def act(scene: Scene) -> None:
        scene.control.open()
        await settle()
        scene.clock.now_s += 10.0
        scene.workers[1].description = parked(scene, 1, failure="connection reset")
        for _ in range(3):  # heartbeats, before it has answered
            scene.control.troubles.on_progress({scene.ids[1]: seen(Phase.PARKED, 2.5)})
        await settle()

    scene = play(act, FRESH)
    assert scene.control.epoch == EpochId(1, 2)
    text = f"{scene.ids[1]} has parked, as a collective failed: connection reset"
    assert scene.superior.failures == [text]


def test_a_pause_whose_coordinator_is_gone_or_that_one_comes_to_late_is_no_failure(play: Play):
    async def act(scene: Scene) -> None:
        scene.control.open()
        await settle()
        scene.clock.now_s += 10.0
        scene.workers[1].description = parked(scene, 1)
        calls.append(note_calls_to_form(scene.workers[0], stuck_at_boundary=False))
        scene.control.troubles.on_progress({scene.ids[1]: seen(Phase.PARKED, 2.5)})
        await settle()

    calls: list[list[bool]] = []
    scene = play(act, FRESH)
    assert scene.control.epoch == EpochId(1, 2)
    assert scene.superior.failures == []
    assert "failure" not in scene.kinds()
    assert calls == [[True]], "who has yet to do what follows its commit is let do it"


def parked(scene: Scene, number: int, **others: Any) -> WorkerDescription:
    spec = scene.workers[number].formed[-1]
    standing = MemberReport(scene.ids[number], None)
    told = {"spec": spec, "has_begun": True, "standing": standing}
    return describe(scene.ids[number], **told, **others)


@pytest.mark.parametrize(
    "other",
    [{"failure": "reset"}, {"standing": None}, {"has_begun": False}, {"spec": None}],
    ids=["failed", "trains", "has not begun", "in none"],
)
def test_only_who_stands_still_in_a_whole_epoch_has_paused(other: dict[str, Any]):
    spec = EpochSpec(EpochId(1, 4), ("a",), "127.0.0.1", 1)
    paused = describe("a", spec=spec, has_begun=True, standing=MemberReport("a", None))
    assert has_paused(paused, EpochId(1, 4))
    assert not has_paused(paused, EpochId(1, 5))
    assert not has_paused(replace(paused, **other), EpochId(1, 4))


@pytest.mark.parametrize(
    ("phase", "age_s"),
    [(Phase.PARKED, 1.0), (Phase.PARKED, 11.0), (Phase.COMMUNICATE, 5.0)],
    ids=["for a moment", "since before the epoch", "not parked"],
)
def test_others_are_left_alone(play: Play, phase: Phase, age_s: float):
    async def act(scene: Scene) -> None:
        scene.control.open()
        await settle()
        scene.clock.now_s += 10.0
        scene.control.troubles.on_progress({scene.ids[1]: seen(phase, age_s)})
        await settle()

    assert play(act, FRESH).control.epoch == EpochId(1, 1)


def test_a_member_that_has_finished_may_park(play: Play):
    async def act(scene: Scene) -> None:
        scene.control.open()
        await settle()
        scene.clock.now_s += 10.0
        scene.control.on_finished(scene.ids[1])
        scene.control.troubles.on_progress({scene.ids[1]: seen(Phase.PARKED, 2.5)})
        await settle()

    assert play(act, FRESH).control.epoch == EpochId(1, 1)


def test_without_a_state_before_the_first_commit_the_members_are_replaced(play: Play):
    async def act(scene: Scene) -> None:
        scene.control.open()
        await settle()

    scene = play(act, [None, None, None])
    assert scene.superior.lost == [scene.ids]
    assert not scene.superior.endings


def test_without_a_state_after_a_commit_the_run_ends(play: Play):
    async def act(scene: Scene) -> None:
        scene.control.open()
        await settle()
        scene.commit_everywhere(1)
        for worker in scene.workers:
            worker.version = None
        scene.lose(0)
        await settle()

    scene = play(act, FRESH)
    assert not scene.superior.lost
    assert "none of 2 members holds a whole state of step 1" in scene.superior.endings[0].reason


def test_an_unforeseen_error_ends_the_run_with_its_traceback(play: Play):
    async def act(scene: Scene) -> None:
        def fail(plan: Any) -> None:
            raise KeyError("unforeseen")

        scene.workers[1].on_begin = fail
        scene.control.open()
        await settle()

    ending = play(act, FRESH).superior.endings[0]
    assert ending.state is RunState.FAILED
    assert "KeyError: 'unforeseen'" in ending.reason


def test_an_error_once_the_members_are_released_ends_the_run_too(
    play: Play, monkeypatch: pytest.MonkeyPatch
):
    """Nobody would hear of it, and no epoch would ever be formed again."""

    async def act(scene: Scene) -> None:
        monkeypatch.setattr(scene.kept, "on_formed", lambda *_: 1 / 0)
        scene.control.open()
        await settle()

    (ending,) = play(act, FRESH).superior.endings
    assert ending.state is RunState.FAILED
    assert "ZeroDivisionError" in ending.reason


def test_the_world_shrinks_without_a_spare_and_asks_for_a_pause_to_grow(play: Play):
    async def act(scene: Scene) -> None:
        scene.control.open()
        await settle()
        scene.commit_everywhere(1)
        scene.lose(2)
        await settle()
        assert scene.control.members == scene.ids[:2]
        scene.commit_everywhere(2)
        scene.pool.entries |= FakePool([FakeWorker("slot3-1.3", None)]).entries
        scene.control.advance()
        await settle()
        assert scene.workers[0].requested == [Flag.PAUSE]
        scene.commit_everywhere(3)
        scene.report(0, 4, pausing=True)
        await settle()

    scene = play(act, FRESH)
    assert scene.control.members == (*scene.ids[:2], "slot3-1.3")
    assert scene.kinds()[-1] == "epoch"


def test_that_training_waits_for_workers_is_said_once(play: Play):
    async def act(scene: Scene) -> None:
        scene.control.open()
        await settle()
        scene.commit_everywhere(1)
        scene.lose(1)
        scene.lose(2)
        scene.control.advance()
        assert scene.control.state is RunState.WAITING

    scene = play(act, FRESH)
    waiting = [e["text"] for e in scene.record.events_since(0) if e["kind"] == "waiting"]
    assert waiting == ["training waits for workers: 1 of 2 are warm"]


def test_a_step_that_is_heard_of_before_the_last_member_was_released_ends_the_recovery(play: Play):
    """Else nobody would ever be started in place of who was lost."""

    async def act(scene: Scene) -> None:
        scene.control.open()
        await settle()
        scene.commit_everywhere(1)

        def commit_at_once(plan: Any) -> None:
            joined = Joined(0.0, 0.0, healed=False)
            for rank in range(2):
                scene.report(rank, 2, epoch=plan.spec.epoch, world_size=2, joined=joined)

        scene.workers[1].on_begin = commit_at_once
        scene.lose(2)
        await settle()
        await asyncio.wait_for(scene.control.wait_settled(), 5.0)

    scene = play(act, FRESH)
    assert scene.control.state is RunState.RUNNING
    (recovered,) = [e for e in scene.record.events_since(0) if e["kind"] == "recovered"]
    assert recovered["data"]["steps_lost"] == 0, "step 2 was not there when all began after step 1"


def test_a_step_of_an_epoch_that_did_not_come_to_be_ends_no_recovery(play: Play):
    async def act(scene: Scene) -> None:
        scene.control.open()
        await settle()
        scene.commit_everywhere(1)
        scene.workers[0].stuck = True
        scene.lose(2)
        await settle()
        for rank in range(2):
            scene.report(rank, 2, epoch=EpochId(1, 2), joined=Joined(0.0, 0.0, healed=False))
        scene.workers[0].stuck = False
        scene.pool.entries |= FakePool([FakeWorker("slot3-1.3", None)]).entries
        scene.lose(1)
        await settle()

    scene = play(act, FRESH)
    assert scene.control.epoch == EpochId(1, 3)
    assert scene.control.state is RunState.RECOVERING


def test_all_ranks_that_tell_of_a_pause_lead_to_one_epoch(play: Play):
    async def act(scene: Scene) -> None:
        scene.control.open()
        await settle()
        for rank in range(3):
            scene.report(rank, 1, joined=Joined(0.0, 0.0, healed=False), pausing=True)
        await settle()

    scene = play(act, FRESH)
    assert scene.control.epoch == EpochId(1, 2)
    assert [len(worker.formed) for worker in scene.workers] == [2, 2, 2]


def test_who_leaves_and_dies_before_it_stands_still_may_not_have_done_the_tail(play: Play):
    async def act(scene: Scene) -> None:
        scene.pool.entries |= FakePool([FakeWorker("slot3-1.3", None)]).entries
        scene.control.open()
        await settle()
        scene.commit_everywhere(1)
        assert scene.control.relieve(scene.ids[2])
        parks = asyncio.Event()
        scene.workers[2].stand = Method(parks.wait)
        scene.commit_everywhere(2)
        scene.report(0, 3, pausing=True)
        await settle()
        scene.lose(2)
        parks.set()
        await settle()

    scene = play(act, FRESH)
    assert scene.control.members == (*scene.ids[:2], "slot3-1.3")
    assert scene.workers[0].plans[-1].replay_tail


def note_calls_to_form(worker: FakeWorker, *, stuck_at_boundary: bool) -> list[bool]:
    """Return what says of each call whether it was to wait for the end of a step."""
    calls: list[bool] = []

    async def form(spec: EpochSpec, *, at_boundary: bool) -> Any:
        calls.append(at_boundary)
        worker.stuck = stuck_at_boundary and at_boundary
        return await worker._form(spec, at_boundary=at_boundary)

    worker.form = Method(form)
    return calls


def test_an_end_of_a_step_that_never_comes_is_not_waited_for_once_the_epoch_is_broken(play: Play):
    calls: list[bool] = []

    async def act(scene: Scene) -> None:
        scene.control.open()
        await settle()
        scene.commit_everywhere(1)
        calls_to_form = note_calls_to_form(scene.workers[1], stuck_at_boundary=True)
        scene.report(0, 2, pausing=True)
        await settle()
        scene.clock.now_s += 60.0
        assert scene.control.left_for_s() == {}, "until the step ends, their epoch runs on"
        scene.control.break_epoch(EpochId(1, 1), "every member waits for another")
        await settle()
        calls.extend(calls_to_form)

    scene = play(act, FRESH)
    assert calls == [True, False]
    assert scene.control.epoch == EpochId(1, 3)


def test_it_is_told_for_how_long_members_have_been_out_of_their_epoch(play: Play):
    async def act(scene: Scene) -> None:
        scene.control.open()
        await settle()
        assert scene.control.left_for_s() == {}
        scene.workers[1].stuck = True
        scene.lose(2)
        await settle()
        scene.clock.now_s += 4.0
        scene.pool.entries |= FakePool([FakeWorker("slot3-1.3", INITIAL_VERSION)]).entries
        scene.control.advance()
        scene.clock.now_s += 4.0
        assert scene.control.left_for_s() == dict.fromkeys(scene.ids[:2], 8.0)
        scene.lose(1)
        assert scene.control.left_for_s() == {scene.ids[0]: 8.0, "slot3-1.3": 8.0}
        await settle()

    scene = play(act, FRESH)
    assert scene.control.epoch == EpochId(1, 3)
    assert scene.control.left_for_s() == {}
