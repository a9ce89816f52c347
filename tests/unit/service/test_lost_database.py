"""A database that dies, or is locked, while it is asked: told as such, and all is well after it."""

import sqlite3
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import psycopg
import pytest

from tests.testbed.postgres_server import PostgresServer
from tests.unit.service.fakes import FakeCluster
from tests.unit.service.runs import RecordedRun, listening, wait_until
from trainflow.client import TrainFlowClient
from trainflow.service import readiness
from trainflow.service.app import create_app
from trainflow.service.history import database
from trainflow.service.history.history import History, open_history
from trainflow.service.history.ingest import Ingester
from trainflow.service.history.records import Scope
from trainflow.service.settings import ServiceSettings

JOB = "/v1/jobs/tiny-abcdef"
JOB_PATHS = (
    "/v1/jobs",
    JOB,
    *(f"{JOB}/{what}" for what in ("events", "metrics", "checkpoints", "workers", "attempts")),
)
PATHS = ("/readyz", "/v1/token", *JOB_PATHS)
BOTH = frozenset({Scope.READ, Scope.SUBMIT})
AN_HOUR_S = 3600.0


@pytest.fixture(autouse=True)
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the history be asked each time whether it answers."""
    monkeypatch.setattr(readiness, "REMEMBERED_S", 0.0)


@pytest.fixture
def run(home: Path) -> RecordedRun:
    del home  # the run is under it
    run = RecordedRun("tiny-abcdef")
    run.train(range(1, 4))
    return run


def require_told(answer: httpx.Response) -> None:
    """Fail unless an answer says that the history doesn't answer now, and when to come back."""
    assert answer.status_code == 503, answer.text
    assert answer.json()["type"] == "urn:trainflow:problem:history-unavailable"
    assert int(answer.headers["retry-after"]) > 0


def bearer(history: History) -> dict[str, str]:
    return {"Authorization": f"Bearer {history.tokens.create('me', BOTH).secret}"}


@pytest.fixture
def server_url(postgres: PostgresServer) -> Iterator[str]:
    """The URL of a database of its own."""
    name = f"lost-{uuid4().hex[:12]}"
    yield postgres.make_database(name)
    postgres.drop_database(name)


@pytest.fixture
def server_history(server_url: str, run: RecordedRun) -> Iterator[History]:
    """What the PostgreSQL server knows of the run."""
    with open_history(server_url) as history:
        Ingester(history.database).catch_up()
        yield history


@pytest.fixture
def client(server_history: History) -> Iterator[httpx.Client]:
    """A client of a service with that history."""
    settings = ServiceSettings.model_validate({"history": {"poll_every_s": 0.01}})
    app, headers = create_app(settings, server_history, FakeCluster()), bearer(server_history)
    with listening(app) as url, httpx.Client(base_url=url, headers=headers, timeout=60) as client:
        yield client


@contextmanager
def killed(server: PostgresServer) -> Generator[None]:
    """Have a server be dead for a while."""
    server.kill()
    try:
        yield
    finally:
        server.start()


def statuses(client: httpx.Client) -> set[int]:
    return {client.get(path).status_code for path in PATHS}


@pytest.mark.storage
def test_requests_whose_database_is_killed_are_told_to_come_back(
    client: httpx.Client, server_url: str, postgres: PostgresServer
):
    assert statuses(client) == {200}
    with (
        closing(psycopg.connect(server_url)) as locking,
        closing(psycopg.connect(server_url, autocommit=True)) as looking,
        ThreadPoolExecutor(len(JOB_PATHS)) as pool,
    ):
        locking.execute("LOCK TABLE jobs IN ACCESS EXCLUSIVE MODE")
        asking = [pool.submit(client.get, path) for path in JOB_PATHS]
        wait_until(lambda: count_waiting(looking) == len(JOB_PATHS))
        with killed(postgres):
            for asked in asking:
                require_told(asked.result())
            for path in PATHS:
                require_told(client.get(path))
            assert client.get("/healthz").status_code == 200
    assert statuses(client) == {200}


def count_waiting(looking: "psycopg.Connection[tuple[Any, ...]]") -> int:
    """Return how many queries stand before a lock."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
    row = looking.execute(query).fetchone()
    assert row is not None
    return row[0]


@pytest.mark.storage
def test_who_follows_goes_on_when_the_database_is_back(
    client: httpx.Client, server_history: History, postgres: PostgresServer, run: RecordedRun
):
    secret = server_history.tokens.create("follower", BOTH).secret
    with TrainFlowClient(str(client.base_url), secret) as follower:
        events = follower.events(run.job_id)
        assert next(events).number == 1
        with killed(postgres):
            require_told(client.get(JOB))
            run.happen(2)
        Ingester(server_history.database).catch_up()
        assert [next(events).number for _ in range(2)] == [2, 3]


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have whoever waits for others at all wait for longer than a test does."""
    monkeypatch.setattr(database, "_BUSY_S", AN_HOUR_S)
    monkeypatch.setattr(database, "_STATEMENT_MS", round(AN_HOUR_S * 1000))


