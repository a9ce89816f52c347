"""What comes before a request is asked has bounds, and what is no HTTP is told as a problem."""

import json
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from tests.unit.service.runs import find_port
from trainflow.service import http_protocol
from trainflow.service.http_server import HttpServer
from trainflow.service.settings import HttpSettings

Talk = Callable[..., list[tuple[int, str]]]

START = b"GET / HTTP/1.1\r\nHost: localhost\r\n"
END = b"Connection: close\r\n\r\n"
POST = START.replace(b"GET", b"POST") + b"Transfer-Encoding: chunked\r\n"
MANY = b"".join(b"X-%d: a\r\n" % number for number in range(10_000))


async def answer(request: Request) -> Response:
    """Answer with how long the body was."""
    return PlainTextResponse(str(len(await request.body())))


@pytest.fixture
def port() -> Iterator[int]:
    http = HttpSettings(port=find_port())
    app = Starlette(routes=[Route("/", answer, methods=["GET", "POST"])])
    with closing(HttpServer(app, http)):
        yield http.port


@pytest.fixture
def talk(port: int) -> Talk:
    """Return what sends pieces, one after the other, and gives each answer's status and body."""

    def send(*pieces: bytes) -> list[tuple[int, str]]:
        with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                for piece in pieces:
                    connection.sendall(piece)
            except OSError:
                pass  # it has refused, and closed
            return read_answers(connection)

    return send


def read_answers(connection: socket.socket) -> list[tuple[int, str]]:
    """Read until the other end has closed."""
    got = b""
    try:
        while piece := connection.recv(65536):
            got += piece
    except ConnectionResetError:
        pass
    answers = re.split(r"HTTP/1\.1 (?=[1-5]\d\d )", got.decode())[1:]
    return [(int(each[:3]), each.partition("\r\n\r\n")[2]) for each in answers]


def test_headers_below_the_bound_are_taken_however_they_come(talk: Talk):
    large = b"X-A: " + b"a" * 60_000 + b"\r\n"
    assert talk(START + large + END) == [(200, "0")]
    assert talk(START, *(large[at : at + 1000] for at in range(0, len(large), 1000)), END) == [
        (200, "0")
    ]
    assert talk((START + b"\r\n") * 3000 + START + END) == [(200, "0")] * 3001
    assert talk(*[START + b"\r\n" + START[:5], START[5:] + END]) == [(200, "0")] * 2


@pytest.mark.parametrize(
    "pieces",
    [
        pytest.param([START, b"X-A: " + b"a" * 10_000_000], id="one header that is not whole"),
        pytest.param([START, b"X-A: " + b"a" * 100_000 + b"\r\n" + END], id="one header"),
        pytest.param([START + MANY + END], id="many headers"),
        pytest.param([POST, END, b"2\r\n{}\r\n0\r\n" + MANY + b"\r\n"], id="trailers"),
        pytest.param([POST, END, b"2;" + b"x" * 10_000_000], id="a chunk's extension"),
    ],
)
def test_what_is_too_much_is_refused_before_it_is_whole(talk: Talk, pieces: list[bytes]):
    assert_refused(talk(*pieces), 431, "headers-too-large", "got more than 65536 bytes")


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"BREW / HTTP/1.1\r\n\r\n", "Invalid method"),
        (b"\x16\x03\x01\x02\x00", "Invalid method"),
        (START + b"no colon\r\n\r\n", "Invalid header token"),
        (b"GET /\xff HTTP/1.1\r\n\r\n", "url path"),
    ],
)
def test_what_is_no_http_is_told_with_the_reason(talk: Talk, sent: bytes, reason: str):
    assert_refused(talk(sent), 400, "malformed-request", reason)


def test_headers_that_trickle_are_given_up(talk: Talk, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(http_protocol, "HEAD_WITHIN_S", 0.2)
    assert_refused(talk(START, b"X-A: a\r\n"), 408, "headers-too-slow", "expected all within")
    assert talk() == []
    assert talk(b"\r\n") == []


def test_a_connection_that_was_answered_is_given_up_once_it_begins_and_does_not_go_on(
    port: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(http_protocol, "HEAD_WITHIN_S", 0.2)
    with socket.create_connection(("127.0.0.1", port), timeout=30) as connection:
        connection.sendall(START + b"\r\n")
        answered = b""
        while not answered.endswith(b"0"):
            received = connection.recv(65536)
            assert received, f"closed after {answered!r}"
            answered += received
        connection.sendall(b"\r\n")  # may stand before a request, and is none
        assert read_answers(connection) == []


def test_who_asks_for_a_websocket_is_answered_and_fills_no_log(
    talk: Talk, caplog: pytest.LogCaptureFixture
):
    asked = START + b"Connection: Upgrade, close\r\nUpgrade: websocket\r\n\r\n"
    assert talk(asked) == [(200, "0")]
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


def assert_refused(answers: list[tuple[int, str]], status: int, kind: str, detail: str) -> None:
    """Assert that there is one answer, and which problem it tells."""
    assert [each for each, _ in answers] == [status]
    problem = json.loads(answers[0][1])
    assert problem["type"].endswith(f":{kind}")
    assert problem["status"] == status
    assert detail in problem["detail"]
