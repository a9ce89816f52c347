"""A restore tells what is wrong with reading from what is wrong with the state."""

import threading
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.computation.test_restoring import digest, make_state, stored, train
from trainflow.checkpointing.bounded_calls import MAX_LEFT_BEHIND, STORE_CALLS, BoundedCalls
from trainflow.checkpointing.held_snapshots import HeldSnapshots
from trainflow.checkpointing.snapshot_server import SnapshotServer
from trainflow.checkpointing.store import CheckpointStore
from trainflow.computation import restoring
from trainflow.computation.restoring import restore
from trainflow.computation.snapshot_writer import SnapshotWriter
from trainflow.epochs import HeldState, StoredState

__all__ = ["stored"]


def test_where_a_thread_is_not_to_be_had_it_is_tried_again(
    stored: StoredState, monkeypatch: pytest.MonkeyPatch
):
    start, begun, naps_s = threading.Thread.start, list[str](), list[float]()

    def start_but_the_second(thread: threading.Thread) -> None:
        if thread.name == "store":
            begun.append(thread.name)
            if len(begun) == 2:
                raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(restoring, "STORE_CALLS", BoundedCalls())
    monkeypatch.setattr(threading.Thread, "start", start_but_the_second)
    state = make_state(seed=2)
    clock: Any = SimpleNamespace(sleep=naps_s.append)
    restore(state, stored, after_each=lambda: None, clock=clock)
    assert state.version == stored.version
    assert naps_s == [1.0]


@pytest.mark.parametrize("error", [ValueError("odd"), RuntimeError("odd"), KeyError("odd")])
def test_what_goes_wrong_in_reading_does_not_blame_the_training_function(
    stored: StoredState, error: Exception, monkeypatch: pytest.MonkeyPatch
):
    def read_into(*_: object) -> None:
        raise error

    monkeypatch.setattr(CheckpointStore, "read_into", read_into)
    with pytest.raises(type(error), match="odd"):
        restore(make_state(seed=2), stored, after_each=lambda: None)


@contextmanager
def hung_store() -> Generator[None]:
    """Have as many calls to a store without an answer as there may be."""
    go_on = threading.Event()
    try:
        for _ in range(MAX_LEFT_BEHIND):
            with pytest.raises(TimeoutError, match="no answer"):
                STORE_CALLS.call(0.01, lambda _: go_on.wait(30))
        yield
    finally:
        go_on.set()
        while STORE_CALLS.num_left_behind:
            threading.Event().wait(0.01)


def test_a_store_that_hangs_keeps_nobody_from_the_memory_of_other_nodes(tmp_path: Path):
    kept = train(make_state(seed=1))
    assert kept.version is not None
    assert SnapshotWriter(tmp_path, "w").write(kept.tree(), kept.version, None)
    state = make_state(seed=2)
    clock: Any = SimpleNamespace(sleep=lambda _: None, monotonic_s=lambda: 0.0)
    server = SnapshotServer(HeldSnapshots(tmp_path), "job-1", "127.0.0.1")
    with hung_store(), closing(server):
        held = HeldState(kept.version, (server.address,))
        restore(state, held, after_each=lambda: None, clock=clock)
    assert digest(state) == digest(kept)
