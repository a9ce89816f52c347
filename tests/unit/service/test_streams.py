"""Streams of events and logs, over real connections."""

import json
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.unit.service.event_source import ServerEvent, parse_events
from tests.unit.service.fakes import FakeCluster
from tests.unit.service.runs import RecordedRun, listening, wait_until
from trainflow.clock import SYSTEM_CLOCK, Clock, SystemClock
from trainflow.service import event_stream
from trainflow.service.app import create_app
from trainflow.service.context import Context
from trainflow.service.documents import GREATEST
from trainflow.service.history.history import History, open_history
from trainflow.service.history.ingest import Ingester
from trainflow.service.history.records import Submission
from trainflow.service.settings import ServiceSettings

EVENTS = "/v1/jobs/tiny-abcdef/events"
LOGS = "/v1/jobs/tiny-abcdef/logs"
STREAM = {"Accept": "text/event-stream"}
_FAST = {"poll_every_s": 0.01}

Serve = Callable[..., AbstractContextManager[tuple[httpx.Client, Context]]]


class MinuteLater(SystemClock):
    skew_s = 60.0


@pytest.fixture
def history(home: Path) -> Iterator[History]:
    with open_history() as history:
        yield history


@pytest.fixture
def ingester(history: History) -> Ingester:
    return Ingester(history.database)


@pytest.fixture
def run(home: Path) -> RecordedRun:
    return RecordedRun("tiny-abcdef")


@pytest.fixture
def serve(history: History) -> Serve:
    @contextmanager
    def serve(clock: Clock = SYSTEM_CLOCK, **limits: Any) -> Iterator[tuple[httpx.Client, Context]]:
        given = {"authentication": "off", "history": _FAST, "limits": limits}
        app = create_app(ServiceSettings.model_validate(given), history, FakeCluster(), clock)
        with listening(app) as url, httpx.Client(base_url=url, timeout=20) as client:
            yield client, app.state.context

    return serve


def read_events(
    client: httpx.Client, after: int | None = None, count: int | None = None
) -> list[ServerEvent]:
    """Return events of a stream: so many, then it is left; all if None."""
    headers = STREAM if after is None else STREAM | {"Last-Event-ID": str(after)}
    body = b""
    with client.stream("GET", EVENTS, headers=headers) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        for piece in answer.iter_raw():
            body += piece
            if count is not None and len(parse_events(body)) >= count:
                break
    return parse_events(body)[:count]


def numbers(events: list[ServerEvent]) -> list[int]:
    return [int(each.id) for each in events if each.id is not None]


def test_all_events_of_a_finished_job_come_and_then_the_end(
    serve: Serve, run: RecordedRun, ingester: Ingester
):
    run.happen(700)  # more than a page
    run.end()
    ingester.catch_up()
    with serve() as (client, _):
        events = read_events(client)
    assert numbers(events) == list(range(1, 703))
    assert json.loads(events[701].data)["kind"] == "succeeded"
    assert (events[-1].name, events[-1].data) == ("end", '{"last_event": 702}')


def test_events_come_as_they_happen(serve: Serve, run: RecordedRun, ingester: Ingester):
    ingester.catch_up()
    with serve() as (client, context), client.stream("GET", EVENTS, headers=STREAM) as answer:
        pieces, body = answer.iter_raw(), b""
        for number in range(2, 6):
            run.happen(1)
            ingester.catch_up()
            while numbers(parse_events(body))[-1:] != [number]:
                body += next(pieces)
        run.end()
        ingester.catch_up()
        body += b"".join(pieces)
        events = parse_events(body)
        assert numbers(events) == list(range(1, 7))
        assert events[-1].name == "end"
        wait_until(lambda: context.streams.num_open == 0)
        assert context.feed.num_watchers == 0


def test_no_event_is_lost_or_doubled_by_those_who_come_back(
    serve: Serve, run: RecordedRun, ingester: Ingester
):
    run.happen(20)
    run.end()
    ingester.catch_up()
    seen: list[int] = []
    with serve() as (client, _):
        while not seen or seen[-1] < 22:
            seen += numbers(read_events(client, after=seen[-1] if seen else 0, count=3))
    assert seen == list(range(1, 23))


