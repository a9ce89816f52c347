"""Tokens that end while a stream is open."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.unit.service.fakes import FakeClock, FakeCluster
from tests.unit.service.runs import RecordedRun, listening
from trainflow.clock import SystemClock
from trainflow.errors import HistoryError, TokenRefusedError
from trainflow.service.app import create_app
from trainflow.service.history.history import History, open_history
from trainflow.service.history.ingest import Ingester
from trainflow.service.history.records import Scope
from trainflow.service.permits import CHECKED_EVERY_S, Permit
from trainflow.service.settings import ServiceSettings

JOB = "/v1/jobs/tiny-abcdef"
STREAM = {"Accept": "text/event-stream"}


class ShiftedClock(SystemClock):
    """A clock that a test puts forward."""

    ahead_s = 0.0

    def monotonic_s(self) -> float:
        return super().monotonic_s() + self.ahead_s


@pytest.fixture
def history(home: Path) -> Iterator[History]:
    del home  # the database is under it
    with open_history() as history:
        yield history


@pytest.mark.parametrize("path", [f"{JOB}/events", f"{JOB}/logs?follow=true"])
@pytest.mark.parametrize("is_revoked", [True, False])
def test_a_stream_ends_a_minute_after_its_token(path: str, history: History, *, is_revoked: bool):
    run, ingester, clock = RecordedRun("tiny-abcdef"), Ingester(history.database), ShiftedClock()
    log = run.directory / "driver.log"
    log.write_text("first\n")
    ingester.catch_up()
    made = history.tokens.create("r", {Scope.READ})
    headers = STREAM | {"Authorization": f"Bearer {made.secret}"}
    given = {"history": {"poll_every_s": 0.01}, "limits": {"heartbeat_s": 3600.0}}
    settings = ServiceSettings.model_validate(given)
    app = create_app(settings, history, FakeCluster(), clock)
    with listening(app) as url, httpx.Client(base_url=url, headers=headers, timeout=20) as client:
        with client.stream("GET", path) as answer:
            pieces, body = answer.iter_raw(), b""
            while b"job tiny-abcdef" not in body and b"first" not in body:
                body += next(pieces)
            if is_revoked:
                history.tokens.revoke(made.token.token_id)
            clock.ahead_s = CHECKED_EVERY_S + 1
            with log.open("a") as more:
                more.write("last\n")
            run.happen(1, "last")
            run.end()
            ingester.catch_up()
            rest = b"".join(pieces)
        assert (b"last" in rest) != is_revoked
        assert client.get(JOB).status_code == (401 if is_revoked else 200)


@pytest.mark.anyio
async def test_it_is_looked_at_once_a_minute_and_counts_while_the_history_does_not_answer():
    clock, num_asked = FakeClock(), 0
    answer: Exception | None = None

    def check() -> None:
        nonlocal num_asked
        num_asked += 1
        if answer is not None:
            raise answer

    permit = Permit(check, clock)
    for later_s, asked in ((CHECKED_EVERY_S - 1, 0), (1.0, 1), (CHECKED_EVERY_S - 1, 1)):
        clock.now_s += later_s
        await permit.require()
        assert num_asked == asked
    clock.now_s += 1
    answer = HistoryError("no answer")
    await permit.require()
    answer = TokenRefusedError("revoked")
    await permit.require()
    assert num_asked == 2
    clock.now_s += CHECKED_EVERY_S
    with pytest.raises(TokenRefusedError, match="revoked"):
        await permit.require()
