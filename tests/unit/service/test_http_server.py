"""Servers share an address: one that ends leaves it to the others, and its end is told."""

import logging
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from tests.unit.service.runs import find_port
from trainflow.errors import ConfigError, ConflictError, TrainFlowError
from trainflow.service import http_server
from trainflow.service.http_server import HttpServer, require_certificate, require_free_port
from trainflow.service.settings import HttpSettings

WITHIN_S = 20.0


@pytest.fixture
def http() -> HttpSettings:
    return HttpSettings(port=find_port())


def make_app(name: str) -> Starlette:
    """An app that answers with its name."""
    return Starlette(routes=[Route("/", lambda _: PlainTextResponse(name))])


def ask(http: HttpSettings) -> str:
    """Ask by a connection of its own."""
    return httpx.get(f"http://127.0.0.1:{http.port}/").text


@pytest.fixture
def two(http: HttpSettings) -> Iterator[tuple[HttpServer, HttpServer]]:
    with (
        closing(HttpServer(make_app("one"), http)) as one,
        closing(HttpServer(make_app("two"), http)) as two,
    ):
        yield one, two


def test_both_answer_and_one_alone_once_the_other_has_ended(
    http: HttpSettings, two: tuple[HttpServer, HttpServer]
):
    one, other = two
    assert {ask(http) for _ in range(50)} == {"one", "two"}
    one.close()
    assert {ask(http) for _ in range(50)} == {"two"}
    other.require_running()
    with pytest.raises(TrainFlowError, match="has ended"):
        one.require_running()


def test_one_whose_loop_is_held_up_is_told_until_it_stirs_again(
    http: HttpSettings, monkeypatch: pytest.MonkeyPatch
):
    entered, let_go = threading.Event(), threading.Event()

    async def hold_up(request: Request) -> PlainTextResponse:
        del request
        entered.set()
        let_go.wait(WITHIN_S)
        return PlainTextResponse("at last")

    app = Starlette(routes=[Route("/", hold_up)])
    with closing(HttpServer(app, http)) as server, ThreadPoolExecutor(1) as pool:
        server.require_running()
        answer = pool.submit(ask, http)
        assert entered.wait(WITHIN_S)
        monkeypatch.setattr(http_server, "STIRS_WITHIN_S", 0.1)
        with pytest.raises(TrainFlowError, match=r"no sign for 0\.1 s"):
            server.require_running()
        monkeypatch.setattr(http_server, "STIRS_WITHIN_S", WITHIN_S)
        let_go.set()
        server.require_running()
        assert answer.result() == "at last"


def test_an_address_is_free_again_once_all_have_ended(
    http: HttpSettings, two: tuple[HttpServer, HttpServer]
):
    with pytest.raises(ConflictError, match=f"got {http.port} at 127.0.0.1"):
        require_free_port(http)
    for server in two:
        server.close()
    require_free_port(http)


def test_an_address_that_somebody_does_not_share_is_refused(http: HttpSettings):
    with socket.create_server(("127.0.0.1", http.port)), pytest.raises(OSError, match="in use"):
        HttpServer(make_app("one"), http)


def test_an_app_that_does_not_come_up_is_told(
    http: HttpSettings, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    # Other tests' servers have uvicorn say nothing, in all of the process.
    monkeypatch.setattr(logging.getLogger("uvicorn"), "propagate", True)
    caplog.set_level(logging.ERROR, "uvicorn.error")

    async def fail(scope: Scope, receive: Receive, send: Send) -> None:
        del receive, send
        raise RuntimeError(f"no {scope['type']} today")

    with closing(HttpServer(fail, http)) as server:
        server.close()
        with pytest.raises(TrainFlowError, match="has ended"):
            server.require_running()
    assert "no lifespan today" in caplog.text
    assert "the HTTP server has ended" in caplog.text


@pytest.mark.parametrize("content", [None, "not a certificate"])
def test_a_certificate_that_is_none_is_refused_before_anything_listens(
    http: HttpSettings, tmp_path: Path, content: str | None
):
    path = tmp_path / "cert.pem"
    if content is not None:
        path.write_text(content)
    wrong = http.model_copy(update={"certificate": str(path), "key": str(path)})
    for refuse in (require_certificate, lambda http: HttpServer(make_app("one"), http)):
        with pytest.raises(ConfigError, match=r"http\.certificate: got .*cert\.pem"):
            refuse(wrong)
    require_free_port(http)