def test_a_client_that_is_alone_hears_that_the_stream_lives(
    serve: Serve, run: RecordedRun, ingester: Ingester
):
    ingester.catch_up()
    with (
        serve(heartbeat_s=0.01) as (client, _),
        client.stream("GET", EVENTS, headers=STREAM) as answer,
    ):
        body = b""
        for piece in answer.iter_raw():
            body += piece
            if body.count(b": alive\n\n") >= 3:
                break
    assert numbers(parse_events(body)) == [1]


def test_a_stream_ends_after_so_many_bytes_and_goes_on_where_it_was(
    serve: Serve, run: RecordedRun, ingester: Ingester
):
    run.happen(400, "x" * 1000)
    run.end()
    ingester.catch_up()
    seen: list[int] = []
    num_streams = 0
    with serve(stream_bytes=64 * 1024) as (client, _):
        while not seen or seen[-1] < 402:
            seen += numbers(read_events(client, after=seen[-1] if seen else 0))
            num_streams += 1
    assert seen == list(range(1, 403))
    assert num_streams > 5


def test_a_client_that_never_reads_is_dropped_and_others_are_not(
    serve: Serve, run: RecordedRun, ingester: Ingester
):
    run.happen(9000, "x" * 1000)
    ingester.catch_up()
    with serve(stalled_s=0.2, stream_bytes=2**30) as (client, context):
        address = urlsplit(str(client.base_url))
        with socket.socket() as idle:
            idle.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            idle.connect((address.hostname, address.port))
            ask = f"GET {EVENTS} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n"
            idle.sendall(ask.encode())
            wait_until(lambda: context.streams.num_open == 1)
            assert numbers(read_events(client, count=100)) == list(range(1, 101))
            wait_until(lambda: context.streams.num_open == 0)


def test_one_stream_too_many_is_refused(serve: Serve, run: RecordedRun, ingester: Ingester):
    ingester.catch_up()
    with serve(streams=1) as (client, context):
        with client.stream("GET", EVENTS, headers=STREAM):
            wait_until(lambda: context.streams.num_open == 1)
            refused = client.get(EVENTS, headers=STREAM)
            assert refused.status_code == 503
            assert refused.json()["type"] == "urn:trainflow:problem:too-many-streams"
            assert int(refused.headers["retry-after"]) > 0
        wait_until(lambda: context.streams.num_open == 0)
        assert numbers(read_events(client, count=1)) == [1]


def test_a_client_that_knows_all_of_a_job_that_ended_long_ago_need_not_come_back(
    serve: Serve, run: RecordedRun, ingester: Ingester
):
    run.end()
    ingester.catch_up()
    with serve(clock=MinuteLater()) as (client, _):
        answer = client.get(EVENTS, headers=STREAM | {"Last-Event-ID": "2"})
        assert answer.status_code == 204
        assert numbers(read_events(client, after=1)) == [2]


@pytest.mark.parametrize(
    "last_event_id",
    ["1; drop", "-1", "x", "1.5", "1 2", "+1", "0x1", "\u00b2", "4", "9" * 16, "9" * 5000],
)
def test_an_id_that_no_event_has_is_told_and_not_refused(
    last_event_id: str,
    serve: Serve,
    run: RecordedRun,
    ingester: Ingester,
    monkeypatch: pytest.MonkeyPatch,
):
    """An EventSource never comes back after a refusal."""
    monkeypatch.setattr(event_stream, "CATCHES_UP_WITHIN_S", 0.0)
    run.happen(1)
    run.end()
    ingester.catch_up()
    headers: list[tuple[str, str | bytes]] = [*STREAM.items()]
    headers.append(("Last-Event-ID", last_event_id.encode("latin-1")))
    with serve() as (client, _):
        answer = client.get(EVENTS, headers=headers)
    assert answer.status_code == 200
    events = parse_events(answer.content)
    known = 4 if last_event_id == "4" else GREATEST
    assert (events[0].name, json.loads(events[0].data)) == ("anew", {"known": known})
    assert (numbers(events), events[-1].name) == ([0, 1, 2, 3], "end")


