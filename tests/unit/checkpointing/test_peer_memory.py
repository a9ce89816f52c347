"""Snapshots over a real connection: read by a worker that restores, copied to another node."""

import errno
import socket
import threading
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import xxhash

from tests.unit.checkpointing.snapshots import SIZES, SKELETON, leave, payload, version
from trainflow.checkpointing import peer_memory, snapshot_server, wire
from trainflow.checkpointing.boxes import whole
from trainflow.checkpointing.chunks import CHUNK_BYTES
from trainflow.checkpointing.held_snapshots import HeldSnapshots
from trainflow.checkpointing.manifest import Chunk, Manifest
from trainflow.checkpointing.part_reader import Part, read_parts
from trainflow.checkpointing.peer_memory import (
    PeerMemory,
    UnreachableMemoryError,
    is_held,
    send_copy,
)
from trainflow.checkpointing.snapshot_server import SnapshotServer
from trainflow.checkpointing.snapshot_slots import Slot
from trainflow.checkpointing.wire import (
    FRAME_BYTES,
    WAIT,
    receive_answer,
    receive_message,
    send_message,
)
from trainflow.clock import SYSTEM_CLOCK
from trainflow.epochs import WHOLE, EpochId, HeldState, PeerAddress, ShardId, Version
from trainflow.errors import CheckpointError, StateError

HOST = "127.0.0.1"


class Node:
    """A folder of snapshots and its server."""

    def __init__(self, folder: Path):
        folder.mkdir()
        self.folder = folder
        self.held = HeldSnapshots(folder)
        self.server = SnapshotServer(self.held, "job-1", HOST)


@pytest.fixture
def nodes(tmp_path: Path) -> Generator[list[Node]]:
    nodes = [Node(tmp_path / name) for name in ("a", "b")]
    yield nodes
    for node in nodes:
        node.server.close()


def read_all(held: HeldState) -> list[bytes]:
    with closing(PeerMemory(held)) as memory:
        manifest = memory.read_manifest()
        assert manifest.skeleton == SKELETON
        wanted = {
            path: Part(whole(entry.shape), np.zeros(entry.shape, np.uint8))
            for path, entry in manifest.tensors.items()
        }
        read_parts(manifest, wanted, memory.read_into, num_threads=3)
    return [part.out.tobytes() for part in wanted.values()]


def read_chunk(memory: PeerMemory, chunk: Chunk) -> bytes:
    data = bytearray(chunk.num_bytes)
    memory.read_into(chunk, memoryview(data))
    return bytes(data)


def state(step: int) -> list[bytes]:
    return [payload(step, index)[:size] for index, size in enumerate(SIZES)]


def held_by(*nodes: Node, step: int = 3) -> HeldState:
    return HeldState(version(step), tuple(node.server.address for node in nodes))


def test_a_state_is_read_from_all_that_hold_it(nodes: list[Node]):
    for node in nodes:
        leave(node.folder, "slot0-1.0", 3)
    assert read_all(held_by(*nodes)) == state(3)


def test_who_wants_to_know_hears_when_half_of_a_part_is_sent(tmp_path: Path):
    leave(tmp_path, "slot0-1.0", 3)
    sent: list[Version] = []
    server = SnapshotServer(HeldSnapshots(tmp_path), "job-1", HOST, sent.append)
    with closing(server):
        assert read_all(HeldState(version(3), (server.address,))) == state(3)
    assert set(sent) == {version(3)}


def test_what_one_has_damaged_another_gives(nodes: list[Node]):
    for node in nodes:
        leave(node.folder, "slot0-1.0", 3)
    with (nodes[1].folder / "slot0-1.0.0.snapshot").open("r+b") as file:
        file.seek(3_000_000)
        file.write(b"damage")
    with closing(PeerMemory(held_by(nodes[1], nodes[0]))) as memory:
        manifest = memory.read_manifest()
        assert manifest == nodes[0].held.describe(version(3), "job-1"), (
            "the first asked is the last"
        )
        chunk = manifest.tensors["/0"].shards[0].chunks[1]
        assert {read_chunk(memory, chunk) for _ in range(2)} == {
            state(3)[0][CHUNK_BYTES:][:CHUNK_BYTES]
        }


def test_a_node_that_is_gone_is_left_out(nodes: list[Node]):
    leave(nodes[1].folder, "slot0-1.0", 3)
    nodes[0].server.close()
    assert read_all(held_by(*nodes)) == state(3)


