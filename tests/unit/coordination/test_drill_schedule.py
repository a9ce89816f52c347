"""Drills beside a run: what they tell, what they mend, and that they end with it."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.checkpointing.rewriting import rewrite
from tests.unit.checkpointing.small_job import all_files
from tests.unit.checkpointing.test_sharing import make_snapshot, upload
from tests.unit.checkpointing.test_torch_process import is_running
from tests.unit.coordination.fakes import FakeClock
from tests.unit.coordination.test_checkpoint_control import (
    STEP,
    WITHIN_S,
    at_step,
    bring,
    control_for,
    kinds,
    make_checkpoint,
)
from trainflow.checkpointing import drill as drill_module
from trainflow.checkpointing.drill import DrillReport
from trainflow.checkpointing.store import CheckpointStore
from trainflow.checkpointing.verification import verify
from trainflow.clock import SYSTEM_CLOCK
from trainflow.coordination import drill_schedule
from trainflow.coordination.checkpoint_control import CheckpointControl
from trainflow.coordination.drill_schedule import DrillSchedule
from trainflow.coordination.run_record import RunRecord
from trainflow.epochs import StoredState
from trainflow.errors import (
    CheckpointError,
    CheckpointMisfitError,
    CheckpointVersionError,
    StoreError,
    TrainingError,
)


def drill(
    control: CheckpointControl, record: RunRecord, monkeypatch: pytest.MonkeyPatch, outcome: Any
) -> list[tuple[str, int, bool]]:
    """Drill once; returns what was drilled, and whether it was to stay meanwhile."""
    drilled: list[tuple[str, int, bool]] = []

    def run_drill(url: str, step: int, **_: Any) -> DrillReport:
        drilled.append((url, step, StoredState(url, step) in control._upkeep._read))
        if isinstance(outcome, Exception):
            raise outcome
        return DrillReport(step, 3, 100, 0.5, 2.0, outcome)

    monkeypatch.setattr(drill_schedule, "run_drill", run_drill)
    asyncio.run(DrillSchedule(control, record, ("/jobs",), {}, every_s=60.0).drill_newest())
    assert not control._upkeep._read
    return drilled


def damage(store: CheckpointStore, *, missing: bool = False) -> dict[str, bytes]:
    """Change the bytes of a chunk, and not their number; returns what the store holds then."""
    chunk_id = next(iter(store.read_manifest(STEP).chunks()))
    path = Path(store.url) / "chunks" / chunk_id[:2] / chunk_id
    path.write_bytes(bytes(path.stat().st_size))
    if missing:
        path.unlink()
    return all_files(Path(store.url))


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
    assert control.newest == StoredState(store.url, STEP), "it is whole"
    assert store.committed_steps() == [STEP]


def test_without_a_checkpoint_nothing_is_drilled(
    store: CheckpointStore, record: RunRecord, monkeypatch: pytest.MonkeyPatch
):
    assert drill(control_for(store, record), record, monkeypatch, ()) == []
    assert kinds(record) == []


@pytest.mark.parametrize("missing", [False, True])
def test_a_damaged_checkpoint_no_longer_counts_and_the_next_mends_what_they_share(
    store: CheckpointStore, record: RunRecord, monkeypatch: pytest.MonkeyPatch, *, missing: bool
):
    control = make_checkpoint(store, record)
    damage(store, missing=missing)
    drill(control, record, monkeypatch, CheckpointError("a chunk hashes to something else"))
    assert control.newest is None
    assert store.committed_steps() == []
    assert kinds(record)[-3:] == ["drill_failed", "checkpoint_unusable", "checkpoint_quarantined"]

    async def make_the_next() -> None:
        for report in upload(make_snapshot(35, 7), store, 2):
            await bring(control, at_step(report, STEP + 1))

    asyncio.run(make_the_next())
    assert control.newest == StoredState(store.url, STEP + 1)
    assert verify(store, STEP + 1).flaws == ()


@pytest.mark.parametrize(
    "outcome",
    [
        ("/w: byte 7 differs",),
        CheckpointMisfitError("it is of another model"),
        StoreError("no answer"),
        TrainingError("the training function raises"),
    ],
)
def test_for_what_is_not_the_stores_fault_nothing_is_read_again(
    store: CheckpointStore, record: RunRecord, monkeypatch: pytest.MonkeyPatch, outcome: Any
):
    def verify_nothing(*_: object) -> None:
        raise AssertionError("it is not to be read")

    monkeypatch.setattr(drill_schedule, "verify", verify_nothing)
    control = make_checkpoint(store, record)
    drill(control, record, monkeypatch, outcome)
    assert control.newest == StoredState(store.url, STEP)


def test_another_runs_damaged_checkpoint_is_left_to_its_owner(
    store: CheckpointStore, record: RunRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    make_checkpoint(store, record)
    before = damage(store)
    own = CheckpointStore(str(tmp_path / "own"))
    record = RunRecord(tmp_path / "other record", FakeClock())
    control = control_for(own, record, resume=store.url)
    asyncio.run(control.find_stored())
    assert control.newest == StoredState(store.url, STEP)
    drill(control, record, monkeypatch, CheckpointError("a chunk hashes to something else"))
    assert control.newest is None
    assert kinds(record)[-1] == "checkpoint_unusable"
    assert all_files(Path(store.url)) == before


def test_one_of_another_release_stays_and_counts(
    store: CheckpointStore, record: RunRecord, monkeypatch: pytest.MonkeyPatch
):
    control = make_checkpoint(store, record)
    rewrite(store, STEP, version=2)
    before = all_files(Path(store.url))
    drill(control, record, monkeypatch, CheckpointVersionError("got version 2"))
    assert kinds(record)[-1] == "drill_failed"
    assert control.newest == StoredState(store.url, STEP)
    assert all_files(Path(store.url)) == before


HANGING = """
import os, subprocess, tempfile, time
from pathlib import Path
from trainflow.computation.own_process import answer_request

