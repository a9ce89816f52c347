"""The coordinator makes checkpoints of shares, and knows what to go on from."""

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.jobs import make_job
from tests.unit.checkpointing.test_sharing import make_snapshot, upload
from tests.unit.coordination.fakes import FakeClock
from trainflow.checkpointing.sharing import Share, ShareReport
from trainflow.checkpointing.store import CheckpointStore
from trainflow.checkpointing.verification import verify
from trainflow.computation.reports import EvaluationReport
from trainflow.config.job import JobConfig
from trainflow.coordination.checkpoint_control import CheckpointControl
from trainflow.coordination.messages import ShareFailed
from trainflow.coordination.run_record import RunRecord
from trainflow.epochs import StoredState, Version
from trainflow.errors import ConfigError

STEP = 4  # of `make_snapshot`


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(str(tmp_path / "store"))


@pytest.fixture
def record(tmp_path: Path) -> RunRecord:
    return RunRecord(tmp_path / "record", FakeClock())


def job_for(store: CheckpointStore, **checkpoint: Any) -> JobConfig:
    settings = make_job().model_dump(mode="json")
    settings["checkpoint"] = {"url": store.url, **checkpoint}
    return JobConfig.model_validate_json(json.dumps(settings))


def control_for(store: CheckpointStore, record: RunRecord, **checkpoint: Any) -> CheckpointControl:
    return CheckpointControl("job-1", job_for(store, **checkpoint), record, FakeClock())


def permit_for(control: CheckpointControl, report: ShareReport) -> str:
    permit = control.ask(f"node{report.share.index}", report.version, 1).permit
    assert permit is not None
    return permit


async def bring(control: CheckpointControl, report: ShareReport) -> bool:
    return await control.on_share(report, permit_for(control, report), world_size=3)


def make_checkpoint(store: CheckpointStore, record: RunRecord) -> CheckpointControl:
    async def act() -> CheckpointControl:
        control = control_for(store, record)
        for report in upload(make_snapshot(35, 7), store, 2):
            await bring(control, report)
        return control

    return asyncio.run(act())


def kinds(record: RunRecord) -> list[str]:
    return [event["kind"] for event in record.events_since(0)]


def test_the_last_share_makes_the_checkpoint(store: CheckpointStore, record: RunRecord):
    async def act() -> None:
        control = control_for(store, record)
        first, second = upload(make_snapshot(35, 7), store, 2)
        await bring(control, first)
        assert store.committed_steps() == []
        assert control.newest is None
        await bring(control, second)
        assert control.newest == StoredState(store.url, STEP)

    asyncio.run(act())
    manifest = store.read_manifest(STEP)
    assert (manifest.job_id, manifest.world_size, manifest.num_bytes) == ("job-1", 3, 42)
    made = record.events_since(0)[-1]
    assert (made["kind"], made["data"]["step"]) == ("checkpoint", STEP)


def test_a_failed_share_is_no_checkpoint_and_says_why(store: CheckpointStore, record: RunRecord):
    async def act() -> None:
        control = control_for(store, record)
        first, second = upload(make_snapshot(35), store, 2)
        await bring(control, first)
        failed = ShareFailed(first.version, Share(1, 2), "no space")
        await control.on_share_failed(failed, permit_for(control, second))
        await control.wait_closed(STEP, timeout_s=1.0)
        assert not control.ask("node1", second.version, 1).wanted

    asyncio.run(act())
    assert store.committed_steps() == []
    assert kinds(record) == ["checkpoint_failed"]
    assert "no space" in record.events_since(0)[0]["text"]


def test_a_folder_that_nodes_don_t_share_is_said(
    store: CheckpointStore, record: RunRecord, tmp_path: Path
):
    elsewhere = CheckpointStore(str(tmp_path / "local to a node"))

    async def act() -> None:
        control = control_for(store, record)
        (report,) = upload(make_snapshot(35), elsewhere, 1)
        await bring(control, report)

    asyncio.run(act())
    assert store.committed_steps() == []
    assert "a folder that all nodes share" in record.events_since(0)[0]["text"]


def test_who_waits_for_the_last_checkpoint_is_told_when_it_does_not_come(
    store: CheckpointStore, record: RunRecord
):
    asyncio.run(_wait(control_for, store, record))
    assert "was not made within" in record.events_since(0)[0]["text"]


async def _wait(make: Any, store: CheckpointStore, record: RunRecord) -> None:
    await make(store, record).wait_closed(STEP, timeout_s=0.05)


def test_an_earlier_coordinator_s_checkpoints_are_known(store: CheckpointStore, record: RunRecord):
    make_checkpoint(store, record)

    async def act() -> None:
        control = control_for(store, record)
        assert control.newest == StoredState(store.url, STEP)
        await control.wait_closed(STEP, timeout_s=0.05)

    asyncio.run(act())
    assert kinds(record) == ["checkpoint"]


def find(store: CheckpointStore, record: RunRecord, **checkpoint: Any) -> StoredState | None:
    async def act() -> StoredState | None:
        control = CheckpointControl("job-2", job_for(store, **checkpoint), record, FakeClock())
        await control.find_stored()
        return control.newest

    return asyncio.run(act())


@pytest.fixture
def other_record(tmp_path: Path) -> RunRecord:
    return RunRecord(tmp_path / "other", FakeClock())


def test_another_run_goes_on_from_what_is_there(
    store: CheckpointStore, record: RunRecord, other_record: RunRecord
):
    make_checkpoint(store, record)
    stored = StoredState(store.url, STEP)
    assert find(store, other_record) == stored
    assert find(store, other_record, resume=STEP) == stored
    assert find(store, other_record, resume="never") is None


