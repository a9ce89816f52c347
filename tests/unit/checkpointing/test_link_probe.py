"""A Keeper probes the link to another one, over real connections."""

import socket
import threading
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path

import pytest

from trainflow.checkpointing import link_probe
from trainflow.checkpointing.held_snapshots import HeldSnapshots
from trainflow.checkpointing.link_probe import FIRST_BYTES, MOST_BYTES, probe_link
from trainflow.checkpointing.peer_memory import connect, request
from trainflow.checkpointing.snapshot_server import SnapshotServer
from trainflow.clock import SYSTEM_CLOCK
from trainflow.epochs import PeerAddress
from trainflow.errors import StateError

HOST = "127.0.0.1"
PIECE_BYTES = 16 * 1024


class SlowWay:
    """Passes on what comes from either side, at so many bytes a second at most."""

    def __init__(self, target: PeerAddress, up: float | None, down: float | None):
        self._target = target
        self._rates = up, down
        self._listener = socket.create_server((HOST, 0))
        self.address = PeerAddress(HOST, self._listener.getsockname()[1], target.token)
        self._sockets: list[socket.socket] = [self._listener]
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        with suppress(OSError):  # closed: the test is over
            near, _ = self._listener.accept()
            far = socket.create_connection((HOST, self._target.port))
            self._sockets += [near, far]
            for pair, rate in (((near, far), self._rates[0]), ((far, near), self._rates[1])):
                self._threads.append(threading.Thread(target=self._pass_on, args=(*pair, rate)))
                self._threads[-1].start()

    def _pass_on(self, source: socket.socket, sink: socket.socket, rate: float | None) -> None:
        free_at_s = SYSTEM_CLOCK.monotonic_s()
        with suppress(OSError):
            while piece := source.recv(PIECE_BYTES):
                if rate is not None:
                    now_s = SYSTEM_CLOCK.monotonic_s()
                    free_at_s = max(free_at_s, now_s) + len(piece) / rate
                    SYSTEM_CLOCK.sleep(free_at_s - now_s)
                sink.sendall(piece)
            sink.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for each in self._sockets:
            each.close()


@pytest.fixture
def server(tmp_path: Path) -> Generator[SnapshotServer]:
    server = SnapshotServer(HeldSnapshots(tmp_path), "job-1", HOST)
    yield server
    server.close()


@pytest.mark.parametrize(
    ("up", "down"), [(4e6, 4e6), (4e6, None), (None, 4e6)], ids=["both", "there", "back"]
)
def test_a_slow_way_is_told_in_whichever_direction_it_is(
    server: SnapshotServer, up: float | None, down: float | None
):
    way = SlowWay(server.address, up, down)
    try:
        slow = probe_link(way.address, SYSTEM_CLOCK)
    finally:
        way.close()
    assert slow.bytes_per_s <= 4e6
    fast = probe_link(server.address, SYSTEM_CLOCK)
    assert fast.bytes_per_s > 3 * slow.bytes_per_s
    assert 0 < fast.round_trip_s < 1


def test_a_way_that_is_too_slow_to_be_measured_ends_the_probe(
    server: SnapshotServer, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(link_probe, "PROBE_WITHIN_S", 0.5)
    way = SlowWay(server.address, 100e3, None)
    try:
        slow = probe_link(way.address, SYSTEM_CLOCK)
    finally:
        way.close()
    assert slow.bytes_per_s == FIRST_BYTES / 0.5


def test_who_does_not_answer_is_not_called_slow(server: SnapshotServer):
    server.close()
    with pytest.raises(OSError, match="refused"):
        probe_link(server.address, SYSTEM_CLOCK)


def test_what_follows_a_probe_on_its_connection_is_answered(server: SnapshotServer):
    with connect(server.address) as connection:
        for _ in range(2):
            request(connection, {"op": "probe", "take": 0, "give": 0})


@pytest.mark.parametrize("sizes", [{"take": MOST_BYTES + 1}, {"give": -1}, {"give": "many"}])
def test_a_probe_of_a_size_that_makes_no_sense_is_refused(
    server: SnapshotServer, sizes: dict[str, object]
):
    with connect(server.address) as connection, pytest.raises(StateError, match="ValueError"):
        request(connection, {"op": "probe", "take": 0, "give": 0} | sizes)
