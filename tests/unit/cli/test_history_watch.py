"""What `trainflow serve` says of a history that can't be kept up."""

from pathlib import Path

import pytest

from tests.unit.coordination.fakes import SleepyClock
from tests.unit.service.fakes import FakeCluster
from tests.unit.service.runs import listening
from trainflow.cli.history_watch import HistoryWatch, asking
from trainflow.service.app import create_app
from trainflow.service.history.history import open_history
from trainflow.service.settings import ServiceSettings

Captured = pytest.CaptureFixture[str]


class Service:
    """Answers, or doesn't."""

    def __init__(self) -> None:
        self.problem: str | None = None
        self.is_silent = False

    def ask(self) -> str | None:
        if self.is_silent:
            raise ConnectionError("connection refused")
        return self.problem


def test_it_is_told_once_and_once_that_it_is_over(capsys: Captured):
    service, clock = Service(), SleepyClock()
    watch = HistoryWatch(service.ask, clock)

    def look_again() -> str:
        clock.now_s += 5.0
        watch.look()
        return capsys.readouterr().err

    assert look_again() == ""
    service.problem = "the disk is full"
    watch.look()
    assert capsys.readouterr().err == "", "that was asked just now"
    assert "can't be kept up for now: the disk is full" in look_again()
    assert look_again() == ""
    service.is_silent = True
    assert look_again() == ""
    service.is_silent, service.problem = False, None
    assert "kept up again" in look_again()
    assert look_again() == ""


def test_a_service_that_is_gone_is_told_once_and_that_it_is_back(capsys: Captured):
    service, clock = Service(), SleepyClock()
    watch = HistoryWatch(service.ask, clock)
    service.is_silent = True
    told: list[str] = []
    for _ in range(20):
        clock.now_s += 5.0
        watch.look()
        told += capsys.readouterr().err.splitlines()
    (line,) = told
    assert line.endswith("the service isn't ready, or gone: connection refused")
    service.is_silent = False
    for said in ("the service answers again\n", ""):
        clock.now_s += 5.0
        watch.look()
        assert capsys.readouterr().err.endswith(said)


def test_a_service_is_asked_without_a_token(tmp_path: Path):
    with open_history(f"sqlite:///{tmp_path / 'history.db'}") as history:
        app = create_app(
            ServiceSettings(), history, FakeCluster(), find_problem=lambda: "the disk is full"
        )
        with listening(app) as url:
            assert asking(url)() == "the disk is full"
    with pytest.raises(ConnectionError):
        asking(url)()
