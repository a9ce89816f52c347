"""What is read from another node arrives where it belongs, until its reader has given up."""

import socket
import threading
from collections.abc import Generator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.checkpointing.snapshots import leave, payload, version
from trainflow.checkpointing.bounded_calls import PEER_CALLS, BoundedCalls, Call
from trainflow.checkpointing.boxes import whole
from trainflow.checkpointing.held_snapshots import HeldSnapshots
from trainflow.checkpointing.part_reader import Part, read_parts
from trainflow.checkpointing.peer_memory import PeerMemory
from trainflow.checkpointing.snapshot_server import SnapshotServer
from trainflow.checkpointing.wire import send_message
from trainflow.epochs import HeldState, Version
from trainflow.errors import StoreError

WITHIN_S = 10.0
SENT_AT_ONCE = 1000


class SlowServer(SnapshotServer):
    """Sends a little of each part, and the rest once it is let go."""

    def __init__(self, held: HeldSnapshots):
        self.let_go = threading.Event()
        self.num_asked = 0
        super().__init__(held, "job-1", "127.0.0.1")

    def _send_part(self, connection: socket.socket, version: Version, request: Any) -> None:
        self.num_asked += 1
        start, count = request["start"], request["num_bytes"]
        data = payload(3, request["tensor"])[start : start + count]
        send_message(connection, {"ok": True, "num_bytes": count})
        connection.sendall(data[:SENT_AT_ONCE])
        self.let_go.wait(WITHIN_S)
        connection.sendall(data[SENT_AT_ONCE:])


@pytest.fixture
def server(tmp_path: Path) -> Generator[SlowServer]:
    leave(tmp_path, "slot0-1.0", 3)
    with closing(SlowServer(HeldSnapshots(tmp_path))) as server:
        yield server
        server.let_go.set()


def wait_until_all_came_back(calls: BoundedCalls) -> None:
    for _ in range(500):
        if not calls.num_left_behind:
            return
        threading.Event().wait(0.02)
    pytest.fail("a thread that was left behind goes on")


@pytest.mark.parametrize("error", [OSError("no thread"), KeyboardInterrupt()])
@pytest.mark.parametrize("calls", [BoundedCalls(), PEER_CALLS], ids=["any", "peers"])
def test_nothing_arrives_once_it_was_given_up(
    server: SlowServer,
    calls: BoundedCalls,
    error: BaseException,
    monkeypatch: pytest.MonkeyPatch,
):
    handed: list[Call] = []
    hand_over = calls._hand_over

    def hand_over_one(call: Call) -> Call:
        if not handed:
            handed.append(call)
            return hand_over(call)
        for _ in range(500):
            if out[SENT_AT_ONCE - 1]:
                raise error
            threading.Event().wait(0.02)
        raise AssertionError("nothing arrives")

    with closing(PeerMemory(HeldState(version(3), (server.address,)))) as memory:
        manifest = memory.read_manifest()
        entry = manifest.tensors["/0"]
        out = np.zeros(entry.shape, np.uint8)
        with monkeypatch.context() as patch:
            patch.setattr(calls, "_hand_over", hand_over_one)
            wanted = {"/0": Part(whole(entry.shape), out)}
            with pytest.raises((StoreError, KeyboardInterrupt)):
                read_parts(manifest, wanted, memory.read_into, 2, calls=calls)
        before = out.copy()
        assert calls.num_left_behind == 1
        server.let_go.set()
        wait_until_all_came_back(calls)
        assert np.array_equal(out, before)
    assert not out[SENT_AT_ONCE:].any()
    assert server.num_asked <= 2, "it is asked for what nobody waits for"


def test_what_comes_in_pieces_is_whole(server: SlowServer):
    server.let_go.set()
    with closing(PeerMemory(HeldState(version(3), (server.address,)))) as memory:
        chunk = memory.read_manifest().tensors["/0"].shards[0].chunks[0]
        data = bytearray(chunk.num_bytes)
        memory.read_into(chunk, memoryview(data))
    assert data == payload(3, 0)[: chunk.num_bytes]
