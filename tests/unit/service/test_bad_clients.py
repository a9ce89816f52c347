"""Clients that are many, slow, greedy or gone: what they cost, and that others are answered."""

import resource
import socket
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.unit.service.app_process import AppProcess, serving_apart
from tests.unit.service.runs import RecordedRun, wait_until

JOB = "/v1/jobs/tiny-abcdef"
EVENTS = f"{JOB}/events"
STREAM = {"Accept": "text/event-stream"}
NUM_IDLE = 1000
NUM_SLOW = 300
MIB = 1024 * 1024
LARGE = 1_900_000  # characters of an event, of which the system keeps one and a part at once
# Threads of the pool that asks the history, and the database connections that they have.
POOL_THREADS = 45
POOL_DESCRIPTORS = 100
WITHIN_S = 20.0
TCP_REPAIR = 19  # of linux/tcp.h: a socket that is closed says nothing to the other side

Serve = Callable[..., AbstractContextManager[AppProcess]]


@pytest.fixture
def run(home: Path) -> RecordedRun:
    del home  # the run is under it
    return RecordedRun("tiny-abcdef")


@pytest.fixture
def serve(run: RecordedRun, tmp_path: Path) -> Serve:
    del run  # is there before the service

    def serve(**limits: Any) -> AbstractContextManager[AppProcess]:
        return serving_apart(tmp_path / "service.log", limits)

    return serve


@pytest.fixture
def clients() -> Iterator[ExitStack]:
    """Connections that are closed after the test, unless it does so itself."""
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most < 2 * NUM_IDLE:
        pytest.skip(f"needs {2 * NUM_IDLE} open files (ulimit -n), has {most}")
    with ExitStack() as stack:
        yield stack


@contextmanager
def connected(
    service: AppProcess, said: str, buffer_bytes: int | None = None
) -> Generator[socket.socket]:
    """Connect, say something, and leave it at that."""
    with socket.socket() as client:
        client.settimeout(WITHIN_S)
        if buffer_bytes is not None:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer_bytes)
        client.connect((service.host, service.port))
        client.sendall(said.replace("\n", "\r\n").encode())
        yield client


def ask_stream(path: str = EVENTS) -> str:
    return f"GET {path} HTTP/1.1\nHost: localhost\nAccept: text/event-stream\n\n"


