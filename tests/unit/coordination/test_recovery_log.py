"""How long a recovery took, whatever the clocks of its ranks say."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.coordination.fakes import FakeClock
from tests.unit.coordination.test_run_metrics import Shown
from tests.unit.coordination.test_run_record import STEP
from trainflow.computation.reports import Joined
from trainflow.coordination.epoch_former import FormedEpoch
from trainflow.coordination.recovery_log import RecoveryLog
from trainflow.coordination.run_record import RunRecord
from trainflow.epochs import EpochId, EpochSpec, MemberReport, RecoveryPlan, Version
from trainflow.monitoring import metrics

MEMBERS = ("a", "b")
EPOCH = EpochId(1, 2)
# Of powers of two, so that sums are exact.
NOTICED_S, ASKED_S, PLANNED_S, BEGUN_S = 1024.0, 1024.25, 1024.5, 1024.75
HEALED_S, COMMITTED_S, HEARD_S = 1025.0, 1026.0, 1026.125


class Scene:
    """Two members, one of which was lost and is replaced."""

    def __init__(self, directory: Path):
        self.clock = FakeClock()
        self.record = RunRecord(directory, self.clock)
        self.log = RecoveryLog(self.record, self.clock, max_steps=10)
        self.clock.now_s = NOTICED_S
        self.log.notice("lost b")

    def form(self, begun_s: float = BEGUN_S, *, base_step: int = 7) -> None:
        plan = RecoveryPlan(EpochSpec(EPOCH, MEMBERS, "", 0), Version(base_step, EpochId(1, 1)))
        reports = tuple(MemberReport(each, plan.base) for each in MEMBERS)
        self.clock.now_s = begun_s
        self.log.on_formed(FormedEpoch(plan, reports, ASKED_S, begun_s, 8, PLANNED_S))

    def join(self, rank: int, wrong_by_s: float, heard_s: float = HEARD_S) -> bool:
        """Have a rank tell of its first step, by a clock that is ahead, or behind."""
        joined = Joined(BEGUN_S + wrong_by_s, HEALED_S + wrong_by_s, healed=True)
        self.clock.now_s = heard_s
        values: dict[str, Any] = {"epoch": EPOCH, "rank": rank, "world_size": 2, "joined": joined}
        report = replace(STEP, step=8, committed_at_s=COMMITTED_S + wrong_by_s, **values)
        return self.log.on_joined(report)

    def told(self) -> dict[str, Any]:
        (event,) = self.record.events_since(0)
        assert event["kind"] == "recovered"
        return event

    def shown(self) -> dict[str, float | None]:
        shown = Shown()
        shown.tell("recovered", **self.told()["data"])
        phases = metrics.RECOVERY_PHASES
        return {p: shown.value(metrics.RECOVERY_SECONDS, phase=p) for p in phases}


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_where_clocks_agree_a_recovery_is_as_ranks_tell(scene: Scene):
    scene.form()
    assert not scene.join(0, 0.0)
    assert scene.join(1, 0.0)
    assert not scene.log.is_under_way
    data = scene.told()["data"]
    assert [data[f"{name}_at_s"] for name in ("noticed", "asked", "begun", "healed")] == [
        NOTICED_S,
        ASKED_S,
        BEGUN_S,
        HEALED_S,
    ]
    assert data["committed_at_s"] == COMMITTED_S
    assert "2.00 s after the loss" in scene.told()["text"]
    assert scene.shown() == {"decide": 0.25, "form": 0.5, "heal": 0.25, "step": 1.0}


@pytest.mark.parametrize(
    "wrong_by_s", [(120.0, 0.0), (0.0, 120.0), (-120.0, 120.0), (-1e4, -1.625)]
)
def test_a_clock_that_is_wrong_adds_nothing_but_the_time_until_its_step_was_heard_of(
    scene: Scene, wrong_by_s: tuple[float, float]
):
    scene.form()
    scene.join(0, wrong_by_s[0])
    scene.join(1, wrong_by_s[1])
    data = scene.told()["data"]
    late_s = HEARD_S - COMMITTED_S
    assert data["healed_at_s"] == HEALED_S + late_s
    assert data["committed_at_s"] == (HEARD_S if wrong_by_s[1] else COMMITTED_S)
    shown = scene.shown()
    step_s = 1.0 if wrong_by_s[1] else 1.0 - late_s
    assert shown == {"decide": 0.25, "form": 0.5, "heal": 0.25 + late_s, "step": step_s}


def test_a_clock_that_is_set_in_the_middle_of_it_makes_no_time(scene: Scene):
    scene.form()
    joined = Joined(BEGUN_S, HEALED_S + 120.0, healed=True)
    values: dict[str, Any] = {"epoch": EPOCH, "world_size": 2, "committed_at_s": COMMITTED_S}
    scene.clock.now_s = HEARD_S
    for rank in (0, 1):
        scene.log.on_joined(replace(STEP, step=8, rank=rank, joined=joined, **values))
    assert scene.told()["data"]["healed_at_s"] == COMMITTED_S
    assert scene.shown() == {"decide": 0.25, "form": 0.5, "heal": 1.25, "step": 0.0}


def test_one_that_is_heard_of_before_its_epoch_had_begun_was_by_then(scene: Scene):
    scene.join(0, 120.0)
    scene.join(1, 120.0)
    assert scene.log.is_under_way
    scene.form(begun_s=HEARD_S + 30.0)
    assert not scene.log.is_under_way
    assert scene.told()["data"]["committed_at_s"] == HEARD_S
    assert scene.told()["data"]["healed_at_s"] == HEALED_S + HEARD_S - COMMITTED_S


def test_after_the_last_step_a_recovery_is_over_as_its_epoch_begins(scene: Scene):
    """No rank commits anything any more: it would last until the run ends."""
    scene.form(base_step=10)
    assert not scene.log.is_under_way
    told = scene.told()
    assert told["text"] == "2 go on after the last step, 10, 0.75 s after the loss was noticed"
    assert told["data"]["committed_at_s"] == told["data"]["healed_at_s"] == BEGUN_S
    assert told["data"]["steps_lost"] == 0
    assert scene.shown() == {"decide": 0.25, "form": 0.5, "heal": 0.0, "step": 0.0}