def test_a_run_that_goes_on_from_its_last_step_waits_for_no_checkpoint(
    store: CheckpointStore, record: RunRecord, other_record: RunRecord
):
    make_checkpoint(store, record)

    async def act() -> None:
        control = control_for(store, other_record)
        await control.find_stored()
        await control.wait_closed(STEP, timeout_s=0.05)

    asyncio.run(act())
    assert kinds(other_record) == []


def test_an_empty_folder_is_a_beginning(store: CheckpointStore, record: RunRecord):
    assert find(store, record) is None


def test_another_folder_is_gone_on_from_until_there_is_an_own_checkpoint(
    store: CheckpointStore, record: RunRecord, other_record: RunRecord, tmp_path: Path
):
    make_checkpoint(store, record)
    own = CheckpointStore(str(tmp_path / "own"))
    assert find(own, other_record, resume=store.url) == StoredState(store.url, STEP)
    make_checkpoint(own, other_record)
    assert find(own, other_record, resume=store.url) == StoredState(own.url, STEP)


def test_another_folder_without_a_checkpoint_is_refused(
    store: CheckpointStore, record: RunRecord, tmp_path: Path
):
    with pytest.raises(ConfigError, match="expected a folder with a checkpoint in it"):
        find(store, record, resume=str(tmp_path / "empty"))


def test_a_step_that_is_not_there_is_refused(
    store: CheckpointStore, record: RunRecord, other_record: RunRecord
):
    make_checkpoint(store, record)
    with pytest.raises(ConfigError, match=rf"got step 5, expected one that is in .*: {STEP}"):
        find(store, other_record, resume=5)


def test_changed_settings_are_refused_unless_they_are_accepted_by_name(
    store: CheckpointStore, other_record: RunRecord
):
    job = job_for(store)
    altered = job.model_copy(update={"training": job.training.model_copy(update={"seed": 99})})

    async def make() -> None:
        control = CheckpointControl("job-1", altered, other_record, FakeClock())
        reports: list[ShareReport] = upload(make_snapshot(35), store, 1)
        await bring(control, reports[0])

    asyncio.run(make())
    with pytest.raises(ConfigError, match=r"training\.seed: was '99', is '5'"):
        find(store, other_record)
    assert find(store, other_record, accept=["training.seed"]) is not None


def at_step(report: ShareReport, step: int) -> ShareReport:
    return replace(report, version=Version(step, report.version.epoch))


def test_old_checkpoints_are_removed_once_a_new_one_is_made(
    store: CheckpointStore, record: RunRecord
):
    async def act() -> None:
        control = control_for(store, record, keep_last=2, keep_every=10)
        for step in (5, 10, 15, 20, 25):
            (report,) = upload(make_snapshot(35 + step), store, 1)
            await bring(control, at_step(report, step))

    asyncio.run(act())
    assert store.committed_steps() == [10, 20, 25]
    assert [e["data"]["steps"] for e in record.events_since(0) if "removed" in e["kind"]] == [
        [5],
        [15],
    ]


def test_the_best_by_an_evaluation_stays(store: CheckpointStore, record: RunRecord):
    async def act() -> None:
        control = control_for(store, record, keep_last=1, keep_best=1, best_metric="loss")
        for step, value in ((5, 3.0), (10, 1.0), (15, 2.0)):
            record.add_evaluation(EvaluationReport(step, "loss", value))
            record.add_evaluation(EvaluationReport(step, "accuracy", -value))
            (report,) = upload(make_snapshot(35 + step), store, 1)
            await bring(control, at_step(report, step))

    asyncio.run(act())
    assert store.committed_steps() == [10, 15]


def test_nothing_is_removed_while_somebody_uploads(store: CheckpointStore, record: RunRecord):
    async def act() -> None:
        control = control_for(store, record, keep_last=1)
        (first,) = upload(make_snapshot(35), store, 1)
        await bring(control, at_step(first, 5))
        under_way = permit_for(control, at_step(first, 15))
        (second,) = upload(make_snapshot(40), store, 1)
        await bring(control, at_step(first, 10))
        assert store.committed_steps() == [5, 10]
        assert await control.on_share(at_step(second, 15), under_way, world_size=3)

    asyncio.run(act())
    assert store.committed_steps() == [15]


def test_a_share_under_an_earlier_coordinator_s_permit_is_refused(
    store: CheckpointStore, record: RunRecord
):
    async def act() -> None:
        (report,) = upload(make_snapshot(35), store, 1)
        old = permit_for(control_for(store, record), report)
        assert not await control_for(store, record).on_share(report, old, world_size=3)

    asyncio.run(act())
    assert store.committed_steps() == []


def test_a_quarantined_checkpoint_is_made_again_with_good_chunks(
    store: CheckpointStore, record: RunRecord
):
    control = make_checkpoint(store, record)
    chunk_id = next(iter(store.read_manifest(STEP).chunks()))
    path = Path(store.url) / "chunks" / chunk_id[:2] / chunk_id
    path.write_bytes(bytes(path.stat().st_size))

    async def act() -> None:
        control.on_unusable(STEP, "a chunk is damaged")
        await control.quarantine(STEP)
        assert store.committed_steps() == []
        first, second = upload(make_snapshot(35, 7), store, 2)
        assert await bring(control, first) is None
        assert await bring(control, second)

    asyncio.run(act())
    assert verify(store, STEP).flaws == ()
    assert "checkpoint_quarantined" in kinds(record)


def test_a_bad_checkpoint_gives_way_to_the_one_before_it(store: CheckpointStore, record: RunRecord):
    control = make_checkpoint(store, record)
    control.on_unusable(STEP, "a chunk is damaged")
    assert control.newest is None
    assert kinds(record)[-1] == "checkpoint_unusable"
