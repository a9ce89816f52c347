"""HEAD is answered as GET, by headers alone, and ends."""

from collections.abc import Iterator

import httpx
import pytest

from tests.unit.service.fakes import FakeCluster
from tests.unit.service.runs import RecordedRun, listening, wait_until
from trainflow.service.app import create_app
from trainflow.service.context import Context
from trainflow.service.history.history import History
from trainflow.service.history.ingest import Ingester
from trainflow.service.settings import ServiceSettings

JOB = "/v1/jobs/tiny-abcdef"
STREAMS = (f"{JOB}/events", f"{JOB}/logs?follow=true")
STREAM = {"Accept": "text/event-stream"}


@pytest.fixture
def service(history: History, cluster: FakeCluster) -> Iterator[tuple[httpx.Client, Context]]:
    run = RecordedRun("tiny-abcdef")
    run.happen(1)
    (run.directory / "driver.log").write_text("one\n")
    Ingester(history.database).catch_up()
    settings = ServiceSettings.model_validate({"authentication": "off"})
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
    assert head.content == b""
    assert head.status_code == got.status_code
    assert head.headers["content-type"] == got.headers["content-type"]
    assert int(head.headers["content-length"]) > 0


def test_a_stream_ends_though_its_job_goes_on(service: tuple[httpx.Client, Context]):
    client, context = service
    for path in STREAMS:
        answer = client.head(path, headers=STREAM)
        assert (answer.status_code, answer.content) == (200, b"")
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
