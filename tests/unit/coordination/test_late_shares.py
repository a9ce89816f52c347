"""Shares that come late, of nodes that are slow, of epochs that are past, beside other commits."""

import asyncio
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.checkpointing.test_sharing import make_snapshot, upload
from tests.unit.coordination.fakes import FakeClock
from tests.unit.coordination.test_checkpoint_control import (
    WITHIN_S,
    bring,
    control_for,
    job_for,
    kinds,
    permit_for,
)
from trainflow.checkpointing.sharing import ShareReport
from trainflow.checkpointing.store import CheckpointStore
from trainflow.checkpointing.verification import verify
from trainflow.coordination import checkpoint_control
from trainflow.coordination.checkpoint_control import CheckpointControl
from trainflow.coordination.checkpoint_monitor import Unmonitored
from trainflow.coordination.messages import ShareFailed
from trainflow.coordination.run_record import RunRecord
from trainflow.epochs import EpochId, Version

EPOCH = EpochId(1, 2)  # of `make_snapshot`
LATER = EpochId(1, 3)
NODES = {"node0", "node1"}


class Metrics(Unmonitored):
    def __init__(self) -> None:
        self.num_skipped = 0

    def on_checkpoint_skipped(self) -> None:
        self.num_skipped += 1


def shares_of(
    store: CheckpointStore, step: int, *sizes: int, epoch: EpochId = EPOCH
) -> list[ShareReport]:
    snapshot = replace(make_snapshot(*(sizes or (35, 7))), version=Version(step, epoch))
    return upload(snapshot, store, 2)


async def let_pass(control: CheckpointControl, clock: FakeClock, seconds: float) -> None:
    for _ in range(10):
        await control.tick(NODES)
        clock.now_s += seconds / 10
    await control.tick(NODES)


def test_a_node_that_is_busy_with_an_earlier_one_is_waited_for(
    store: CheckpointStore, record: RunRecord
):
    """The last state is copied out though the one before is on its way: a node has both."""

    async def act() -> None:
        clock = FakeClock()
        control = CheckpointControl("job-1", job_for(store), record, clock)
        earlier, last = shares_of(store, 10), shares_of(store, 20)
        late = permit_for(control, earlier[1])
        for share in (earlier[0], last[0]):
            assert await bring(control, share) is None
        control.hear("node1", [earlier[1].version, last[1].version])
        await let_pass(control, clock, 300.0)
        assert await control.on_share(earlier[1], late, world_size=3)
        control.hear("node1", [last[1].version])
        await let_pass(control, clock, 300.0)
        assert await bring(control, last[1])

    asyncio.run(act())
    assert store.committed_steps() == [10, 20]
    assert kinds(record) == ["checkpoint", "checkpoint"]


def test_a_share_that_nobody_has_left_is_given_up_and_those_before_it_are_not(
    store: CheckpointStore, record: RunRecord
):
    async def act() -> None:
        clock, metrics = FakeClock(), Metrics()
        control = CheckpointControl("job-1", job_for(store), record, clock, metrics)
        earlier, last = shares_of(store, 10), shares_of(store, 20)
        assert await bring(control, last[0]) is None
        late = permit_for(control, earlier[0])
        control.hear("node1", [earlier[1].version])
        await let_pass(control, clock, 60.0)
        assert control.look(last[0].version, "") is True
        assert metrics.num_skipped == control.skipped.total == 1
        assert await control.on_share(earlier[0], late, world_size=3) is None
        assert await bring(control, earlier[1])
        assert record.steps_of("checkpoint") == [10]

    asyncio.run(act())
    assert kinds(record) == ["checkpoint_failed", "checkpoint"]


def test_the_end_waits_for_a_share_that_a_node_has_yet_to_bring(
    store: CheckpointStore, record: RunRecord
):
    async def act() -> None:
        control = control_for(store, record)
        shares = shares_of(store, 20)
        control.hear("node1", [shares[0].version])
        waiting = asyncio.create_task(control.wait_closed(20, timeout_s=0.02))
        await asyncio.wait({waiting}, timeout=0.3)
        assert not waiting.done()
        for share in shares:
            await bring(control, share)
        await asyncio.wait_for(waiting, WITHIN_S)

    asyncio.run(act())
    assert kinds(record) == ["checkpoint"]