def hang(request):
    inner = subprocess.Popen(["sleep", "300"])
    told = Path(request["url"]).parent / "told"
    told.with_suffix(".new").write_text(f"{os.getpid()} {inner.pid} {tempfile.gettempdir()}")
    told.with_suffix(".new").rename(told)
    time.sleep(300)

answer_request(hang)
"""


def test_the_run_s_end_ends_a_drill_and_leaves_nothing_of_it(
    store: CheckpointStore, record: RunRecord, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "hanging_drill.py").write_text(HANGING)
    monkeypatch.setattr(drill_module, "_MODULE", "hanging_drill")
    control, told = make_checkpoint(store, record), tmp_path / "told"

    async def act() -> None:
        schedule = DrillSchedule(control, record, (str(tmp_path),), {}, every_s=0.01)
        running = asyncio.create_task(schedule.run())
        await asyncio.to_thread(wait_until, told.exists)
        await schedule.close()
        assert running.done()

    asyncio.run(act())
    outer, inner, scratch = told.read_text().split()
    wait_until(lambda: not is_running(int(outer)) and not is_running(int(inner)))
    assert not Path(scratch).exists()
    assert kinds(record)[-1] == "drill_stopped"
    assert store.committed_steps() == [STEP], "it is whole"


def wait_until(reached: Callable[[], bool]) -> None:
    deadline_s = SYSTEM_CLOCK.monotonic_s() + WITHIN_S
    while not reached():
        assert SYSTEM_CLOCK.monotonic_s() < deadline_s
        SYSTEM_CLOCK.sleep(0.01)


def test_a_schedule_that_is_closed_drills_no_more(store: CheckpointStore, record: RunRecord):
    control = make_checkpoint(store, record)

    async def act() -> None:
        schedule = DrillSchedule(control, record, ("/jobs",), {}, every_s=3600.0)
        running = asyncio.create_task(schedule.run())
        await schedule.close()
        await asyncio.wait_for(running, WITHIN_S)

    asyncio.run(act())
    assert kinds(record) == ["checkpoint"]
