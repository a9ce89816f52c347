"""A fault falls on whom it is to fall on, and on nobody only where that is known."""

from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from tests.unit.coordination.fakes import FakeClock
from trainflow.config.chaos_plan import ChaosPlan
from trainflow.coordination.chaos import falling
from trainflow.coordination.chaos.fallen import FallenFault, Outcome
from trainflow.coordination.chaos.falling import Falling
from trainflow.coordination.chaos.run_view import RunView
from trainflow.coordination.chaos.scene import Victim
from trainflow.coordination.chaos.schedule import PlannedFault, draw_faults

STEP = 7
MEMBER: dict[str, Any] = {"worker_id": "slot1-1.1", "host": "127.0.0.3", "state": "member"}
MEMBER |= {"rank": 1, "pid": 7, "node_id": "n"}
SPARE = MEMBER | {"state": "spare", "rank": None}


class Stage:
    """A run whose answers a test gives, and faults that fall on its first worker of a state."""

    def __init__(self, *faults: dict[str, Any]):
        self.clock = FakeClock()
        no_run: Any = None
        self.view = RunView(no_run, self.clock)
        self.scene: Any = SimpleNamespace(view=self.view, undone={}, attempt=lambda _, do: do())
        self.noted: list[FallenFault] = []
        self.is_dead = False
        self.meanwhile: Any = lambda: None
        planned = draw_faults(ChaosPlan.model_validate({"schedule": list(faults)}))
        self.falling = Falling(planned, 0, self.clock, lambda _, fallen: self.noted.append(fallen))

    def fall(self, planned: PlannedFault, scene: Any) -> Victim | None:
        wanted = planned.fault.target
        there = [row for row in scene.view.workers if wanted in {row["state"], "coordinator"}]
        self.meanwhile()
        is_there = there and not self.is_dead
        return Victim(psutil.Process(), wanted, there[0]) if is_there else None

    def answer(self, state: str, *workers: dict[str, Any]) -> None:
        """The run is asked, and answers."""
        self.clock.now_s += 0.2
        self.view.workers, self.view.asked_at_s = list(workers), self.clock.now_s
        self.view.status = {"state": state, "step": STEP, "spares": 0, "ending": None}

    def look(self) -> list[Outcome]:
        self.clock.now_s += 0.02
        self.falling.look(self.scene)
        return [each.outcome for each in self.noted]


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Any:
    def open_stage(**fault: Any) -> Stage:
        stage = Stage({"kind": "kill", "at_step": STEP} | fault)
        monkeypatch.setattr(falling, "FAULTS", dict.fromkeys(falling.FAULTS, stage))
        return stage

    return open_stage


def test_it_falls_at_once_on_who_is_there(stage: Any):
    scene = stage()
    scene.answer("running", MEMBER)
    assert scene.look() == [Outcome.FELL]
    (fallen,) = scene.noted
    assert (fallen.after_step, fallen.at_s) == (STEP, scene.clock.unix_s())
    assert (fallen.victim, fallen.worker_id) == ("member", "slot1-1.1")
    assert scene.look() == [Outcome.FELL], "once"


@pytest.mark.parametrize("state", ["pending", "recovering", "waiting"])
def test_who_is_not_there_is_waited_for_while_it_is_not_known_who_is(stage: Any, state: str):
    scene = stage()
    for _ in range(3):
        scene.answer(state)
        assert scene.look() == []
    scene.answer("running", MEMBER)
    assert scene.look() == [Outcome.FELL]


def test_it_falls_on_nobody_once_the_run_was_asked_since_and_trains(stage: Any):
    scene = stage()
    scene.answer("running")
    assert scene.look() == scene.look() == [], "the answer may be older than a death"
    scene.answer("running")
    assert scene.look() == [Outcome.NOBODY]


@pytest.mark.parametrize("state", ["running", "recovering"])
def test_an_answer_that_comes_while_it_is_tried_is_tried_too(stage: Any, state: str):
    scene = stage()
    scene.answer("running")
    assert scene.look() == []
    scene.meanwhile = lambda: scene.answer(state)
    assert scene.look() == [], "by the answer before"
    scene.meanwhile = lambda: None
    scene.answer("running", MEMBER)
    assert scene.look() == [Outcome.FELL]


def test_who_is_listed_and_was_not_found_has_died_unnoticed(stage: Any):
    scene = stage(rank=1)
    scene.is_dead = True
    for _ in range(3):
        scene.answer("running", MEMBER)
        assert scene.look() == []
    scene.is_dead = False
    assert scene.look() == [Outcome.FELL]


def test_what_a_restarted_coordinator_takes_for_a_spare_is_none(stage: Any):
    scene = stage(target="spare")
    scene.answer("pending", SPARE)
    assert scene.look() == []
    scene.answer("running", MEMBER, SPARE)
    assert scene.look() == [Outcome.FELL]


@pytest.mark.parametrize("kind", ["kill", "hang_store"])
def test_a_coordinator_that_has_just_begun_may_be_killed_and_its_store_hang(stage: Any, kind: str):
    scene = stage(kind=kind, **({"target": "coordinator"} if kind == "kill" else {}))
    scene.answer("pending", MEMBER)
    assert scene.look() == [Outcome.FELL]


def test_who_is_sought_until_the_run_is_over_is_not_there(stage: Any):
    scene = stage()
    scene.answer("recovering")
    at_s = scene.clock.unix_s() + 0.02
    assert scene.look() == scene.look() == []
    scene.falling.close()
    (fallen,) = scene.noted
    assert (fallen.outcome, fallen.at_s) == (Outcome.NOBODY, at_s)
    assert scene.look() == [Outcome.NOBODY], "no more"


def test_what_was_never_due_is_not_told_of_here(stage: Any):
    scene = stage(at_step=STEP + 1)
    scene.answer("running", MEMBER)
    assert scene.look() == []
    scene.falling.close()
    assert scene.noted == []