def post(*headers: str) -> str:
    lines = ["POST /v1/jobs HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
    return "\n".join([*lines, *headers, "", ""])


def read_until(client: socket.socket, mark: bytes) -> bytes:
    """Return what comes, up to and with a mark, or to the end of the connection."""
    found = b""
    while mark not in found and (piece := client.recv(4096)):
        found += piece
    return found


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def stream_status(service: AppProcess) -> int:
    with connected(service, ask_stream()) as client:
        return status_of(read_until(client, b"\r\n"))


def test_a_thousand_idle_clients_cost_little_and_all_hear_the_next_event(
    serve: Serve, run: RecordedRun, clients: ExitStack
):
    with serve() as service:
        assert service.ask(JOB).status_code == 200
        before = service.measure()
        idle = [clients.enter_context(connected(service, ask_stream())) for _ in range(NUM_IDLE)]
        for client in idle:
            assert b"id: 1\n" in read_until(client, b"id: 1\n")
        during = service.measure()
        assert service.ask(JOB).status_code == 200
        run.happen(1)
        for client in idle:
            assert b"id: 2\n" in read_until(client, b"id: 2\n")
        clients.close()
        wait_until(
            lambda: service.measure().num_descriptors < during.num_descriptors - NUM_IDLE // 2
        )
        wait_until(
            lambda: service.measure().num_descriptors <= before.num_descriptors + POOL_DESCRIPTORS
        )
        assert service.ask(JOB).status_code == 200
    assert during.num_descriptors <= before.num_descriptors + NUM_IDLE + POOL_DESCRIPTORS
    assert during.num_threads <= before.num_threads + POOL_THREADS
    assert during.num_bytes - before.num_bytes < 100 * MIB


def test_clients_that_never_read_are_dropped_and_that_is_told(
    serve: Serve, run: RecordedRun, clients: ExitStack
):
    run.happen(9000, "x" * 1000)
    with serve(streams=20, stalled_s=0.2, stream_bytes=2**30) as service:
        before = service.measure()
        for _ in range(20):
            clients.enter_context(connected(service, ask_stream(), buffer_bytes=4096))
        wait_until(lambda: service.log.read_text().count("dropped a stream") == 20)
        assert stream_status(service) == 200
        wait_until(lambda: service.count_connections() == 0)
        assert service.ask(JOB).status_code == 200
        assert service.measure().num_bytes - before.num_bytes < 100 * MIB


def test_a_client_that_stops_reading_just_before_the_end_is_dropped(
    serve: Serve, run: RecordedRun, clients: ExitStack
):
    run.happen(2, "x" * LARGE)  # of the second one the system keeps a part
    with serve(streams=1, stalled_s=0.2, stream_bytes=2 * LARGE) as service:
        client = clients.enter_context(connected(service, ask_stream(), buffer_bytes=4096))
        assert b"id: 1\n" in read_until(client, b"id: 1\n")
        wait_until(lambda: "dropped a stream" in service.log.read_text())
        wait_until(lambda: service.count_connections() == 0)
        assert service.log.read_text().count("dropped a stream") == 1
        wait_until(lambda: stream_status(service) == 200)
        wait_until(lambda: service.count_connections() == 0)


def test_an_answer_that_is_never_taken_is_broken_off(
    serve: Serve, run: RecordedRun, clients: ExitStack
):
    run.happen(6, "x" * LARGE)
    with serve(stalled_s=0.2) as service:
        asked = ask_stream().replace("Accept: text/event-stream\n", "")
        for times in (1, 20):  # requests on a connection, the next ones before an answer
            clients.enter_context(connected(service, asked * times, buffer_bytes=4096))
        wait_until(lambda: service.log.read_text().count("broke off a connection") == 2)
        wait_until(lambda: service.count_connections() == 0)


def test_headers_that_never_end_hold_up_nobody(serve: Serve, clients: ExitStack):
    with serve() as service:
        before = service.measure()
        slow = [
            clients.enter_context(connected(service, "GET /v1/jobs HTTP/1.1\nHost: loc"))
            for _ in range(NUM_SLOW)
        ]
        assert service.ask(JOB).status_code == 200
        for client in slow:
            client.sendall(b"a")
        assert service.ask(JOB).status_code == 200
        during = service.measure()
        clients.close()
        wait_until(
            lambda: service.measure().num_descriptors <= before.num_descriptors + POOL_DESCRIPTORS
        )
    assert during.num_threads <= before.num_threads + POOL_THREADS
    assert during.num_bytes - before.num_bytes < 50 * MIB


def test_a_body_that_does_not_come_is_given_up(serve: Serve):
    with serve(body_within_s=0.2) as service:
        with connected(service, post("Content-Length: 100") + "{") as client:
            answer = read_until(client, b"body-too-slow")
            assert (status_of(answer), b"got 1 bytes" in answer) == (408, True)
            while client.recv(4096):  # to the end of the connection
                pass
        assert service.ask(JOB).status_code == 200


def test_a_stream_that_is_asked_for_with_a_body_that_does_not_come_is_dropped(serve: Serve):
    with serve(body_within_s=0.2) as service:
        asked = ask_stream().replace("\n\n", "\nContent-Length: 100\n\n")
        with connected(service, asked) as client:
            while client.recv(4096):  # to the end of the connection
                pass
        assert service.ask(JOB).status_code == 200
    told = service.log.read_text()
    assert "dropped a stream: body: got 0 bytes" in told
    assert "never retrieved" not in told


def test_a_stream_is_under_no_deadline_of_bodies(serve: Serve, run: RecordedRun):
    with (
        serve(body_within_s=0.01, heartbeat_s=0.01) as service,
        connected(service, ask_stream()) as client,
    ):
        for _ in range(5):
            read_until(client, b": alive\n")
        run.happen(1)
        assert b"id: 2\n" in read_until(client, b"id: 2\n")


def test_a_hundred_megabytes_are_refused_before_they_are_read(serve: Serve):
    size = 100 * MIB
    with serve() as service:
        before = service.measure()
        with connected(service, post(f"Content-Length: {size}", "Expect: 100-continue")) as client:
            assert status_of(read_until(client, b"body-too-large")) == 413
        with connected(service, post(f"Content-Length: {size}")) as client:
            assert pour(client, b" " * 65536, size) < size // 2
        with connected(service, post("Transfer-Encoding: chunked")) as client:
            assert pour(client, b"10000\r\n" + b" " * 65536 + b"\r\n", size) < size // 2
        assert service.ask(JOB).status_code == 200
        assert service.measure().num_bytes - before.num_bytes < 20 * MIB


def pour(client: socket.socket, piece: bytes, most_bytes: int) -> int:
    """Send without listening until that is refused; returns how many bytes were taken."""
    num_bytes = 0
    try:
        while num_bytes < most_bytes:
            client.sendall(piece)
            num_bytes += len(piece)
    except ConnectionError:
        pass
    return num_bytes


def vanish(client: socket.socket) -> None:
    """Be gone without a word, as a machine that has lost its power."""
    try:
        client.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)
    except PermissionError:
        pytest.skip("needs the right to repair connections (CAP_NET_ADMIN)")
    client.close()


def reset(client: socket.socket) -> None:
    """Break the connection off."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    client.close()


def half_close(client: socket.socket) -> None:
    """Say nothing more, but go on listening."""
    client.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize("leave", [vanish, reset, half_close])
def test_a_connection_that_is_half_open_does_not_stay(
    leave: Callable[[socket.socket], None], serve: Serve
):
    with (
        serve(streams=1, heartbeat_s=0.02) as service,
        connected(service, ask_stream()) as client,
    ):
        assert b"id: 1\n" in read_until(client, b"id: 1\n")
        assert stream_status(service) == 503
        leave(client)
        wait_until(lambda: stream_status(service) == 200)
