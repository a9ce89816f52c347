"""The coordinator makes checkpoints of shares, and knows what to go on from."""

import asyncio
import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.distributed.jobs import make_job
from tests.unit.checkpointing.test_sharing import make_snapshot, upload
from tests.unit.coordination.fakes import FakeClock, until
from trainflow.checkpointing.sharing import Share, ShareReport
from trainflow.checkpointing.store import CheckpointStore
from trainflow.checkpointing.verification import verify
from trainflow.computation.reports import EvaluationReport
from trainflow.config.job import JobConfig
from trainflow.coordination import checkpoint_control
from trainflow.coordination.checkpoint_control import CheckpointControl
from trainflow.coordination.messages import ShareFailed
from trainflow.coordination.run_record import RunRecord
from trainflow.epochs import EpochId, StoredState, Version
from trainflow.errors import ConfigError, StoreError

STEP = 4  # of `make_snapshot`
WITHIN_S = 20.0
A_WHILE_S = 0.3  # many times what whoever waits is to wait while nothing happens


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
    answer = await control.on_share(report, permit_for(control, report), world_size=3)
    if control._collecting is not None:
        await control._collecting
    return answer


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
            record.add_report(EvaluationReport(step, "loss", value))
            record.add_report(EvaluationReport(step, "accuracy", -value))
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
        await until(lambda: store.committed_steps() == [15])

    asyncio.run(act())


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


def test_a_checkpoint_that_is_whole_stays_and_is_not_made_again(
    store: CheckpointStore, record: RunRecord
):
    control = make_checkpoint(store, record)
    control.on_unusable(STEP, "it could not be read")
    asyncio.run(control.quarantine(STEP))
    assert store.committed_steps() == [STEP]
    assert kinds(record)[-1] == "checkpoint_whole"
    assert not control.ask("node0", Version(STEP, EpochId(1, 2)), 1).wanted


def test_a_share_from_before_a_quarantine_is_brought_again(
    store: CheckpointStore, record: RunRecord
):
    """It may name a chunk that was bad, and is removed."""

    async def act() -> None:
        control = control_for(store, record)
        first, second = upload(make_snapshot(35, 7), store, 2)
        permit = permit_for(control, first)
        assert await control.on_share(first, permit, world_size=3) is None
        await control.quarantine(STEP - 1)
        assert control.look(first.version, permit) is False
        assert await bring(control, second) is None
        assert await bring(control, first)

    asyncio.run(act())
    assert store.committed_steps() == [STEP]


def test_a_last_checkpoint_that_is_left_out_is_not_waited_for(
    store: CheckpointStore, record: RunRecord
):
    async def act() -> None:
        control = control_for(store, record)
        version = Version(STEP, EpochId(1, 1))
        waiting = asyncio.create_task(control.wait_closed(STEP, timeout_s=60.0))
        await asyncio.sleep(0)
        control.on_skipped(version, "no room")
        await asyncio.wait_for(waiting, WITHIN_S)
        assert not control.ask("node0", version, 1).wanted

    asyncio.run(act())
    assert kinds(record) == ["checkpoint_skipped"]


def test_what_is_left_out_ends_no_upload_before_it(store: CheckpointStore, record: RunRecord):
    async def act() -> None:
        control = control_for(store, record)
        (report,) = upload(make_snapshot(35), store, 1)
        permit = permit_for(control, report)
        control.on_skipped(Version(STEP + 1, EpochId(1, 1)), "no room")
        waiting = asyncio.create_task(control.wait_closed(STEP + 1, timeout_s=60.0))
        await asyncio.wait({waiting}, timeout=A_WHILE_S)
        assert not waiting.done()
        assert await control.on_share(report, permit, world_size=3)
        await asyncio.wait_for(waiting, WITHIN_S)

    asyncio.run(act())
    assert store.committed_steps() == [STEP]


def test_a_share_of_what_another_rank_left_out_is_not_waited_for(
    store: CheckpointStore, record: RunRecord
):
    async def act() -> None:
        control = control_for(store, record)
        first, _ = upload(make_snapshot(35, 7), store, 2)
        permit = permit_for(control, first)
        assert await control.on_share(first, permit, world_size=3) is None
        control.on_skipped(first.version, "no room")
        assert control.look(first.version, permit) is True
        await control.wait_closed(STEP, timeout_s=60.0)

    asyncio.run(act())


def test_an_upload_under_way_is_waited_for(store: CheckpointStore, record: RunRecord):
    async def act() -> None:
        control = control_for(store, record)
        (report,) = upload(make_snapshot(35), store, 1)
        permit = permit_for(control, report)
        waiting = asyncio.create_task(control.wait_closed(STEP, timeout_s=0.02))
        await asyncio.wait({waiting}, timeout=A_WHILE_S)
        assert not waiting.done()
        await control.on_share(report, permit, world_size=3)
        await asyncio.wait_for(waiting, WITHIN_S)

    asyncio.run(act())
    assert kinds(record) == ["checkpoint"]


def test_the_last_that_is_coming_is_known_begun_or_not(store: CheckpointStore, record: RunRecord):
    control = control_for(store, record)
    begun, left, made = (Version(step, EpochId(1, 1)) for step in (STEP, STEP + 2, STEP + 4))
    assert control.last_coming is None
    control.ask("node0", begun, 1)
    assert control.last_coming == begun.step
    control.hear("node1", [left, made])
    control.on_skipped(made, "too slow")
    assert control.last_coming == left.step


