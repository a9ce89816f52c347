"""Checkpoints of a history that is left behind are gone, and others can be made in their places."""

import asyncio
import threading
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.checkpointing.test_sharing import make_snapshot, upload
from tests.unit.coordination.fakes import FakeClock
from tests.unit.coordination.test_checkpoint_control import bring, control_for, job_for, permit_for
from trainflow.checkpointing import committing
from trainflow.checkpointing.sharing import ShareReport
from trainflow.checkpointing.store import CheckpointStore
from trainflow.coordination import checkpoint_control
from trainflow.coordination.checkpoint_control import CheckpointControl
from trainflow.coordination.run_record import RunRecord
from trainflow.epochs import EpochId, StoredState, Version
from trainflow.errors import StoreError

EPOCH, LATER = EpochId(1, 1), EpochId(1, 2)


def share_of(store: CheckpointStore, step: int, epoch: EpochId = EPOCH) -> ShareReport:
    (report,) = upload(make_snapshot(35, step), store, 1)
    return replace(report, version=Version(step, epoch))


async def make(control: CheckpointControl, store: CheckpointStore, *steps: int) -> None:
    for step in steps:
        await bring(control, share_of(store, step))


def test_later_ones_are_gone_and_are_made_anew(store: CheckpointStore, record: RunRecord):
    async def act() -> None:
        control = control_for(store, record, keep_last=9)
        await make(control, store, 10, 20, 30)
        assert control.steps == (10, 20, 30)
        assert await control.go_back(10) == StoredState(store.url, 10)
        assert store.committed_steps() == [10]
        assert control.steps == (10,)
        told = record.events_since(0)[-1]
        assert (told["kind"], told["data"]) == ("checkpoints_removed", {"steps": [20, 30]})
        control.on_epoch(LATER, 10)
        await bring(control, share_of(store, 20, LATER))
        assert control.newest == StoredState(store.url, 20)
        assert store.read_manifest(20).attempt == str(LATER)

    asyncio.run(act())


def test_one_that_is_just_being_made_goes_as_well(
    store: CheckpointStore, record: RunRecord, monkeypatch: pytest.MonkeyPatch
):
    may_commit, is_committing = threading.Event(), threading.Event()
    commit = checkpoint_control.commit_shares

    def commit_slowly(*arguments: Any) -> None:
        is_committing.set()
        may_commit.wait(20.0)
        commit(*arguments)

    async def act() -> None:
        control = control_for(store, record, keep_last=9)
        await make(control, store, 10)
        monkeypatch.setattr(checkpoint_control, "commit_shares", commit_slowly)
        report = share_of(store, 20)
        making = asyncio.ensure_future(bring(control, report))
        await asyncio.to_thread(is_committing.wait, 20.0)
        going = asyncio.ensure_future(control.go_back(10))
        await asyncio.sleep(0)
        may_commit.set()
        await making
        assert await going == StoredState(store.url, 10)
        assert store.committed_steps() == [10]

    asyncio.run(act())


def test_what_was_on_its_way_is_not_taken_any_more(store: CheckpointStore, record: RunRecord):
    async def act() -> None:
        control = control_for(store, record, keep_last=9)
        await make(control, store, 10)
        report = share_of(store, 20)
        permit = permit_for(control, report)
        await control.go_back(10)
        assert await control.on_share(report, permit, 3) is False

    asyncio.run(act())
    assert store.committed_steps() == [10]


def test_where_there_is_none_before_all_stay_as_the_run_goes_on(
    store: CheckpointStore, record: RunRecord
):
    async def act() -> None:
        control = control_for(store, record)
        await make(control, store, 10)
        assert await control.go_back(9) is None
        assert store.committed_steps() == [10]
        assert control.newest == StoredState(store.url, 10)
        await bring(control, share_of(store, 20))
        assert control.steps == (10, 20)

    asyncio.run(act())


def test_the_one_that_the_run_is_to_go_back_to_stays(store: CheckpointStore, record: RunRecord):
    async def act() -> None:
        control = control_for(store, record, keep_last=1)
        await make(control, store, 10)
        record.add_event("rewind", "", to_step=10, position=120)
        await make(control, store, 20, 30)
        assert store.committed_steps() == [10, 30]
        assert await control.go_back(10) == StoredState(store.url, 10)
        record.add_event("rewound", "", to_step=10, position=120, steps_lost=25)
        control.on_epoch(LATER, 10)
        await bring(control, share_of(store, 40, LATER))
        assert store.committed_steps() == [40]

    asyncio.run(act())


def test_none_of_the_history_left_behind_is_made_before_the_next_epoch_begins(
    store: CheckpointStore, record: RunRecord
):
    async def act() -> None:
        control = control_for(store, record, keep_last=9)
        await make(control, store, 10)
        await control.go_back(10)
        late = Version(20, EPOCH)
        answer = control.ask("node0", late, 1)
        assert (answer.wanted, answer.permit) == (True, None), "it isn't known yet that none is"
        control.on_epoch(LATER, 10)
        assert not control.ask("node0", late, 1).wanted
        assert control.ask("node0", Version(20, LATER), 1).permit is not None

    asyncio.run(act())


def test_those_of_others_stay(store: CheckpointStore, record: RunRecord):
    async def act() -> None:
        await make(control_for(store, record, keep_last=9), store, 10, 20)

    asyncio.run(act())
    assert committing.forget_after(store, 5, own={20}) == (20,)
    assert store.committed_steps() == [10]


def test_a_store_that_is_down_is_told_to_whoever_asks(
    store: CheckpointStore, record: RunRecord, monkeypatch: pytest.MonkeyPatch
):
    def refuse(_self: CheckpointStore, _step: int) -> None:
        raise StoreError("it is down")

    async def act() -> None:
        control = control_for(store, record, keep_last=9)
        await make(control, store, 10, 20)
        monkeypatch.setattr(CheckpointStore, "remove_marker", refuse)
        with pytest.raises(StoreError):
            await control.go_back(10)
        assert control.steps == (10,), "that of step 20 may be gone"
        assert control.ask("node0", Version(30, EPOCH), 1).permit is not None, "the run goes on"

    asyncio.run(act())


def test_a_new_coordinator_makes_those_again_that_the_run_went_back_from(
    store: CheckpointStore, record: RunRecord
):
    async def act() -> None:
        control = control_for(store, record, keep_last=9)
        await make(control, store, 10, 20, 30)
        await control.go_back(10)
        record.add_event("rewound", "", to_step=10, position=120, steps_lost=25)
        record.add_event("epoch", "", epoch=str(LATER), members=[], base="10@0.0")
        later = RunRecord(record.directory, FakeClock())
        again = CheckpointControl("job-1", job_for(store, keep_last=9), later, FakeClock())
        await again.find_stored()
        assert again.steps == (10,)
        await bring(again, share_of(store, 20, LATER))
        assert again.newest == StoredState(store.url, 20)

    asyncio.run(act())
