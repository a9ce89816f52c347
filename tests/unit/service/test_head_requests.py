"""HEAD is answered as GET, by headers alone, and ends."""

import socket
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.unit.service.fakes import FakeCluster
from tests.unit.service.runs import RecordedRun, listening, wait_until
from trainflow.service.app import create_app
from trainflow.service.context import Context
from trainflow.service.history.history import History
from trainflow.service.history.ingest import Ingester
from trainflow.service.history.records import Scope
from trainflow.service.settings import ServiceSettings

JOB = "/v1/jobs/tiny-abcdef"
STREAMS = (f"{JOB}/events", f"{JOB}/logs?follow=true")
STREAM = {"Accept": "text/event-stream"}


def speak(client: httpx.Client, *said: str) -> bytes:
    """Ask on one connection, one request after the other; returns all that comes.

    httpx would drop a body of its own accord.
    """
    with socket.create_connection((client.base_url.host, client.base_url.port), 20) as connection:
        for number, line in enumerate(said, 1):
            end = "close" if number == len(said) else "keep-alive"
            request = f"{line} HTTP/1.1\r\nHost: localhost\r\nConnection: {end}\r\n\r\n"
            connection.sendall(request.encode())
        found = b""
        while piece := connection.recv(65536):
            found += piece
    return found


@pytest.fixture
def changes() -> dict[str, Any]:
    """What a test has otherwise than usual in the settings."""
    return {}


@pytest.fixture
def service(
    history: History, cluster: FakeCluster, changes: dict[str, Any]
) -> Iterator[tuple[httpx.Client, Context]]:
    run = RecordedRun("tiny-abcdef")
    run.happen(1)
    (run.directory / "driver.log").write_text("one\n")
    Ingester(history.database).catch_up()
    settings = ServiceSettings.model_validate({"authentication": "off"} | changes)
    app = create_app(settings, history, cluster)
    with listening(app) as url, httpx.Client(base_url=url, timeout=20) as client:
        yield client, app.state.context


@pytest.mark.parametrize(
    "path",
    ["/", "/healthz", "/openapi.json", "/v1/jobs", JOB, f"{JOB}/events", "/v1/jobs/none-aaaaaa"],
)
def test_it_tells_what_get_tells_without_the_body(path: str, service: tuple[httpx.Client, Context]):
    client, _ = service
    got, head = client.get(path), client.head(path)
    assert head.status_code == got.status_code
    assert head.headers["content-type"] == got.headers["content-type"]
    assert int(head.headers["content-length"]) > 0
    answers = speak(client, f"HEAD {path}", f"HEAD {path}")
    first, second, nothing = answers.split(b"\r\n\r\n")  # what a body would be is a head
    assert (nothing, first.count(b"HTTP/1.1 "), second.count(b"HTTP/1.1 ")) == (b"", 1, 1)
    assert first.startswith(b"HTTP/1.1 %d " % got.status_code)
    assert second.startswith(b"HTTP/1.1 %d " % got.status_code)


def test_a_stream_ends_though_its_job_goes_on(service: tuple[httpx.Client, Context]):
    client, context = service
    for path in STREAMS:
        assert client.head(path, headers=STREAM).status_code == 200
        told = speak(client, f"HEAD {path}")
        assert (told[:13], told[-4:], told.count(b"\r\n\r\n")) == (b"HTTP/1.1 200 ", b"\r\n\r\n", 1)
    wait_until(lambda: context.streams.num_open == 0)
    assert context.feed.num_watchers == 0


def test_what_is_only_posted_to_is_not_read_by_it(service: tuple[httpx.Client, Context]):
    client, _ = service
    answer = client.head(f"{JOB}/stop")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


def test_a_failure_is_told(service: tuple[httpx.Client, Context], cluster: FakeCluster):
    client, _ = service
    cluster.error = KeyError("detail")
    assert client.head("/v1/cluster").status_code == 500


@pytest.mark.parametrize("changes", [{"authentication": "tokens"}])
def test_it_needs_a_token_that_may_read(service: tuple[httpx.Client, Context], history: History):
    client, _ = service
    assert client.head(JOB).status_code == 401
    for scope, status in ((Scope.READ, 200), (Scope.SUBMIT, 403)):
        secret = history.tokens.create("t", {scope}).secret
        headers = {"Authorization": f"Bearer {secret}"}
        assert client.head(JOB, headers=headers).status_code == status
        assert client.get(JOB, headers=headers).status_code == status
    assert client.head("/healthz").status_code == 200


@pytest.mark.parametrize("changes", [{"limits": {"streams": 1}}])
def test_it_is_refused_as_get_while_all_streams_are_taken(service: tuple[httpx.Client, Context]):
    client, context = service
    with client.stream("GET", STREAMS[0], headers=STREAM) as answer:
        pieces = answer.iter_raw()  # kept: its end would be the stream's
        assert next(pieces)
        for path in STREAMS:
            head, got = client.head(path, headers=STREAM), client.get(path, headers=STREAM)
            assert (head.status_code, got.status_code) == (503, 503)
            assert head.headers["retry-after"] == got.headers["retry-after"]
        assert context.streams.num_open == 1
    wait_until(lambda: context.streams.num_open == 0)
    assert client.head(STREAMS[0], headers=STREAM).status_code == 200
