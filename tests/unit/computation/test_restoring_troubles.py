"""A restore tells what is wrong with reading from what is wrong with the state."""

import errno
import json
import struct
import threading
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.computation.test_restoring import (
    digest,
    kept,
    make_state,
    stored,
    train,
)
from trainflow.checkpointing.bounded_calls import MAX_LEFT_BEHIND, STORE_CALLS, BoundedCalls
from trainflow.checkpointing.held_snapshots import HeldSnapshots
from trainflow.checkpointing.snapshot_server import SnapshotServer
from trainflow.checkpointing.snapshot_slots import Slot
from trainflow.checkpointing.store import CheckpointStore
from trainflow.computation import own_memory, restoring
from trainflow.computation.own_memory import OwnMemory
from trainflow.computation.restoring import restore
from trainflow.computation.snapshot_writer import SnapshotWriter
from trainflow.computation.training_state import TrainingState
from trainflow.epochs import (
    WHOLE,
    EpochId,
    HeldShards,
    HeldState,
    PeerAddress,
    ShardId,
    StoredState,
    Version,
)
from trainflow.errors import CheckpointMisfitError

__all__ = ["kept", "stored"]


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


HERE = "127.0.0.2"  # loopback as well
PAGE = 4096
FIELD = struct.Struct("=q")
NUM_TEXT, NUM_PAYLOAD, SHARDS = 5 * FIELD.size, 6 * FIELD.size, 8 * FIELD.size