@pytest.mark.parametrize(
    ("last_event_id", "rest"), [("", [1, 2]), ("0001", [2]), ("0" * 20, [1, 2])]
)
def test_an_id_is_a_number_however_it_is_written(
    last_event_id: str, rest: list[int], serve: Serve, run: RecordedRun, ingester: Ingester
):
    run.end()
    ingester.catch_up()
    with serve() as (client, _):
        answer = client.get(EVENTS, headers=STREAM | {"Last-Event-ID": last_event_id})
    assert numbers(parse_events(answer.content)) == rest


def test_a_log_is_followed_until_the_job_has_ended(
    serve: Serve, run: RecordedRun, ingester: Ingester
):
    log = run.directory / "driver.log"
    log.write_text("one\n")
    ingester.catch_up()
    with serve() as (client, _), client.stream("GET", f"{LOGS}?follow=true") as answer:
        pieces, body = answer.iter_raw(), b""
        for line in ("two\n", "three\n"):
            with log.open("a") as more:
                more.write(line)
            while not body.endswith(line.encode()):
                body += next(pieces)
        with log.open("a") as more:
            more.write("last\n")
        run.end()
        ingester.catch_up()
        body += b"".join(pieces)
    assert body == b"one\ntwo\nthree\nlast\n"


def count_questions(history: History, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Return how often the history is asked about jobs from now on, by what is called."""
    asked: Counter[str] = Counter()

    def counted(name: str) -> Callable[[Any], Any]:
        ask = getattr(history.jobs, name)

        def ask_counted(of: Any) -> Any:
            asked[name] += 1
            return ask(of)

        return ask_counted

    for name in ("get", "heads"):
        monkeypatch.setattr(history.jobs, name, counted(name))
    return asked


def test_the_database_is_asked_once_a_look_for_all_who_follow_a_log(
    serve: Serve,
    history: History,
    run: RecordedRun,
    ingester: Ingester,
    monkeypatch: pytest.MonkeyPatch,
):
    (run.directory / "driver.log").write_text("one\n")
    ingester.catch_up()
    asked = count_questions(history, monkeypatch)
    with serve() as (client, context):
        with ExitStack() as followers:
            answers = [
                followers.enter_context(client.stream("GET", f"{LOGS}?follow=true")).iter_raw()
                for _ in range(5)
            ]
            assert [next(pieces) for pieces in answers] == [b"one\n"] * 5
            so_far = asked["heads"]
            wait_until(lambda: asked["heads"] >= so_far + 10)
            assert asked["get"] == 5
            assert context.feed.num_watchers == 5
        wait_until(lambda: context.feed.num_watchers == 0)


def test_the_log_of_a_driver_that_has_yet_to_print_is_waited_for(
    serve: Serve, history: History, run: RecordedRun, ingester: Ingester
):
    submission = Submission("tiny-abcdef", "tiny", {}, str(run.directory))
    history.submissions.begin(submission)
    with serve() as (client, _):
        assert client.get(LOGS).status_code == 404
        with client.stream("GET", f"{LOGS}?follow=true") as answer:
            assert answer.status_code == 200
            (run.directory / "driver.log").write_text("one\n")
            body = next(answer.iter_raw())
            run.end()
            ingester.catch_up()
        assert body == b"one\n"
        assert client.get(f"{LOGS}?follow=true").text == "one\n"


def test_a_log_that_never_comes_is_not_waited_for(
    serve: Serve, run: RecordedRun, ingester: Ingester
):
    ingester.catch_up()
    with serve() as (client, _):
        assert client.get(f"{LOGS}?follow=true").status_code == 404  # nobody has submitted it
    run.end()
    ingester.catch_up()
    with serve() as (client, _):
        assert client.get(f"{LOGS}?follow=true").status_code == 404
