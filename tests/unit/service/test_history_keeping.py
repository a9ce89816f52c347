"""The process that keeps the history."""

import threading

import pytest

from tests.unit.service.fakes import FakeClock, FakeCluster
from trainflow.service import history_keeping
from trainflow.service.history.history import History
from trainflow.service.history_keeping import HistoryKeeping
from trainflow.service.resumption_watch import ResumptionWatch
from trainflow.service.settings import ServiceSettings
from trainflow.service.submission_watch import SubmissionWatch

WITHIN_S = 20.0


def test_lost_jobs_are_looked_after_whatever_becomes_of_submissions(
    history: History, cluster: FakeCluster, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
):
    looks = threading.Semaphore(0)

    def fail(_watch: SubmissionWatch) -> None:
        raise KeyError("unforeseen")

    monkeypatch.setattr(history_keeping, "_WATCH_EVERY_S", 0.01)
    monkeypatch.setattr(SubmissionWatch, "look", fail)
    monkeypatch.setattr(ResumptionWatch, "look", lambda _watch: looks.release())
    keeping = HistoryKeeping(history, cluster, clock, ServiceSettings())
    keeping.start()
    try:
        assert all(looks.acquire(timeout=WITHIN_S) for _ in range(3))
    finally:
        keeping.stop()
