"""Whether the history answers is asked once a second, however many want to know."""

import asyncio

import pytest

from tests.unit.service.conftest import OpenClient
from tests.unit.service.fakes import FakeClock
from trainflow.errors import HistoryError
from trainflow.service.history.history import History
from trainflow.service.readiness import REMEMBERED_S, Readiness

pytestmark = pytest.mark.anyio


class Database:
    """Answers, or doesn't.

    Attributes:
        num_asked: how often it was asked.
        trouble: why it doesn't; None: it does.
    """

    def __init__(self) -> None:
        self.num_asked = 0
        self.trouble: str | None = None

    def check(self) -> None:
        self.num_asked += 1
        if self.trouble is not None:
            raise HistoryError(self.trouble)


async def test_it_is_asked_again_a_second_later(clock: FakeClock):
    database = Database()
    readiness = Readiness(database.check, lambda: None, clock)
    await readiness.require()
    database.trouble = "it is locked"
    await readiness.require()
    clock.sleep(REMEMBERED_S)
    for _ in range(2):
        with pytest.raises(HistoryError, match="it is locked"):
            await readiness.require()
    assert database.num_asked == 2
    database.trouble = None
    clock.sleep(REMEMBERED_S)
    await readiness.require()
    assert database.num_asked == 3


async def test_who_comes_while_it_is_asked_waits_for_the_same_answer(clock: FakeClock):
    database = Database()
    readiness = Readiness(database.check, lambda: None, clock)
    await asyncio.gather(*(readiness.require() for _ in range(100)))
    assert database.num_asked == 1


async def test_strangers_do_not_ask_the_database(
    open_client: OpenClient, history: History, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
):
    database = Database()
    monkeypatch.setattr(history, "check", database.check)
    async with open_client(authentication="tokens") as client:
        for _ in range(50):
            assert (await client.get("/readyz")).status_code == 200
        assert database.num_asked == 1
        clock.sleep(REMEMBERED_S)
        database.trouble = "it is locked"
        answer = await client.get("/readyz")
        assert (answer.status_code, database.num_asked) == (503, 2)
        assert answer.json()["type"] == "urn:trainflow:problem:history-unavailable"