@pytest.mark.storage
@pytest.mark.usefixtures("patience")
def test_who_reads_does_not_wait_for_who_holds_the_token(
    client: httpx.Client, server_history: History, server_url: str
):
    with closing(psycopg.connect(server_url)) as holding:
        holding.execute("SELECT * FROM tokens FOR UPDATE")
        assert client.get(JOB).status_code == 200
        assert server_history.tokens.list()[0].last_used_at_s is None
        holding.rollback()
    assert client.get(JOB).status_code == 200
    assert server_history.tokens.list()[0].last_used_at_s is not None


OpenImpatient = Callable[[float], History]


@pytest.fixture
def open_impatient(
    run: RecordedRun, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[[float], History]]:
    """Open the history in SQLite that waits so many seconds for others that write."""
    opened: list[History] = []

    def open_impatient(busy_s: float) -> History:
        monkeypatch.setattr(database, "_BUSY_S", busy_s)
        history = open_history()
        opened.append(history)
        Ingester(history.database).catch_up()
        return history

    yield open_impatient
    for history in opened:
        history.close()


def serve_history(history: History) -> httpx.AsyncClient:
    app = create_app(ServiceSettings(), history, FakeCluster())
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    headers = bearer(history)
    return httpx.AsyncClient(transport=transport, base_url="http://localhost", headers=headers)


def lock(home: Path, *statements: str) -> "closing[sqlite3.Connection]":
    """Have somebody else hold the database."""
    other = sqlite3.connect(home / "history.db", isolation_level=None)
    for statement in statements:
        other.execute(statement)
    return closing(other)


@pytest.mark.anyio
async def test_who_reads_does_not_wait_for_who_writes(open_impatient: OpenImpatient, home: Path):
    history = open_impatient(AN_HOUR_S)
    async with serve_history(history) as client:
        with lock(home, "BEGIN IMMEDIATE"):
            for path in PATHS:
                assert (await client.get(path)).status_code == 200
        assert history.tokens.list()[0].last_used_at_s is None
        await client.get(JOB)
    assert history.tokens.list()[0].last_used_at_s is not None


def test_who_changes_something_waits_after_one_who_would_not(
    open_impatient: OpenImpatient, home: Path
):
    history = open_impatient(AN_HOUR_S)
    token = history.tokens.create("me", BOTH)
    with ThreadPoolExecutor(1) as pool:
        with lock(home, "BEGIN IMMEDIATE"):
            history.tokens.check(token.secret)  # its use is not noted
            changing = pool.submit(history.tokens.revoke, token.token.token_id)
            wait_until(changing.running)
        assert changing.result().revoked_at_s is not None


@pytest.mark.anyio
async def test_a_change_that_waited_too_long_is_told_to_come_back(
    open_impatient: OpenImpatient, home: Path, job_config: dict[str, Any]
):
    job: Any = {"json": {"config": job_config}, "headers": {"Idempotency-Key": "k"}}
    async with serve_history(open_impatient(0.05)) as client:
        with lock(home, "BEGIN IMMEDIATE"):
            require_told(await client.post("/v1/jobs", **job))
            require_told(await client.delete(JOB))
        assert (await client.post("/v1/jobs", **job)).status_code == 201
        assert (await client.post("/v1/jobs", **job)).status_code == 200


@pytest.mark.anyio
async def test_a_database_that_nobody_else_may_open_is_told(
    open_impatient: OpenImpatient, home: Path
):
    history = open_impatient(0.05)
    async with serve_history(history) as client:
        history.close()  # its connections: others come with the next request
        with lock(home, "PRAGMA locking_mode = EXCLUSIVE", "BEGIN EXCLUSIVE"):
            for path in PATHS:
                require_told(await client.get(path))
            assert (await client.get("/healthz")).status_code == 200
        for path in PATHS:
            assert (await client.get(path)).status_code == 200


@pytest.mark.anyio
async def test_a_file_that_is_moved_away_is_missed_at_once(
    open_impatient: OpenImpatient, home: Path
):
    """By all that is asked, also where connections to it are open."""
    history = open_impatient(AN_HOUR_S)
    async with serve_history(history) as client:
        for path in PATHS:
            assert (await client.get(path)).status_code == 200
        (home / "history.db").rename(home / "away.db")
        for path in PATHS:
            require_told(await client.get(path))
        assert not (home / "history.db").exists()
        (home / "away.db").rename(home / "history.db")
        for path in PATHS:
            assert (await client.get(path)).status_code == 200
