"""A run removes nothing from a folder into which another writes beside it."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.unit.checkpointing.test_sharing import make_snapshot, upload
from tests.unit.coordination.fakes import FakeClock
from tests.unit.coordination.test_checkpoint_control import at_step, bring, job_for
from trainflow.checkpointing.store import CheckpointStore
from trainflow.coordination.checkpoint_control import CheckpointControl
from trainflow.coordination.run_record import RunRecord


def control_of(
    job_id: str, store: CheckpointStore, record: RunRecord, **checkpoint: Any
) -> CheckpointControl:
    return CheckpointControl(job_id, job_for(store, **checkpoint), record, FakeClock())


async def make(control: CheckpointControl, store: CheckpointStore, steps: Sequence[int]) -> None:
    for step in steps:
        (report,) = upload(make_snapshot(35 + step), store, 1)
        await bring(control, at_step(report, step))


def told(record: RunRecord) -> list[str]:
    events = record.events_since(0)
    return [event["text"] for event in events if event["kind"] == "checkpoints_not_removed"]


def test_what_another_run_has_made_since_stays_and_so_does_one_s_own(
    store: CheckpointStore, record: RunRecord, tmp_path: Path
):
    other_record = RunRecord(tmp_path / "other", FakeClock())

    async def act() -> None:
        first = control_of("first-1", store, record, keep_last=3)
        await make(first, store, [5, 10])
        second = control_of("second-2", store, other_record, keep_last=1)
        await second.find_stored()
        await make(first, store, [15])
        await make(second, store, [20])

    asyncio.run(act())
    assert store.committed_steps() == [5, 10, 15, 20]
    (text,) = told(other_record)
    assert "checkpoint of step 15 by run first-1" in text
    assert "checkpoint.url of its own" in text


def test_what_was_there_at_the_start_is_the_run_s_to_remove(
    store: CheckpointStore, record: RunRecord
):
    async def act() -> None:
        await make(control_of("first-1", store, record), store, [5, 10])
        second = control_of("second-2", store, record, keep_last=1)
        await second.find_stored()
        await make(second, store, [15])

    asyncio.run(act())
    assert store.committed_steps() == [15]
    assert told(record) == []


def test_one_of_its_own_whose_commit_was_not_answered_is_its_own(
    store: CheckpointStore, record: RunRecord
):
    async def act() -> None:
        await make(control_of("first-1", store, record), store, [5])
        again = control_of("first-1", store, record, keep_last=1)
        again._upkeep.own.clear()
        await make(again, store, [10])

    asyncio.run(act())
    assert store.committed_steps() == [10]
    assert told(record) == []
