"""Drills beside a run: what they tell, and that nothing is removed under them."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.unit.coordination.fakes import FakeClock
from tests.unit.coordination.test_checkpoint_control import (
    STEP,
    control_for,
    kinds,
    make_checkpoint,
)
from trainflow.checkpointing.drill import DrillReport
from trainflow.checkpointing.store import CheckpointStore
from trainflow.coordination import drill_schedule
from trainflow.coordination.checkpoint_control import CheckpointControl
from trainflow.coordination.drill_schedule import DrillSchedule
from trainflow.coordination.run_record import RunRecord
from trainflow.errors import CheckpointError


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(str(tmp_path / "store"))


@pytest.fixture
def record(tmp_path: Path) -> RunRecord:
    return RunRecord(tmp_path / "record", FakeClock())


def drill(
    control: CheckpointControl, record: RunRecord, monkeypatch: pytest.MonkeyPatch, outcome: Any
) -> list[tuple[str, int, bool]]:
    """Drill once; returns what was drilled, and whether things stayed meanwhile."""
    drilled: list[tuple[str, int, bool]] = []

    def run_drill(url: str, step: int, **_: Any) -> DrillReport:
        drilled.append((url, step, bool(control._permits)))
        if isinstance(outcome, Exception):
            raise outcome
        return DrillReport(step, 3, 100, 0.5, 2.0, outcome)

    monkeypatch.setattr(drill_schedule, "run_drill", run_drill)
    asyncio.run(DrillSchedule(control, record, ("/jobs",), every_s=60.0).drill_newest())
    assert not control._permits
    return drilled


def test_the_newest_is_drilled_and_stays_meanwhile(
    store: CheckpointStore, record: RunRecord, monkeypatch: pytest.MonkeyPatch
):
    control = make_checkpoint(store, record)
    assert drill(control, record, monkeypatch, ()) == [(store.url, STEP, True)]
    assert kinds(record)[-1] == "drill"


@pytest.mark.parametrize(
    "outcome",
    [
        ("/w: byte 7 differs",),
        CheckpointError("byte 7 differs"),
        OSError("no room for the folder in which byte 7 differs"),
    ],
)
def test_one_that_does_not_restore_is_told(
    store: CheckpointStore, record: RunRecord, monkeypatch: pytest.MonkeyPatch, outcome: Any
):
    control = make_checkpoint(store, record)
    drill(control, record, monkeypatch, outcome)
    event = record.events_since(0)[-1]
    assert event["kind"] == "drill_failed"
    assert "byte 7 differs" in event["text"]


def test_without_a_checkpoint_nothing_is_drilled(
    store: CheckpointStore, record: RunRecord, monkeypatch: pytest.MonkeyPatch
):
    assert drill(control_for(store, record), record, monkeypatch, ()) == []
    assert kinds(record) == []
