"""Checkpoints on a network file system whose server falls silent: nobody waits for ever."""

import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from tests.storage.uploads import call_after, leave, load, make_payload, serving
from tests.testbed.network_file_system import NetworkFileSystem
from trainflow.checkpointing.bounded_calls import MAX_LEFT_BEHIND, STORE_CALLS
from trainflow.checkpointing.collector import collect
from trainflow.checkpointing.store import CheckpointStore
from trainflow.checkpointing.verification import quarantine, verify
from trainflow.errors import CheckpointConflictError, StoreError

pytestmark = [pytest.mark.storage, pytest.mark.slow, pytest.mark.timeout(180)]

THAWED_WITHIN_S = 30.0


@pytest.fixture
def store(shared: Path) -> CheckpointStore:
    return CheckpointStore(str(shared))


def test_checkpoints_are_written_read_verified_taken_away_and_collected(
    shared: Path, store: CheckpointStore, tmp_path: Path
):
    payloads = {step: make_payload(step, 3) for step in (1, 2, 3)}
    with serving(tmp_path / "node", str(shared)) as desk:
        for step, payload in payloads.items():
            leave(tmp_path / "node", step, payload)
            desk.wait_for(step)
    assert store.committed_steps() == [1, 2, 3]
    assert not any(verify(store, step).flaws for step in payloads)
    with pytest.raises(CheckpointConflictError):
        store.commit(replace(store.read_manifest(2), attempt="b"))
    damaged = list(store.read_manifest(3).chunks().values())[1]
    store.write_chunk(damaged, b"something else")
    assert quarantine(store, 3) == 1
    assert collect(store, {2}).steps == (1,)
    assert load(store, 2) == payloads[2]


@pytest.mark.usefixtures("impatient")
def test_a_server_that_freezes_during_an_upload_costs_that_checkpoint_only(
    running_mount: NetworkFileSystem,
    shared: Path,
    store: CheckpointStore,
    tmp_path: Path,
    monkeypatch,
):
    """Its threads can't be ended. They are left behind, and come back when it answers again."""
    payload = make_payload(1, 3)
    with serving(tmp_path / "node", str(shared), give_up_after_s=4.0) as desk:
        leave(tmp_path / "node", 1, payload)
        desk.wait_for(1)
        monkeypatch.setattr(CheckpointStore, "write_chunk", call_after(4, running_mount.freeze))
        try:
            slot = leave(tmp_path / "node", 2, make_payload(2, 18))
            desk.wait_for(2)
            assert "no answer within" in desk.failed[2]
            with pytest.raises(StoreError):
                verify(store, 1)
            assert 0 < STORE_CALLS.num_left_behind <= MAX_LEFT_BEHIND
            # The room of what was given up is the worker's again, whoever still holds a view of it.
            with slot.reading():
                pass
            assert slot.take()
        finally:
            running_mount.thaw()
        give_up_at_s = time.monotonic() + THAWED_WITHIN_S
        while STORE_CALLS.num_left_behind:
            assert time.monotonic() < give_up_at_s
            with suppress(StoreError):  # it has much to do at first
                store.committed_steps()
        leave(tmp_path / "node", 3, payload)
        desk.wait_for(3)
    assert desk.committed == [1, 3]
    assert store.committed_steps() == [1, 3]
    assert not any(verify(store, step).flaws for step in (1, 3))
    assert load(store, 3) == payload


@pytest.mark.usefixtures("impatient")
def test_while_it_is_frozen_only_so_many_threads_wait(
    running_mount: NetworkFileSystem,
    shared: Path,
    store: CheckpointStore,
    tmp_path: Path,
    monkeypatch,
):
    with serving(tmp_path / "node", str(shared)) as desk:
        leave(tmp_path / "node", 1, make_payload(1, 40))
        desk.wait_for(1)
    running_mount.freeze()
    try:
        began_at_s = time.monotonic()
        for _ in range(4):
            with pytest.raises(StoreError):
                verify(store, 1)
        assert STORE_CALLS.num_left_behind <= MAX_LEFT_BEHIND
        assert time.monotonic() - began_at_s < 60
    finally:
        running_mount.thaw()
    give_up_at_s = time.monotonic() + THAWED_WITHIN_S
    while STORE_CALLS.num_left_behind:
        assert time.monotonic() < give_up_at_s
    assert not verify(store, 1).flaws