def test_an_upload_without_end_is_not_waited_for(
    store: CheckpointStore, record: RunRecord, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(checkpoint_control, "_UPLOAD_AT_MOST_S", 0.1)

    async def act() -> None:
        control = control_for(store, record)
        control.ask("node0", Version(STEP, EpochId(1, 1)), 1)
        await asyncio.wait_for(control.wait_closed(STEP, timeout_s=0.05), WITHIN_S)

    asyncio.run(act())
    assert kinds(record) == ["checkpoint_failed"]


def test_a_node_without_a_keeper_that_counts_holds_no_permit(
    store: CheckpointStore, record: RunRecord
):
    """Its loss would not be heard of, and nothing could be removed ever after."""

    async def act() -> None:
        control, version = control_for(store, record), Version(STEP, EpochId(1, 1))
        dead, living = (control.ask(node, version, 1).permit for node in ("dead", "living"))
        assert dead is not None
        assert living is not None
        await control.tick()
        assert control.look(version, dead) is None, "nothing is known of the nodes"
        await control.tick({"living"})
        control.on_node_lost("living")
        assert not control._permits
        assert control.ask("dead", version, 1).permit is None
        assert control.ask("living", version, 1).permit is not None
        await control.tick({"dead", "living"})
        assert control.ask("dead", version, 1).permit is not None

    asyncio.run(act())


def test_a_share_that_is_told_again_meanwhile_makes_no_second_checkpoint(
    store: CheckpointStore, record: RunRecord, monkeypatch: pytest.MonkeyPatch
):
    begun, go_on, commits = threading.Event(), threading.Event(), list[int]()
    commit = checkpoint_control.commit_shares

    def commit_slowly(*arguments: Any) -> None:
        commits.append(1)
        begun.set()
        assert go_on.wait(WITHIN_S)
        commit(*arguments)

    monkeypatch.setattr(checkpoint_control, "commit_shares", commit_slowly)

    async def act() -> None:
        control = control_for(store, record)
        (report,) = upload(make_snapshot(35), store, 1)
        permit = permit_for(control, report)
        making = asyncio.create_task(control.on_share(report, permit, world_size=3))
        assert await asyncio.to_thread(begun.wait, WITHIN_S)
        again = asyncio.create_task(control.on_share(report, permit, world_size=3))
        await asyncio.wait({again}, timeout=A_WHILE_S)
        go_on.set()
        assert await again is None
        assert await making

    asyncio.run(act())
    assert len(commits) == 1
    assert kinds(record) == ["checkpoint"]


def test_a_checkpoint_is_made_though_the_store_s_answer_is_lost(
    store: CheckpointStore, record: RunRecord, monkeypatch: pytest.MonkeyPatch
):
    commit = CheckpointStore.commit

    def commit_unheard(*arguments: Any) -> None:
        commit(*arguments)
        raise StoreError("timed out")

    monkeypatch.setattr(CheckpointStore, "commit", commit_unheard)
    control = make_checkpoint(store, record)
    assert kinds(record) == ["checkpoint"]
    assert control.newest == StoredState(store.url, STEP)


def test_a_store_that_fails_before_the_marker_is_no_checkpoint(
    store: CheckpointStore, record: RunRecord, monkeypatch: pytest.MonkeyPatch
):
    def refuse(*_: Any) -> None:
        raise StoreError("no room for it")

    monkeypatch.setattr(CheckpointStore, "commit", refuse)
    make_checkpoint(store, record)
    assert kinds(record) == ["checkpoint_failed"]
    assert "no room for it" in record.events_since(0)[0]["text"]


def test_an_error_nobody_thought_of_in_a_commit_is_a_checkpoint_given_up(
    store: CheckpointStore, record: RunRecord, monkeypatch: pytest.MonkeyPatch
):
    def fail(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(checkpoint_control, "commit_shares", fail)
    make_checkpoint(store, record)
    assert kinds(record) == ["checkpoint_failed"]


def test_what_became_of_a_reported_share_can_be_seen_without_the_report(
    store: CheckpointStore, record: RunRecord
):
    async def act() -> None:
        control = control_for(store, record)
        first, second = upload(make_snapshot(35, 7), store, 2)
        permit = permit_for(control, first)
        assert await control.on_share(first, permit, world_size=3) is None
        assert control.look(first.version, permit) is None
        another = control_for(store, RunRecord(record.directory / "another", FakeClock()))
        assert another.look(first.version, permit) is False
        await bring(control, second)
        assert control.look(first.version, permit) is True

    asyncio.run(act())


def test_what_a_lost_node_has_reported_counts_while_others_still_upload(
    store: CheckpointStore, record: RunRecord
):
    async def act() -> None:
        clock = FakeClock()
        control = CheckpointControl("job-1", job_for(store), record, clock)
        first, second = upload(make_snapshot(35), store, 2)
        assert await bring(control, first) is None
        late = permit_for(control, second)
        control.on_node_lost("node0")
        for _ in range(3):
            clock.now_s += 60.0
            await control.tick({"node1"})
        assert await control.on_share(second, late, world_size=3)

    asyncio.run(act())
    assert store.committed_steps() == [STEP]


def test_another_coordinator_finds_what_this_run_went_on_from_and_what_it_made(
    store: CheckpointStore, record: RunRecord, other_record: RunRecord
):
    """Also where a later start is asked for elsewhere; what was removed meanwhile is not there."""
    make_checkpoint(store, record)
    found = find(store, other_record)
    assert found is not None
    other_record.add_event("checkpoint", "made and removed", step=STEP + 10)
    again = find(store, other_record)
    assert again is not None
    assert again.step == STEP
    own = find(store, record, resume="never")
    assert own is not None
    assert own.step == STEP
