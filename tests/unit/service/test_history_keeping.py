"""The process that keeps the history."""

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.unit.service.fakes import FakeClock, FakeCluster
from tests.unit.service.runs import wait_until
from trainflow.errors import TrainFlowError
from trainflow.service import history_keeping
from trainflow.service.history.history import History
from trainflow.service.history.ingest import Ingester
from trainflow.service.history.ingest_thread import IngestThread
from trainflow.service.history_keeping import HistoryKeeping
from trainflow.service.on_ray.deployment import HistoryReplica
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


@pytest.mark.parametrize("does", ["reads", "watches"])
def test_a_thread_that_has_ended_is_told(
    does: str,
    history: History,
    cluster: FakeCluster,
    clock: FakeClock,
    monkeypatch: pytest.MonkeyPatch,
):
    runs = {"reads": (IngestThread, "_run"), "watches": (HistoryKeeping, "_keep_watch")}
    where, name = runs[does]
    monkeypatch.setattr(where, name, lambda _: None)
    keeping = HistoryKeeping(history, cluster, clock, ServiceSettings())
    keeping.start()
    try:
        wait_until(lambda: not is_well(keeping))
        with pytest.raises(TrainFlowError, match=f"the thread has ended that {does};"):
            keeping.require_running()
    finally:
        keeping.stop()


def test_why_the_history_cannot_be_kept_is_told(
    history: History,
    cluster: FakeCluster,
    clock: FakeClock,
    monkeypatch: pytest.MonkeyPatch,
):
    keeping = HistoryKeeping(history, cluster, clock, ServiceSettings())
    assert "the history is no longer kept" in (keeping.find_problem() or "")
    keeping.start()
    try:
        assert keeping.find_problem() is None
        with monkeypatch.context() as full:
            room = SimpleNamespace(f_bavail=3, f_frsize=4096)
            full.setattr(history_keeping.os, "statvfs", lambda _: room)
            assert "room for 12288 bytes" in (keeping.find_problem() or "")
        with monkeypatch.context() as locked:
            locked.setattr(Ingester, "trouble", "database is locked")
            assert keeping.find_problem() == "database is locked"
    finally:
        keeping.stop()


def is_well(keeping: HistoryKeeping) -> bool:
    try:
        keeping.require_running()
    except TrainFlowError:
        return False
    return True


def test_serve_is_told_that_the_history_is_no_longer_kept(
    history: History, cluster: FakeCluster, clock: FakeClock
):
    replica: Any = SimpleNamespace(
        _keeping=HistoryKeeping(history, cluster, clock, ServiceSettings())
    )
    check_health: Any = cast("Any", HistoryReplica.func_or_class).check_health
    replica._keeping.start()
    try:
        check_health(replica)
    finally:
        replica._keeping.stop()
    with pytest.raises(TrainFlowError, match="ended that reads and watches;"):
        check_health(replica)
