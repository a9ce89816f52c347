"""Staying with a run: what is asked, when, and what ends it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from tests.unit.cli.fakes import FakeRun, make_ending, make_status
from trainflow.cli.attached_run import AttachedRun
from trainflow.cli.progress import Progress
from trainflow.cli.stop_signals import StopSignals
from trainflow.errors import CoordinationError, UnreachableError

AWAY = UnreachableError("away")
ENDED = make_ending("succeeded", 0)


@dataclass
class FakeClock:
    """Time that passes only in sleep; at a moment, something may happen."""

    now_s: float = 0.0
    happens: dict[int, Any] = field(default_factory=dict)
    num_sleeps: int = 0

    def monotonic_s(self) -> float:
        return self.now_s

    def unix_s(self) -> float:
        return self.now_s

    def sleep(self, duration_s: float) -> None:
        self.now_s += duration_s
        self.num_sleeps += 1
        self.happens.get(self.num_sleeps, lambda: None)()


@dataclass
class FakeDisplay:
    notices: list[str] = field(default_factory=list)

    def show(self, progress: Progress, news: Sequence[str]) -> None: ...

    def notice(self, text: str) -> None:
        self.notices.append(text)

    def close(self) -> None: ...


def attach(run: FakeRun, **parts: Any) -> AttachedRun:
    parts.setdefault("display", FakeDisplay())
    parts.setdefault("signals", StopSignals())
    parts.setdefault("clock", FakeClock())
    return AttachedRun(run, Progress("tokens", 1), **parts)


def test_it_follows_until_the_ending():
    run = FakeRun([make_status(), make_status(), ENDED])
    assert attach(run).follow() == ENDED
    assert run.calls == ["status"] * 3


def test_a_signal_becomes_one_stop_before_anything_else():
    signals = StopSignals()
    signals.received = 1
    run = FakeRun([make_status(), make_status(), make_ending("stopped", 7)])
    assert attach(run, signals=signals).follow()["ending"]["exit_code"] == 7
    assert run.calls == ["stop", "status", "status", "status"]


def test_a_stop_is_asked_for_until_it_is_acknowledged():
    signals = StopSignals()
    signals.received = 1
    run = FakeRun([ENDED], stop_answers=[AWAY, AWAY, None])
    attach(run, signals=signals).follow()
    assert run.calls == ["stop", "stop", "stop", "status"]


def test_a_silent_coordinator_is_borne_and_said_once_each_time():
    run = FakeRun([make_status(), AWAY, AWAY, make_status(), AWAY, ENDED])
    display = FakeDisplay()
    assert attach(run, display=display).follow() == ENDED
    assert [notice.count("restarting") for notice in display.notices] == [1, 1]


def test_silence_is_borne_for_a_minute():
    run, clock = FakeRun([AWAY]), FakeClock()
    with pytest.raises(UnreachableError, match="away"):
        attach(run, clock=clock).follow()
    assert 60 < clock.now_s < 61


def test_silence_is_borne_for_ever_where_the_cluster_would_go_with_who_asks():
    run, clock = FakeRun([AWAY] * 2000 + [ENDED]), FakeClock()
    assert attach(run, clock=clock, silent_at_most_s=math.inf).follow() == ENDED
    assert clock.now_s > 400


def test_a_minute_is_counted_from_the_last_answer():
    run = FakeRun([AWAY] * 200 + [make_status()] + [AWAY] * 200 + [ENDED])
    assert attach(run).follow() == ENDED


def test_a_cluster_that_is_gone_is_not_waited_for():
    def require_cluster() -> None:
        raise UnreachableError("the head is gone")

    clock = FakeClock()
    attached = attach(FakeRun([AWAY]), clock=clock, require_cluster=require_cluster)
    with pytest.raises(UnreachableError, match="head is gone"):
        attached.follow()
    assert clock.now_s == 0.0


def test_a_coordinator_that_is_gone_for_good_is_not_waited_for():
    run = FakeRun([make_status(), CoordinationError("gone for good")])
    with pytest.raises(CoordinationError, match="gone for good"):
        attach(run).follow()
    assert run.calls == ["status", "status"]


def test_what_was_heard_is_not_asked_for_again():
    asked = []

    class Recorder(FakeRun):
        def status(self, since_event: int | None = 0, since_step: int = 0) -> dict[str, Any]:
            asked.append((since_event, since_step))
            return super().status()

    news = make_status(
        events=[{"number": 3, "at_s": 1.0, "kind": "epoch", "text": ""}],
    )
    attach(Recorder([news, ENDED])).follow()
    assert asked == [(None, 0), (3, 0)]  # what was before the attempt is not asked for