def write_field(path: Path, offset: int, value: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        file.write(FIELD.pack(value))


def write_text(path: Path, make: Callable[[bytes], bytes]) -> None:
    """Put another description in place of a snapshot's; its tensors stay where they lie."""
    data = path.read_bytes()
    (num_text,) = FIELD.unpack_from(data, NUM_TEXT)
    text = make(data[PAGE : PAGE + num_text])
    assert -(-len(text) // PAGE) == -(-num_text // PAGE), "the payload begins at the next page"
    with path.open("r+b") as file:
        file.seek(PAGE)
        file.write(text)
    write_field(path, NUM_TEXT, len(text))


def described(edit: Callable[[Any], object]) -> Callable[[Path], None]:
    """Return what damages a description by ``edit``, which gets it parsed."""

    def change(text: bytes) -> bytes:
        description = json.loads(text)
        edit(description)
        return json.dumps(description).encode().ljust(len(text))

    return lambda path: write_text(path, change)


def of_first_tensor(field: int, value: object) -> Callable[[Path], None]:
    return described(lambda found: found["tensors"][0].__setitem__(field, value))


DAMAGES: dict[str, Callable[[Path], None]] = {
    "text": lambda path: write_text(path, lambda text: b"\xff" * len(text)),
    "deep": lambda path: write_text(path, lambda text: b"[" * len(text)),
    "no text": lambda path: write_field(path, NUM_TEXT, 0),
    "other members": described(lambda found: found.pop("tensors")),
    "payload": lambda path: write_field(path, NUM_PAYLOAD, 10**9),
    "shard": lambda path: write_field(path, SHARDS, 2),
    "state": lambda path: write_field(path, FIELD.size, 99),
    "path": described(lambda found: found["tensors"][0].__setitem__(0, found["tensors"][1][0])),
    "type": of_first_tensor(1, "float33"),
    "no type": of_first_tensor(1, "nn"),
    "shape": of_first_tensor(2, [3]),
    "negative": of_first_tensor(2, [-4, -8]),
    "flat": of_first_tensor(2, [32]),
    "size": of_first_tensor(3, 10**6),
    "infinity": of_first_tensor(3, float("inf")),
    "no skeleton": described(lambda found: found.update(skeleton=None)),
    "another tensor": described(lambda found: found["tensors"].pop()),
    "no progress": described(
        lambda found: found["skeleton"]["dict"].remove(
            next(pair for pair in found["skeleton"]["dict"] if pair[0] == "progress")
        )
    ),
}


@pytest.fixture
def own(kept: TrainingState, tmp_path: Path) -> OwnMemory:
    """The memory of this node, with the same state in it as the other's."""
    assert kept.version is not None
    folder = tmp_path / "own"
    assert SnapshotWriter(folder, "w").write(kept.tree(), kept.version, None)
    return OwnMemory(folder, HERE)


@pytest.fixture
def warnings(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is logged of this node's memory; other tests may have disabled loggers."""
    told: list[str] = []
    for module in (own_memory, restoring):
        monkeypatch.setattr(module.logger, "warning", lambda text, *args: told.append(text % args))
    return told


def restore_beside_another_node(own: OwnMemory, tmp_path: Path, kept: TrainingState) -> None:
    """Restore where this node and another are said to have it, and find it whole."""
    assert kept.version is not None
    state = make_state(seed=2)
    other = SnapshotServer(HeldSnapshots(tmp_path / "memory"), "job-1", "127.0.0.1")
    here = SnapshotServer(HeldSnapshots(own.folder), "job-1", own.host)
    with closing(other), closing(here):
        held = HeldState(kept.version, (other.address, here.address))
        restore(state, held, after_each=lambda: None, own_memory=own)
    assert digest(state) == digest(kept)
    assert state.version == kept.version


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_damaged_on_this_node_is_read_from_another(
    kept: TrainingState, own: OwnMemory, tmp_path: Path, warnings: list[str], damage: str
):
    DAMAGES[damage](own.folder / "w.0.snapshot")
    restore_beside_another_node(own, tmp_path, kept)
    assert len(warnings) == 1
    assert "in this node's memory" in warnings[0] or "from this node's memory" in warnings[0]


def test_what_can_not_be_read_on_this_node_is_read_from_another(
    kept: TrainingState,
    own: OwnMemory,
    tmp_path: Path,
    warnings: list[str],
    monkeypatch: pytest.MonkeyPatch,
):
    reading = Slot.reading

    def read_unless_own(slot: Slot) -> Any:
        if slot.path.is_relative_to(own.folder):
            raise OSError(errno.EMFILE, "too many open files")
        return reading(slot)

    monkeypatch.setattr(Slot, "reading", read_unless_own)
    restore_beside_another_node(own, tmp_path, kept)
    assert len(warnings) == 1
    assert "too many open files" in warnings[0]


def test_what_no_other_node_has_this_node_s_keeper_is_asked_for(
    kept: TrainingState, own: OwnMemory, warnings: list[str], monkeypatch: pytest.MonkeyPatch
):
    naps_s: list[float] = []
    clock: Any = SimpleNamespace(sleep=naps_s.append, monotonic_s=lambda: sum(naps_s))

    def fail(*_: object) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(OwnMemory, "reading", fail)
    state = make_state(seed=2)
    assert kept.version is not None
    with closing(SnapshotServer(HeldSnapshots(own.folder), "job-1", HERE)) as server:
        gone = SnapshotServer(HeldSnapshots(own.folder), "job-1", "127.0.0.1")
        gone.close()
        held = HeldState(kept.version, (gone.address, server.address))
        restore(state, held, after_each=lambda: None, own_memory=own, clock=clock)
    assert digest(state) == digest(kept)
    assert "this node's Keeper is asked too" in warnings[-1]


def test_of_shards_that_one_is_read_elsewhere_which_was_looked_for_here():
    own, version = OwnMemory(Path("/memory"), HERE), Version(3, EpochId(1, 1))
    here, there = PeerAddress(HERE, 1, "t"), PeerAddress("127.0.0.1", 1, "t")
    held = [(here, there), (here, there), (here,)]
    shards = tuple(HeldState(version, each, ShardId(k, 3)) for k, each in enumerate(held))
    stored = HeldShards(version, shards)

    def sources(index: int, count: int) -> list[tuple[PeerAddress, ...]]:
        found = own.elsewhere(stored, ShardId(index, count))
        assert isinstance(found, HeldShards)
        return [each.sources for each in found.shards]

    assert sources(0, 3) == [(there,), (here, there), (here,)]
    assert sources(2, 3) == held, "there is none elsewhere"
    assert sources(0, 2) == held, "of another world none was looked for"
    checkpoint = StoredState("/store", 3)
    assert own.elsewhere(checkpoint, WHOLE) == checkpoint


def test_a_state_of_another_model_is_refused_wherever_it_is_read(
    kept: TrainingState, own: OwnMemory
):
    assert kept.version is not None
    with closing(SnapshotServer(HeldSnapshots(own.folder), "job-1", HERE)) as server:
        held = HeldState(kept.version, (server.address,))
        with pytest.raises(CheckpointMisfitError, match="is whole, and can't be loaded here"):
            restore(make_state(seed=2, width=9), held, after_each=lambda: None, own_memory=own)