def test_when_none_has_it_that_is_said(nodes: list[Node]):
    leave(nodes[0].folder, "slot0-1.0", 4)
    with pytest.raises(CheckpointError, match=r"the newest is of 4@1\.1") as caught:
        PeerMemory(held_by(*nodes)).read_manifest()
    assert "step 3 in the memory of 2 nodes" in str(caught.value)


def test_without_the_token_nothing_is_given(nodes: list[Node], monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(peer_memory, "_ASK_AGAIN_FOR_S", 0.0)
    leave(nodes[0].folder, "slot0-1.0", 3)
    stranger = replace(nodes[0].server.address, token="guess")
    with pytest.raises(UnreachableMemoryError, match="got no answer that is right"):
        PeerMemory(HeldState(version(3), (stranger,))).read_manifest()


@pytest.mark.parametrize(
    "request_",
    [
        {"op": "erase", "version": [3, 1, 1], "shard": [0, 1]},
        {
            "op": "read",
            "version": [3, 1, 1],
            "shard": [0, 1],
            "tensor": 0,
            "start": -1,
            "num_bytes": 5,
        },
        {
            "op": "read",
            "version": [3, 1, 1],
            "shard": [0, 1],
            "tensor": 0,
            "start": 0,
            "num_bytes": 10**9,
        },
        {
            "op": "read",
            "version": [3, 1, 1],
            "shard": [0, 1],
            "tensor": 9,
            "start": 0,
            "num_bytes": 1,
        },
        {"op": "describe", "version": "latest", "shard": [0, 1]},
        {"op": "describe"},
        {"op": "describe", "version": [3, 1, 1]},
        {"op": "describe", "version": [3, 1, 1], "shard": [1, 2]},
        {"op": "read", "version": [3, 1, 1], "shard": "0"},
        {
            "op": "store",
            "version": [9, 1, 1],
            "shard": [0, 1],
            "of_shard": False,
            "kept": None,
            "origin": "../x",
            "skeleton": {},
            "tensors": [],
        },
        {
            "op": "store",
            "version": [2, 1, 1],
            "shard": [0, 1],
            "of_shard": False,
            "kept": None,
            "origin": "b",
            "skeleton": {},
            "tensors": [],
        },
        [],
    ],
)
def test_what_makes_no_sense_is_refused_and_serving_goes_on(nodes: list[Node], request_: object):
    leave(nodes[0].folder, "slot0-1.0", 3)
    address = nodes[0].server.address
    with socket.create_connection((address.host, address.port), timeout=5) as connection:
        send_message(connection, address.token)
        send_message(connection, request_)
        assert receive_message(connection)["ok"] is False
    assert read_all(held_by(nodes[0])) == state(3)


def copy(nodes: list[Node], step: int) -> list[int]:
    """Copy node a's snapshot to node b; returns the sizes of the frames."""
    frames: list[int] = []
    with nodes[0].held.reading(version(step)) as snapshot:
        send_copy(snapshot, nodes[1].server.address, "nodeA", lambda size, _: frames.append(size))
    return frames


def copy_at_last(nodes: list[Node], step: int) -> None:
    """Copy once the connection before has let go of its slot."""
    give_up_at_s = SYSTEM_CLOCK.monotonic_s() + 10.0
    while nodes[1].held.newest() != version(step):
        try:
            copy(nodes, step)
        except StateError as error:
            if "in use" not in str(error) or SYSTEM_CLOCK.monotonic_s() > give_up_at_s:
                raise


def test_a_copy_is_as_good_as_the_original(nodes: list[Node]):
    leave(nodes[0].folder, "slot0-1.0", 3)
    assert sum(copy(nodes, 3)) == sum(SIZES)
    assert nodes[1].held.newest() == version(3)
    nodes[0].server.close()
    assert read_all(held_by(nodes[1])) == state(3)
    leave(nodes[0].folder, "slot0-1.0", 4)
    copy(nodes, 4)
    assert read_all(held_by(nodes[1], step=4)) == state(4)


def test_a_copy_of_what_is_there_already_costs_nothing_and_an_older_one_is_refused(
    nodes: list[Node],
):
    for node in nodes:
        leave(node.folder, "slot0-1.0", 3)
    assert copy(nodes, 3) == []
    leave(nodes[1].folder, "slot0-1.0", 4)
    with pytest.raises(StateError, match=r"a newer one than 4@1\.1"):
        copy(nodes, 3)


def test_a_copy_that_breaks_off_leaves_the_one_before(nodes: list[Node]):
    leave(nodes[0].folder, "slot0-1.0", 3)
    copy(nodes, 3)
    leave(nodes[0].folder, "slot0-1.0", 4)

    def break_off(_num_bytes: int, _num_under_way: Callable[[], int]) -> None:
        raise OSError("the link is down")

    with (
        nodes[0].held.reading(version(4)) as snapshot,
        pytest.raises(OSError, match="the link is down"),
    ):
        send_copy(snapshot, nodes[1].server.address, "nodeA", break_off)
    assert nodes[1].held.newest() == version(3)
    copy_at_last(nodes, 4)
    assert nodes[1].held.newest() == version(4)


def test_a_frame_damaged_on_its_way_is_refused(nodes: list[Node], monkeypatch: pytest.MonkeyPatch):
    leave(nodes[0].folder, "slot0-1.0", 3)
    receive = wire.receive_into

    def flip(connection: socket.socket, view: memoryview) -> None:
        receive(connection, view)
        if len(view) > 1000:
            view[500] ^= 1

    monkeypatch.setattr(wire, "receive_into", flip)
    with pytest.raises((StateError, OSError)):
        copy(nodes, 3)
    assert nodes[1].held.newest() is None


def connect(node: Node) -> socket.socket:
    address = node.server.address
    connection = socket.create_connection((address.host, address.port), timeout=10)
    send_message(connection, address.token)
    return connection


def offer(node: Node, of: Version, num_bytes: int) -> socket.socket:
    """Ask to store a copy of one tensor, from another node."""
    connection = connect(node)
    epoch = of.epoch
    request = {
        "op": "store",
        "version": [of.step, epoch.incarnation, epoch.counter],
        "shard": [0, 1],
        "of_shard": False,
        "kept": None,
        "origin": "nodeA",
        "skeleton": {"tensor": 0},
        "tensors": [["/a", "uint8", [num_bytes], num_bytes]],
    }
    send_message(connection, request)
    return connection


def send_frame(connection: socket.socket, value: int) -> None:
    frame = bytes([value]) * FRAME_BYTES
    connection.sendall(frame + xxhash.xxh3_128_digest(frame))


def test_a_sender_that_connects_anew_does_not_write_where_its_first_connection_does(
    nodes: list[Node],
):
    stalled, anew = (offer(nodes[0], version(step), 2 * FRAME_BYTES) for step in (7, 8))
    with stalled, anew:
        assert receive_message(stalled) == {"ok": True}
        assert receive_message(anew) == {"ok": True}
        send_frame(stalled, 7)
        send_frame(anew, 8)
        send_frame(anew, 8)
        assert receive_message(anew) == {"ok": True}
        send_frame(stalled, 7)  # what was in flight arrives
        assert receive_message(stalled) == {"ok": True}
    assert nodes[0].held.newest() == version(8)
    with nodes[0].held.reading(version(8)) as snapshot:
        assert bytes(snapshot.payloads[0]) == b"\x08" * 2 * FRAME_BYTES


def test_the_copy_of_a_run_that_went_back_is_taken(nodes: list[Node]):
    leave(nodes[0].folder, "slot0-1.0", 100)
    for of, is_taken in ((Version(90, EpochId(1, 5)), True), (version(101), False)):
        with offer(nodes[0], of, 0) as connection:
            assert receive_message(connection)["ok"] is is_taken
            if is_taken:
                assert receive_message(connection) == {"ok": True}
    assert nodes[0].held.newest() == Version(90, EpochId(1, 5))


def test_connections_that_the_keeper_has_ended_cost_it_no_trust(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
):
    leave(nodes[0].folder, "slot0-1.0", 3)
    ended = threading.Event()
    serve = SnapshotServer._serve

    def serve_and_tell(server: SnapshotServer, connection: socket.socket) -> None:
        serve(server, connection)
        ended.set()

    monkeypatch.setattr(SnapshotServer, "_serve", serve_and_tell)
    monkeypatch.setattr(snapshot_server, "_SILENT_AT_MOST_S", 0.2)
    with closing(PeerMemory(held_by(nodes[0]))) as memory:
        chunk = memory.read_manifest().tensors["/0"].shards[0].chunks[0]
        assert ended.wait(timeout=10.0)
        assert read_chunk(memory, chunk) == state(3)[0][:CHUNK_BYTES]


@pytest.fixture
def chatty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keepers that say often that they are at work, and peers that bear no silence."""
    monkeypatch.setattr(snapshot_server, "_TELL_EVERY_S", 0.02)
    monkeypatch.setattr(peer_memory, "_SILENT_AT_MOST_S", 1.0)


@pytest.mark.usefixtures("chatty")
def test_a_description_may_take_longer_than_silence_is_borne(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
):
    leave(nodes[0].folder, "slot0-1.0", 3)
    heard, describe = [threading.Event() for _ in range(3)], nodes[0].held.describe

    def describe_slowly(*args: Any) -> Manifest:
        assert all(event.wait(timeout=5.0) for event in heard)
        return describe(*args)

    def hear() -> None:
        next((event for event in heard if not event.is_set()), heard[-1]).set()

    monkeypatch.setattr(nodes[0].held, "describe", describe_slowly)
    with closing(PeerMemory(held_by(nodes[0]), hear)) as memory:
        assert memory.read_manifest() == describe(version(3), "job-1")
        assert all(event.is_set() for event in heard)


@pytest.mark.usefixtures("chatty")
def test_room_for_a_copy_may_take_longer_than_silence_is_borne(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
):
    heard, begin = threading.Event(), Slot.begin

    def begin_slowly(*args: Any, **how: Any) -> list[memoryview]:
        assert heard.wait(timeout=5.0)
        return begin(*args, **how)

    monkeypatch.setattr(Slot, "begin", begin_slowly)
    with offer(nodes[0], version(3), 0) as connection:
        assert receive_message(connection) == WAIT
        heard.set()
        assert receive_answer(connection, lambda: None) == {"ok": True}
        assert receive_message(connection) == {"ok": True}
    assert nodes[0].held.newest() == version(3)


@pytest.mark.usefixtures("chatty")
def test_a_sender_waits_for_room(nodes: list[Node], monkeypatch: pytest.MonkeyPatch):
    leave(nodes[0].folder, "slot0-1.0", 3)
    told, begin, send = threading.Event(), Slot.begin, snapshot_server.send_message

    def begin_slowly(*args: Any, **how: Any) -> list[memoryview]:
        assert told.wait(timeout=5.0)
        return begin(*args, **how)

    def send_and_note(connection: socket.socket, message: Any) -> None:
        send(connection, message)
        if message == WAIT:
            told.set()

    monkeypatch.setattr(Slot, "begin", begin_slowly)
    monkeypatch.setattr(snapshot_server, "send_message", send_and_note)
    assert sum(copy(nodes, 3)) == sum(SIZES)
    assert nodes[1].held.newest() == version(3)


def test_serving_goes_on_when_descriptors_and_threads_were_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    accept, start = socket.socket.accept, threading.Thread.start
    troubles = [errno.EMFILE, errno.ECONNABORTED]
    refused: list[str] = []

    def accept_at_last(listener: socket.socket) -> tuple[socket.socket, Any]:
        if troubles:
            raise OSError(troubles.pop(), "no connection")
        return accept(listener)

    def start_at_last(thread: threading.Thread) -> None:
        if thread.name == "snapshot-peer" and not refused:
            refused.append(thread.name)
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(snapshot_server, "_AFTER_FAILURE_S", 0.01)
    monkeypatch.setattr(socket.socket, "accept", accept_at_last)
    monkeypatch.setattr(threading.Thread, "start", start_at_last)
    node = Node(tmp_path / "c")
    leave(node.folder, "slot0-1.0", 3)
    with closing(node.server), connect(node) as connection:
        with pytest.raises(OSError):  # noqa: PT011  ended, or reset
            receive_message(connection)
        assert not troubles
        assert read_all(held_by(node)) == state(3)


def test_a_connection_that_ends_as_it_begins_is_let_go(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
):
    connections: list[socket.socket] = []

    def fail(connection: socket.socket, _: Any) -> None:
        connections.append(connection)
        raise ConnectionResetError("the Keeper has just died")

    monkeypatch.setattr(peer_memory, "send_message", fail)
    with pytest.raises(ConnectionResetError):
        peer_memory.connect(nodes[0].server.address)
    assert [connection.fileno() for connection in connections] == [-1]


class FrailServer(SnapshotServer):
    """Ends a connection in the middle of an answer, so many times."""

    def __init__(self, held: HeldSnapshots, num_breaks: int, *, dies: bool = False):
        self.num_breaks = num_breaks
        self._dies = dies
        super().__init__(held, "job-1", HOST)

    def _send_part(self, connection: socket.socket, version: Version, request: Any) -> None:
        if self.num_breaks <= 0:
            super()._send_part(connection, version, request)
            return
        self.num_breaks -= 1
        if self._dies:
            self.close()
        send_message(connection, {"ok": True, "num_bytes": request["num_bytes"]})
        connection.sendall(bytes(request["num_bytes"] // 2))
        raise ConnectionAbortedError("as if its process had been killed")


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Peers that ask again soon, and not for long."""
    monkeypatch.setattr(peer_memory, "_ASK_AGAIN_AFTER_S", 0.01)
    monkeypatch.setattr(peer_memory, "_ASK_AGAIN_FOR_S", 0.5)


@pytest.mark.usefixtures("hasty")
def test_connections_that_break_in_mid_answer_cost_the_only_holder_no_trust(
    nodes: list[Node], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(peer_memory, "_ASK_AGAIN_FOR_S", 30.0)
    leave(nodes[0].folder, "slot0-1.0", 3)
    nodes[0].server.close()
    nodes[0].server = frail = FrailServer(nodes[0].held, num_breaks=8)
    assert read_all(held_by(nodes[0])) == state(3)
    assert frail.num_breaks <= 0


@pytest.mark.usefixtures("hasty")
def test_a_keeper_that_dies_in_mid_answer_is_named_and_serves_the_same_when_it_is_back(
    nodes: list[Node],
):
    leave(nodes[0].folder, "slot0-1.0", 3)
    nodes[0].server.close()
    nodes[0].server = FrailServer(nodes[0].held, num_breaks=10**6, dies=True)
    gone = nodes[0].server.address
    with pytest.raises(UnreachableMemoryError, match=rf"{HOST}:{gone.port}: ") as caught:
        read_all(held_by(nodes[0]))
    assert caught.value.sources == (gone,)
    nodes[0].server = SnapshotServer(nodes[0].held, "job-1", HOST)
    assert nodes[0].server.address != gone
    assert read_all(held_by(nodes[0])) == state(3)


@pytest.mark.usefixtures("hasty")
def test_only_who_did_not_answer_may_have_it_still(nodes: list[Node]):
    leave(nodes[1].folder, "slot0-1.0", 4)
    nodes[0].server.close()
    with pytest.raises(UnreachableMemoryError, match=r"the newest is of 4@1\.1") as caught:
        read_all(held_by(*nodes))
    assert caught.value.sources == (nodes[0].server.address,)


@pytest.mark.usefixtures("hasty")
def test_who_did_not_answer_is_asked_again_only_when_nobody_else_is_left(nodes: list[Node]):
    for node in nodes:
        leave(node.folder, "slot0-1.0", 3)
    nodes[0].server.close()
    nodes[0].server = frail = FrailServer(nodes[0].held, num_breaks=1)
    with closing(PeerMemory(held_by(*nodes))) as memory:
        chunk = memory.read_manifest().tensors["/0"].shards[0].chunks[0]
        memory._note(frail.address, ConnectionResetError("it was slow"))
        assert {read_chunk(memory, chunk) for _ in range(6)} == {state(3)[0][:CHUNK_BYTES]}
        assert frail.num_breaks == 1, "it was asked"
        memory._note(nodes[1].server.address, CheckpointError("damaged"))
        assert read_chunk(memory, chunk) == state(3)[0][:CHUNK_BYTES]
        assert frail.num_breaks == 0


def test_an_answer_that_makes_no_sense_is_wrong(nodes: list[Node], monkeypatch: pytest.MonkeyPatch):
    leave(nodes[0].folder, "slot0-1.0", 3)
    monkeypatch.setattr(
        SnapshotServer, "_answer", lambda _, connection, __: send_message(connection, {"ok": True})
    )
    with pytest.raises(CheckpointError, match="got no answer that is right") as caught:
        PeerMemory(held_by(nodes[0])).read_manifest()
    assert not isinstance(caught.value, UnreachableMemoryError)


def test_those_who_wait_for_a_keeper_say_that_they_are_alive_and_give_up_in_time():
    heard: list[None] = []
    naps_s: list[float] = []
    clock: Any = SimpleNamespace(sleep=naps_s.append, monotonic_s=lambda: sum(naps_s))
    nobody = HeldState(version(3), (PeerAddress(HOST, 1, "token"),))
    with pytest.raises(UnreachableMemoryError):
        PeerMemory(nobody, lambda: heard.append(None), clock).read_manifest()
    assert 3 <= len(heard) == len(naps_s) <= 20
    assert sum(naps_s) <= 10.0


def test_a_node_says_whether_it_has_a_state_and_takes_no_room_for_it(nodes: list[Node]):
    leave(nodes[0].folder, "slot0-1.0", 3)
    address, before = nodes[0].server.address, sorted(nodes[0].folder.iterdir())
    assert is_held(version(3), WHOLE, address)
    assert not is_held(version(4), WHOLE, address)
    assert not is_held(version(3), ShardId(0, 2), address)
    assert sorted(nodes[0].folder.iterdir()) == before
    with (
        peer_memory.connect(address) as connection,
        pytest.raises(StateError, match="got op 'hold', expected describe, holds"),
    ):
        peer_memory.request(connection, {"op": "hold", "version": [3, 1, 1]})