def test_what_failed_before_the_run_went_back_is_made_when_its_step_comes_again(
    store: CheckpointStore, record: RunRecord
):
    async def act() -> None:
        control = control_for(store, record)
        failed = shares_of(store, 20)[0]
        await control.on_share_failed(
            ShareFailed(failed.version, failed.share, "no store"), permit_for(control, failed)
        )
        assert not control.ask("node0", failed.version, 1).wanted
        control.on_epoch(LATER, 10)
        for share in shares_of(store, 20, epoch=LATER):
            await bring(control, share)

    asyncio.run(act())
    assert kinds(record) == ["checkpoint_failed", "checkpoint"]


def test_a_share_of_a_history_that_no_longer_counts_stops_nothing(
    store: CheckpointStore, record: RunRecord
):
    async def act() -> None:
        clock = FakeClock()
        control = CheckpointControl("job-1", job_for(store), record, clock)
        old, new = shares_of(store, 20), shares_of(store, 20, epoch=LATER)
        permit = permit_for(control, old[0])
        assert await control.on_share(old[0], permit, world_size=3) is None
        control.on_epoch(LATER, 10)
        assert control.look(old[0].version, permit) is True, "its slot is free again"
        assert not control.ask("node1", old[1].version, 1).wanted
        await let_pass(control, clock, 60.0)
        for share in new:
            await bring(control, share)

    asyncio.run(act())
    assert store.read_manifest(20).attempt == str(LATER)
    assert kinds(record) == ["checkpoint"]


def test_another_coordinator_knows_what_no_longer_counts(
    store: CheckpointStore, record: RunRecord, tmp_path: Path
):
    record.add_event("epoch", "", epoch=str(LATER), members=[], base=f"10@{EPOCH}")
    control = control_for(store, RunRecord(tmp_path / "record", FakeClock()))
    assert not control.ask("node0", Version(20, EPOCH), 2).wanted
    assert control.ask("node0", Version(20, LATER), 2).wanted


def test_one_that_both_ranks_leave_out_counts_once(store: CheckpointStore, record: RunRecord):
    metrics = Metrics()
    control = CheckpointControl("job-1", job_for(store), record, FakeClock(), metrics)
    for step in (10, 10, 20):
        control.on_skipped(Version(step, EPOCH), "no room")
    assert metrics.num_skipped == control.skipped.total == 2


def test_nothing_is_removed_while_one_that_was_overtaken_is_made(
    store: CheckpointStore, record: RunRecord, monkeypatch: pytest.MonkeyPatch
):
    begun, go_on = threading.Event(), threading.Event()
    commit = checkpoint_control.commit_shares

    def commit_slowly(store: CheckpointStore, manifest: Any, shares: Any) -> None:
        if manifest.step == 10:
            begun.set()
            assert go_on.wait(WITHIN_S)
        commit(store, manifest, shares)

    monkeypatch.setattr(checkpoint_control, "commit_shares", commit_slowly)

    async def act() -> None:
        control = control_for(store, record, keep_last=1)
        earlier, later = shares_of(store, 10, 35), shares_of(store, 20, 40)
        assert await bring(control, earlier[0]) is None
        making = asyncio.create_task(bring(control, earlier[1]))
        assert await asyncio.to_thread(begun.wait, WITHIN_S)
        for share in later:
            await bring(control, share)
        chunks = {chunk.chunk_id for share in earlier for chunk in share.chunks.values()}
        assert chunks <= set(store.chunk_ids()), "an unfinished checkpoint names them"
        go_on.set()
        await making

    asyncio.run(act())
    assert [verify(store, step).flaws for step in store.committed_steps()] == [()]
    assert store.committed_steps() == [20]
