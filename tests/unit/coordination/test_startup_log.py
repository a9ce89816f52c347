"""The start of a run is told once, whoever is its coordinator then, and that of each spare."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.coordination.fakes import FakeClock, FakePool, FakeWorker, describe
from tests.unit.coordination.test_run_record import STEP
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.startup import StartPhase, WorkerStart
from trainflow.coordination.startup_log import StartupLog
from trainflow.coordination.worker_pool import WorkerEntry
from trainflow.epochs import INITIAL_VERSION, EpochId

MEMBERS = ("slot0-1.0", "slot1-1.1")
START = WorkerStart(1001.0, 0.5, {StartPhase.IMPORTS: 3.5, StartPhase.MODEL: 1.0}, 0.0)
REHEARSED = WorkerStart(1001.0, 0.0, {StartPhase.IMPORTS: 5.0, StartPhase.REHEARSAL: 0.5}, 0.5)
WARM_AT_S = 1006.0
SPARE = "slot2-1.r1"


class Scene:
    """A run up to its first step, and what is told of it; one coordinator may follow another."""

    def __init__(self, directory: Path):
        self._directory = directory
        self.pool = FakePool([FakeWorker(each, INITIAL_VERSION) for each in MEMBERS])
        for member in MEMBERS:
            self.pool.describe(describe(member, start=START))
            self.pool.entries[member].described_at_s = WARM_AT_S
        self.begin()

    def begin(self) -> None:
        """Let there be another coordinator."""
        self.clock = FakeClock()
        self.record = RunRecord(self._directory, self.clock)
        pool: Any = self.pool
        self.log = StartupLog(pool, self.record)

    def launch(self) -> None:
        self.at(1000.0, "submitted")
        self.at(1001.0, "launched")

    def form(self) -> None:
        base = {"members": [*MEMBERS], "base": str(INITIAL_VERSION)}
        self.at(1006.25, "epoch", epoch=str(STEP.epoch), **base)

    def at(self, unix_s: float, kind: str, **data: Any) -> None:
        self.clock.now_s = unix_s
        self.record.add_event(kind, kind, **data)

    def commit(self, step: int, heard_at_s: float, by_rank_s: float | None = None) -> None:
        """Have a step heard of; its rank's clock may say something else."""
        self.clock.now_s = heard_at_s
        at_s = heard_at_s if by_rank_s is None else by_rank_s
        self.record.add_step(replace(STEP, step=step, committed_at_s=at_s))
        self.log.on_step()

    def warm_up(self) -> None:
        """Let a spare be warm."""
        described = describe(SPARE, start=REHEARSED)
        self.log.on_ready(WorkerEntry(SPARE, None, described, described_at_s=1007.0))

    def told(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.record.events_since(0) if event["kind"] == kind]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_the_first_step_ends_the_start_and_it_is_told_once(scene: Scene):
    scene.launch()
    scene.form()
    scene.commit(1, 1007.0)
    scene.commit(2, 1008.0)
    (event,) = scene.told("startup")
    assert event["data"]["took_s"] == 7.0
    assert event["data"]["phases"]["imports"] == {
        "phase": "imports",
        "took_s": 3.5,
        "worker": MEMBERS[0],
    }
    assert [*event["data"]["phases"]] == [
        "room",
        "placed",
        "process",
        "imports",
        "model",
        "warm",
        "forming",
        "first_step",
    ]
    assert "step 1 committed 7.00 s after the run was submitted" in event["text"]


def test_a_step_that_is_heard_of_before_its_epoch_is_remembered(scene: Scene):
    scene.launch()
    scene.commit(1, 1007.0)
    assert not scene.told("startup")
    scene.form()
    scene.commit(2, 1008.0)
    assert scene.told("startup")[0]["data"]["took_s"] == 7.0


def test_another_coordinator_tells_what_the_first_did_not_live_to_tell(scene: Scene):
    scene.launch()
    scene.form()
    scene.clock.now_s = 1007.0
    scene.record.add_step(replace(STEP, committed_at_s=1007.0))
    scene.begin()
    scene.commit(2, 1008.0)
    scene.begin()
    scene.commit(3, 1009.0)
    (event,) = scene.told("startup")
    assert event["data"]["took_s"] == 7.0


def test_the_start_of_another_attempt_is_its_own(scene: Scene):
    scene.launch()
    scene.form()
    scene.commit(1, 1007.0)
    scene.warm_up()
    scene.begin()
    scene.clock.now_s = 2000.0
    scene.record.begin_attempt(2)
    scene.at(2000.5, "submitted")
    scene.at(2001.0, "launched")
    again = EpochId(STEP.epoch.incarnation + 1, 1)
    scene.at(2006.0, "epoch", epoch=str(again), members=[*MEMBERS], base="1")
    scene.clock.now_s = 2008.5
    scene.record.add_step(replace(STEP, step=2, epoch=again, committed_at_s=2008.5))
    scene.log.on_step()
    scene.warm_up()
    assert [event["data"]["took_s"] for event in scene.told("startup")] == [7.0, 8.0]
    assert "step 2 committed 8.00 s" in scene.told("startup")[1]["text"]
    assert len(scene.told("warm")) == 2


def test_a_member_that_is_gone_by_then_is_left_out(scene: Scene):
    scene.launch()
    scene.form()
    del scene.pool.entries[MEMBERS[0]]
    scene.commit(1, 1007.0)
    assert scene.told("startup")[0]["data"]["phases"]["imports"]["worker"] == MEMBERS[1]


@pytest.mark.parametrize("wrong_by_s", [3600.0, -3600.0, 0.25])
def test_a_ranks_clock_that_is_wrong_alters_nothing(scene: Scene, wrong_by_s: float):
    scene.launch()
    scene.form()
    scene.commit(1, 1007.0, by_rank_s=1007.0 + wrong_by_s)
    (event,) = scene.told("startup")
    assert event["data"]["took_s"] == 7.0
    assert event["data"]["phases"]["first_step"]["took_s"] == 0.75


def test_a_spare_that_is_warm_is_told_of_once(scene: Scene):
    scene.warm_up()
    scene.begin()
    scene.warm_up()
    (event,) = scene.told("warm")
    assert event["data"] == {
        "worker": SPARE,
        "took_s": 5.5,
        "phases": {"placed": 0.0, "process": 0.0, "imports": 5.0, "rehearsal": 0.5},
    }
    assert "slot2-1.r1 is warm, 5.50 s after it was asked for: imports 5.00 s" in event["text"]


@pytest.mark.parametrize("start", [None, START])
def test_a_worker_that_the_first_step_waits_for_is_no_spare(
    scene: Scene, start: WorkerStart | None
):
    scene.log.on_ready(WorkerEntry("slot0-1.0", None, describe("slot0-1.0", start=start)))
    assert not scene.told("warm")
