"""What a later attempt begins with: a checkpoint, or nothing if there never was one."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.coordination.fakes import FakeClock
from tests.unit.coordination.test_kept_state import FakeCheckpoints, FakeNodes, Scene
from tests.unit.coordination.test_run_record import STEP
from trainflow.coordination.run_record import RunRecord
from trainflow.epochs import INITIAL_VERSION, EpochId, EpochSpec, MemberReport
from trainflow.errors import CheckpointError

SECOND = EpochSpec(EpochId(2, 1), ("w0", "w1"), "127.0.0.1", 1)
FRESH = [MemberReport(each, INITIAL_VERSION) for each in SECOND.members]


class Stored(FakeCheckpoints):
    """What is in the store is known once it was looked for."""

    url = "/store"

    def __init__(self, *steps: int):
        super().__init__()
        self._there = FakeCheckpoints(*steps).stored

    async def find_stored(self) -> None:
        self.stored = list(self._there)


def leave_attempt(directory: Path, *, checkpoint: int | None = None) -> None:
    """Leave the record of an attempt that has committed step 144, and begin another."""
    record = RunRecord(directory, FakeClock())
    record.add_event("epoch", "", epoch="1.1", members=["w0", "w1"], base=str(INITIAL_VERSION))
    record.add_early_steps(EpochId(1, 1))
    record.add_step(replace(STEP, step=144))
    if checkpoint is not None:
        record.add_event("checkpoint", "", step=checkpoint)
    record.begin_attempt(2)


def begin(directory: Path, *steps: int) -> Scene:
    scene = Scene(directory, FakeNodes(), Stored(*steps))
    asyncio.run(scene.kept.find_first())
    return scene


def plan_of(scene: Scene) -> Any:
    known = scene.record.last_step
    making = scene.kept.plan(SECOND, FRESH, member_lost=False, committed_step=known)
    return asyncio.run(making)


def test_without_a_checkpoint_it_begins_as_the_first_did_and_says_what_is_lost(tmp_path: Path):
    leave_attempt(tmp_path)
    scene = begin(tmp_path)
    plan = plan_of(scene)
    assert (plan.base, plan.stored) == (INITIAL_VERSION, None)
    (event,) = [e for e in scene.record.events_since(0) if e["kind"] == "resumed"]
    assert (event["data"]["step"], event["data"]["steps_lost"]) == (0, 144)
    assert RunRecord(tmp_path, FakeClock()).last_step == 0
    again = begin(tmp_path)  # another coordinator, before any epoch: it has been said
    assert again.events("resumed") == [event["text"]]


def test_its_steps_are_recorded_from_the_first_on(tmp_path: Path):
    leave_attempt(tmp_path)
    record = begin(tmp_path).record
    data = {"epoch": "2.1", "members": list(SECOND.members), "base": str(INITIAL_VERSION)}
    record.add_event("epoch", "", **data)
    record.add_early_steps(SECOND.epoch)
    record.add_step(replace(STEP, step=1, epoch=SECOND.epoch))
    assert record.last_step == 1
    assert RunRecord(tmp_path, FakeClock()).last_step == 1


def test_with_a_checkpoint_it_goes_on_from_there(tmp_path: Path):
    leave_attempt(tmp_path, checkpoint=100)
    scene = begin(tmp_path, 100)
    assert not scene.events("resumed")
    assert plan_of(scene).base.step == 100


def test_it_does_not_begin_anew_where_its_checkpoints_are_gone(tmp_path: Path):
    leave_attempt(tmp_path, checkpoint=100)
    with pytest.raises(CheckpointError, match=r"the last of step 100.*submit the job anew"):
        begin(tmp_path)


def test_an_attempt_that_has_trained_does_not_begin_anew(tmp_path: Path):
    leave_attempt(tmp_path)
    scene = begin(tmp_path)
    scene.record.add_event("epoch", "", epoch="2.1", members=[], base=str(INITIAL_VERSION))
    scene.record.add_early_steps(EpochId(2, 1))
    scene.record.add_step(replace(STEP, step=7, epoch=EpochId(2, 1)))
    assert len(begin(tmp_path).events("resumed")) == 1
    assert RunRecord(tmp_path, FakeClock()).last_step == 7
