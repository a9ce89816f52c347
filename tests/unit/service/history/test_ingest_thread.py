"""The thread that keeps a history up, and goes on when the database doesn't."""

import logging
import threading
from collections.abc import Callable

import pytest

from tests.unit.service.history.records import JOB_ID, Home
from trainflow.errors import HistoryError
from trainflow.service.history import ingest_thread as module
from trainflow.service.history.history import History
from trainflow.service.history.ingest import Ingester, Taken
from trainflow.service.history.ingest_thread import IngestThread

WITHIN_S = 60.0


class Watched(Ingester):
    """Tells of each look, and fails where it is told to."""

    def __init__(self, poll: Callable[[], Taken], num_failures: int = 0):
        self._poll = poll
        self._num_failures = num_failures
        self.looks = threading.Semaphore(0)

    def poll(self) -> Taken:
        self.looks.release()
        if self._num_failures:
            self._num_failures -= 1
            raise HistoryError("the database is gone")
        return self._poll()

    def wait_looks(self, count: int) -> None:
        for _ in range(count):
            assert self.looks.acquire(timeout=WITHIN_S)

    def forget_looks(self) -> None:
        while self.looks.acquire(blocking=False):
            pass


def test_what_runs_write_comes_into_the_history(history: History, home: Home):
    run = home.run().keep_job().event("submitted")
    ingester = Watched(home.ingester(history).poll)
    thread = IngestThread(ingester, look_every_s=0.001)
    thread.start()
    ingester.wait_looks(2)
    run.event("epoch")
    ingester.forget_looks()  # those before it
    ingester.wait_looks(2)  # one may have been under way
    thread.stop()
    assert [event.kind for event in history.events.after(JOB_ID)] == ["submitted", "epoch"]


def test_a_database_that_is_gone_is_told_once_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr(module, "_TRY_AGAIN_AFTER_S", 0.001)
    ingester = Watched(lambda: Taken(frozenset(), has_more=False), num_failures=3)
    thread = IngestThread(ingester, look_every_s=0.001)
    thread.start()
    ingester.wait_looks(5)
    thread.stop()
    assert caplog.text.count("is not kept up for now") == 1
    assert caplog.text.count("is kept up again") == 1


def test_it_looks_again_at_once_while_there_is_more():
    left = [True, True, False]
    ingester = Watched(lambda: Taken(frozenset(), left.pop(0) if left else False))
    thread = IngestThread(ingester, look_every_s=WITHIN_S)
    thread.start()
    ingester.wait_looks(3)
    thread.stop()
    assert left == []


def test_it_ends_while_it_rests():
    ingester = Watched(lambda: Taken(frozenset(), has_more=False))
    thread = IngestThread(ingester, look_every_s=WITHIN_S)
    thread.start()
    ingester.wait_looks(1)
    thread.stop()
    assert not any(each.name == "history-ingest" for each in threading.enumerate())
