"""A worker's reporter, with a coordinator that answers as a test says."""

import queue
import threading
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import GetTimeoutError

from trainflow.computation.reports import EvaluationReport
from trainflow.coordination import reporter as reporter_module
from trainflow.coordination.messages import WorkerMessage
from trainflow.coordination.reporter import Reporter

WITHIN_S = 10.0


class Inbox:
    """Takes reports; refuses as many as it is told to."""

    def __init__(self, refusals: int):
        self.refusals = refusals
        self.taken: list[WorkerMessage] = []
        self.changed = threading.Condition()
        self.report = SimpleNamespace(remote=self._take)

    def _take(self, worker_id: str, messages: list[WorkerMessage]) -> None:
        with self.changed:
            if self.refusals:
                self.refusals -= 1
                raise GetTimeoutError
            self.taken += messages
            self.changed.notify_all()


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Any:
    def serve(inbox: Inbox) -> Reporter:
        monkeypatch.setattr(reporter_module.ray, "get_actor", lambda *_: inbox)
        monkeypatch.setattr(reporter_module.ray, "get", lambda answer, **_: answer)
        monkeypatch.setattr(reporter_module, "_RETRY_AFTER_S", 0.0)
        return Reporter("job-1", "slot0-1.0")

    return serve


def test_reports_wait_for_a_coordinator_and_keep_their_order(serve: Any):
    inbox = Inbox(refusals=3)
    reporter = serve(inbox)
    reports = [EvaluationReport(step, "loss", 1.0) for step in range(5)]
    for report in reports:
        reporter.send(report)
    with inbox.changed:
        assert inbox.changed.wait_for(lambda: len(inbox.taken) == 5, WITHIN_S)
    assert inbox.taken == reports


def test_who_waits_for_reports_waits_until_the_last_is_heard(serve: Any):
    reporter = serve(Inbox(refusals=0))
    assert reporter.flush(0.0), "there is nothing to hear"
    inbox = Inbox(refusals=10**9)
    reporter = serve(inbox)
    reporter.send(EvaluationReport(1, "loss", 1.0))
    assert not reporter.flush(0.05)
    inbox.refusals = 0
    assert reporter.flush(WITHIN_S)
    assert len(inbox.taken) == 1


def test_a_worker_that_can_t_report_ends_itself(serve: Any, monkeypatch: pytest.MonkeyPatch):
    left = queue.SimpleQueue[int]()
    monkeypatch.setattr(reporter_module.os, "_exit", left.put)
    inbox = Inbox(refusals=0)
    reporter = serve(inbox)
    monkeypatch.setattr(reporter_module.ray, "get_actor", lambda *_: 1 / 0)
    reporter.send(EvaluationReport(1, "loss", 1.0))
    assert left.get(timeout=WITHIN_S) == 1
