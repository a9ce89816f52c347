"""Snapshots over a real connection: read by a worker that restores, copied to another node."""

import socket
from collections.abc import Generator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.unit.checkpointing.snapshots import SIZES, SKELETON, leave, payload, version
from trainflow.checkpointing import snapshot_server
from trainflow.checkpointing.boxes import whole
from trainflow.checkpointing.chunks import CHUNK_BYTES
from trainflow.checkpointing.held_snapshots import HeldSnapshots
from trainflow.checkpointing.manifest import Chunk
from trainflow.checkpointing.part_reader import Part, read_parts
from trainflow.checkpointing.peer_memory import PeerMemory, send_copy
from trainflow.checkpointing.snapshot_server import SnapshotServer
from trainflow.checkpointing.wire import receive_message, send_message
from trainflow.epochs import HeldState
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


def test_without_the_token_nothing_is_given(nodes: list[Node]):
    leave(nodes[0].folder, "slot0-1.0", 3)
    stranger = replace(nodes[0].server.address, token="guess")
    with pytest.raises(CheckpointError, match="got no answer that is right"):
        PeerMemory(HeldState(version(3), (stranger,))).read_manifest()


@pytest.mark.parametrize(
    "request_",
    [
        {"op": "erase", "version": [3, 1, 1]},
        {"op": "read", "version": [3, 1, 1], "tensor": 0, "start": -1, "num_bytes": 5},
        {"op": "read", "version": [3, 1, 1], "tensor": 0, "start": 0, "num_bytes": 10**9},
        {"op": "read", "version": [3, 1, 1], "tensor": 9, "start": 0, "num_bytes": 1},
        {"op": "describe", "version": "latest"},
        {"op": "describe"},
        {"op": "store", "version": [9, 1, 1], "origin": "../x", "skeleton": {}, "tensors": []},
        {"op": "store", "version": [2, 1, 1], "origin": "b", "skeleton": {}, "tensors": []},
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
        send_copy(snapshot, nodes[1].server.address, "nodeA", frames.append)
    return frames


def test_a_copy_is_as_good_as_the_original(nodes: list[Node]):
    leave(nodes[0].folder, "slot0-1.0", 3)
    assert sum(copy(nodes, 3)) == sum(SIZES)
    assert nodes[1].held.newest() == version(3)
    nodes[0].server.close()
    assert read_all(held_by(nodes[1])) == state(3)
    leave(nodes[0].folder, "slot0-1.0", 4)
    copy(nodes, 4)
    assert read_all(held_by(nodes[1], step=4)) == state(4)


def test_a_copy_of_what_is_there_already_is_refused(nodes: list[Node]):
    for node in nodes:
        leave(node.folder, "slot0-1.0", 3)
    with pytest.raises(StateError, match=r"a newer one than 3@1\.1"):
        copy(nodes, 3)


def test_a_copy_that_breaks_off_leaves_the_one_before(nodes: list[Node]):
    leave(nodes[0].folder, "slot0-1.0", 3)
    copy(nodes, 3)
    leave(nodes[0].folder, "slot0-1.0", 4)

    def break_off(num_bytes: int) -> None:
        raise OSError("the link is down")

    with (
        nodes[0].held.reading(version(4)) as snapshot,
        pytest.raises(OSError, match="the link is down"),
    ):
        send_copy(snapshot, nodes[1].server.address, "nodeA", break_off)
    assert nodes[1].held.newest() == version(3)
    copy(nodes, 4)
    assert nodes[1].held.newest() == version(4)


def test_a_frame_damaged_on_its_way_is_refused(nodes: list[Node], monkeypatch: pytest.MonkeyPatch):
    leave(nodes[0].folder, "slot0-1.0", 3)
    receive = snapshot_server.receive_into

    def flip(connection: socket.socket, view: memoryview) -> None:
        receive(connection, view)
        if len(view) > 1000:
            view[500] ^= 1

    monkeypatch.setattr(snapshot_server, "receive_into", flip)
    with pytest.raises((StateError, OSError)):
        copy(nodes, 3)
    assert nodes[1].held.newest() is None
