"""What is no longer kept goes: at once, or as soon as nothing is in its way, or at the end."""

import asyncio
import threading
from typing import Any

import pytest

from tests.unit.checkpointing.test_sharing import make_snapshot, upload
from tests.unit.coordination.fakes import until
from tests.unit.coordination.test_checkpoint_control import (
    STEP,
    WITHIN_S,
    at_step,
    bring,
    control_for,
    kinds,
    make_checkpoint,
    permit_for,
)
from trainflow.checkpointing.store import CheckpointStore
from trainflow.checkpointing.verification import verify
from trainflow.coordination import store_upkeep
from trainflow.coordination.checkpoint_control import CheckpointControl
from trainflow.coordination.run_record import RunRecord
from trainflow.epochs import EpochId, StoredState, Version
from trainflow.errors import StoreError

EPOCH = EpochId(1, 1)


async def make(control: CheckpointControl, store: CheckpointStore, *steps: int) -> None:
    for step in steps:
        for report in upload(make_snapshot(35, 7, step), store, 2):
            await bring(control, at_step(report, step))


def hold_removal(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """Have the next removal say that it has begun, and wait until it may go on."""
    begun, go_on, collect = threading.Event(), threading.Event(), store_upkeep.collect

    def collect_slowly(*arguments: Any) -> Any:
        begun.set()
        assert go_on.wait(WITHIN_S)
        return collect(*arguments)

    monkeypatch.setattr(store_upkeep, "collect", collect_slowly)
    return begun, go_on


def test_only_what_is_read_stays_and_goes_when_it_is_read_no_more(
    store: CheckpointStore, record: RunRecord
):
    async def act() -> None:
        control = control_for(store, record, keep_last=1)
        await make(control, store, 4)
        with control.reading(StoredState(store.url, 4)):
            await make(control, store, 5, 6)
            assert store.committed_steps() == [4, 6]
            assert verify(store, 4).flaws == (), "also of what it shares with those that went"
            await control.collect_due()
            assert kinds(record).count("checkpoints_removed") == 1, "nothing was due"
        await control.collect_due()
        assert store.committed_steps() == [6]
        assert control.newest == StoredState(store.url, 6)
        assert verify(store, 6).flaws == ()

    asyncio.run(act())


def test_a_reader_of_another_folder_keeps_nothing_here(store: CheckpointStore, record: RunRecord):
    async def act() -> None:
        control = control_for(store, record, keep_last=1)
        with control.reading(StoredState("/elsewhere", 4)):
            await make(control, store, 4, 5)
            assert store.committed_steps() == [5]

    asyncio.run(act())


def test_what_an_upload_held_up_is_removed_after_it(store: CheckpointStore, record: RunRecord):
    async def act() -> None:
        control = control_for(store, record, keep_last=1)
        await make(control, store, 4)
        later = Version(6, EPOCH)
        assert control.ask("another", later, 1).permit is not None
        await make(control, store, 5)
        await control.collect_due()
        assert store.committed_steps() == [4, 5]
        control.on_node_lost("another")
        await control.collect_due()
        assert store.committed_steps() == [5]

    asyncio.run(act())


def test_what_is_due_is_removed_at_the_end(store: CheckpointStore, record: RunRecord):
    async def act() -> None:
        control = control_for(store, record, keep_last=1)
        await make(control, store, 4)
        assert control.ask("another", Version(6, EPOCH), 1).permit is not None
        await make(control, store, 5)
        await control.close()

    asyncio.run(act())
    assert store.committed_steps() == [5]


def test_the_end_waits_for_a_removal_under_way(
    store: CheckpointStore, record: RunRecord, monkeypatch: pytest.MonkeyPatch
):
    async def act() -> None:
        control = control_for(store, record, keep_last=1)
        await make(control, store, 4)
        begun, go_on = hold_removal(monkeypatch)
        making = asyncio.create_task(make(control, store, 5))
        assert await asyncio.to_thread(begun.wait, WITHIN_S)
        closing = asyncio.create_task(control.close())
        await asyncio.sleep(0)
        assert not closing.done()
        go_on.set()
        await asyncio.wait_for(closing, WITHIN_S)
        assert store.committed_steps() == [5]
        await making

    asyncio.run(act())


@pytest.mark.parametrize("error", [StoreError("no answer"), OSError("no answer")])
def test_what_can_not_be_removed_is_told_and_is_no_failure(
    store: CheckpointStore, record: RunRecord, monkeypatch: pytest.MonkeyPatch, error: Exception
):
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(store_upkeep, "collect", fail)

    async def act() -> None:
        control = control_for(store, record, keep_last=1)
        await make(control, store, 4, 5)
        await control.close()

    asyncio.run(act())
    assert kinds(record).count("checkpoints_not_removed") == 2
    assert store.committed_steps() == [4, 5]


def test_a_new_coordinator_removes_what_the_one_before_had_yet_to(
    store: CheckpointStore, record: RunRecord
):
    async def act() -> None:
        first = control_for(store, record, keep_last=1)
        await make(first, store, 4)
        assert first.ask("another", Version(6, EPOCH), 1).permit is not None
        await make(first, store, 5)
        second = control_for(store, record, keep_last=1)
        await second.find_stored()
        await second.collect_due()

    asyncio.run(act())
    assert store.committed_steps() == [5]


def test_nothing_is_permitted_while_either_of_two_removes(
    store: CheckpointStore, record: RunRecord, monkeypatch: pytest.MonkeyPatch
):
    control = make_checkpoint(store, record)
    begun, go_on = hold_removal(monkeypatch)

    async def act() -> None:
        version = Version(STEP + 1, EPOCH)
        control._upkeep.is_due = True
        collecting = asyncio.create_task(control.collect_due())
        assert await asyncio.to_thread(begun.wait, WITHIN_S)
        await control.quarantine(99)
        assert control.ask("node0", version, 1).permit is None
        go_on.set()
        await collecting
        assert control.ask("node0", version, 1).permit is not None

    asyncio.run(act())


def test_no_keeper_waits_for_a_removal(
    store: CheckpointStore, record: RunRecord, monkeypatch: pytest.MonkeyPatch
):
    """What it has brought is in the store: its memory is free for the next."""
    begun, go_on = hold_removal(monkeypatch)

    async def act() -> None:
        go_on.set()
        control = control_for(store, record, keep_last=1)
        await make(control, store, 4)
        begun.clear()
        go_on.clear()
        (report,) = upload(make_snapshot(35, 7, 5), store, 1)
        report = at_step(report, 5)
        permit = permit_for(control, report)
        assert await asyncio.wait_for(control.on_share(report, permit, 3), WITHIN_S) is True
        assert await asyncio.to_thread(begun.wait, WITHIN_S)
        assert store.committed_steps() == [4, 5]
        go_on.set()
        await until(lambda: store.committed_steps() == [5])

    asyncio.run(act())
