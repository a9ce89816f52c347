"""When a node's server of forks is relied on, without a server."""

import os
import queue
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.coordination.fakes import FakeClock
from trainflow.clock import SYSTEM_CLOCK
from trainflow.coordination.forkserver import keeping
from trainflow.coordination.forkserver.keeping import ForkServer, open_fork_server
from trainflow.coordination.forkserver.settings import ForkServerSettings

SETTINGS = ForkServerSettings((), 1.0)
WITHIN_S = 10.0


class Process:
    """A server that lives until it is told to die."""

    def __init__(self) -> None:
        self._died = threading.Event()
        self.readiness, self._readiness_there = os.pipe()

    def say(self, line: str) -> None:
        """Say that all is imported."""
        os.write(self._readiness_there, line.encode())

    def wait(self, timeout_s: float) -> int:
        if not self._died.wait(timeout_s):
            raise subprocess.TimeoutExpired("server", timeout_s)
        return -9

    def poll(self) -> int | None:
        return -9 if self._died.is_set() else None

    def kill(self) -> None:
        if not self._died.is_set():
            self._died.set()
            os.close(self._readiness_there)


class Stage:
    """A server whose processes die, and are started again, when a test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.clock: Any = FakeClock()
        self._started: queue.Queue[Process] = queue.Queue()
        self.pauses_s: queue.Queue[float] = queue.Queue()
        self.may_go_on = threading.Semaphore(0)
        monkeypatch.setattr(ForkServer, "_start", self._start)
        self.server = ForkServer(SETTINGS, "01000000", self.clock)
        monkeypatch.setattr(self.server._closed, "wait", self._pause)
        self.first_command = self.server.command()
        self.process = self.next_process()

    def _start(self, *_: Any) -> tuple[Process, int]:
        process = Process()
        self._started.put(process)
        return process, process.readiness

    def _pause(self, pause_s: float) -> None:
        self.pauses_s.put(pause_s)
        assert self.may_go_on.acquire(timeout=WITHIN_S)

    def next_process(self) -> Process:
        return self._started.get(timeout=WITHIN_S)

    def become_ready(self) -> None:
        self.process.say("\n")
        deadline_s = SYSTEM_CLOCK.monotonic_s() + WITHIN_S
        while not self.server._is_ready:
            assert SYSTEM_CLOCK.monotonic_s() < deadline_s
            SYSTEM_CLOCK.sleep(0.001)

    def die_after(self, lived_s: float) -> float:
        """Let the server die; returns the pause before the next."""
        self.clock.now_s += lived_s
        self.process.kill()
        return self.pauses_s.get(timeout=WITHIN_S)

    def go_on(self) -> None:
        self.may_go_on.release()
        self.process = self.next_process()


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    stage = Stage(monkeypatch)
    with closing(stage.server):
        yield stage
    stage.may_go_on.release()


def test_a_server_is_relied_on_while_it_starts_and_each_worker_has_a_ticket(stage: Stage):
    again = stage.server.command()
    assert stage.first_command is not None
    assert again is not None
    assert again != stage.first_command
    stage.become_ready()
    assert stage.server.command() is not None


def test_one_that_takes_long_to_start_is_not_until_it_has(stage: Stage):
    stage.clock.now_s += 59.0
    assert stage.server.command() is not None, "what imports by itself from now on takes longer"
    stage.clock.now_s += 1.0
    assert stage.server.command() is None
    stage.become_ready()
    assert stage.server.command() is not None


def test_one_that_says_nothing_is_ended(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(keeping, "_READY_WITHIN_S", 0.01)
    stage = Stage(monkeypatch)
    stage.clock.now_s += 180.0
    with closing(stage.server):
        assert stage.pauses_s.get(timeout=WITHIN_S) > keeping._AGAIN_AFTER_S, "it was in vain"
        assert stage.process.poll() == -9
        assert stage.server.command() is None
        assert stage.server._listener.fileno() == -1, "who waits for it imports by itself at once"
    stage.may_go_on.release()


def test_where_what_is_imported_can_t_be_forked_no_other_server_is_tried(stage: Stage):
    stage.process.say("what was imported has begun threads: own\n")
    assert stage.pauses_s.get(timeout=WITHIN_S) > 0.0
    assert stage.process.poll() == -9
    assert stage.server.command() is None
    assert stage.server._listener.fileno() == -1, "who waits is told"


def test_a_server_that_has_lasted_is_relied_on_while_the_next_one_starts(stage: Stage):
    stage.become_ready()
    stage.die_after(60.0)
    assert stage.server.command() is not None
    stage.go_on()
    assert stage.server.command() is not None


def test_one_that_dies_early_is_not_until_another_has_lasted(stage: Stage):
    stage.become_ready()
    pauses_s = [stage.die_after(59.0)]
    assert stage.server.command() is None
    stage.go_on()
    stage.become_ready()
    assert stage.server.command() is None
    pauses_s.append(stage.die_after(1.0))
    assert pauses_s[1] > pauses_s[0]
    stage.clock.now_s += 60.0
    assert stage.server.command() is None, "it is dead"
    stage.go_on()
    stage.become_ready()
    stage.clock.now_s += 60.0
    assert stage.server.command() is not None


def test_where_a_path_would_not_survive_the_shell_python_is_started(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(keeping.sys, "executable", "/my python/bin/python")
    assert stage.server.command() is None


def test_one_that_can_t_be_started_is_tried_again(monkeypatch: pytest.MonkeyPatch):
    stage = Stage(monkeypatch)
    monkeypatch.setattr(ForkServer, "_start", _fail)
    with closing(stage.server):
        first_s = stage.die_after(60.0)
        stage.may_go_on.release()
        assert stage.pauses_s.get(timeout=WITHIN_S) > first_s
    stage.may_go_on.release()


def _fail(*_: Any) -> tuple[Process, int]:
    raise OSError("too many processes")


def test_one_that_answers_nobody_is_ended(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(keeping, "_LOOK_EVERY_S", 0.01)
    monkeypatch.setattr(keeping, "_ANSWERS_WITHIN_S", 0.01)
    stage = Stage(monkeypatch)
    with closing(stage.server):
        stage.process.say("\n")
        assert stage.pauses_s.get(timeout=WITHIN_S) > 0.0
        assert stage.process.poll() == -9
    stage.may_go_on.release()


def test_after_many_in_vain_there_is_no_other(stage: Stage, caplog: pytest.LogCaptureFixture):
    pauses_s = [stage.die_after(1.0)]
    while not stage.server._closed.is_set():
        stage.go_on()
        pauses_s.append(stage.die_after(1.0))
    assert len(pauses_s) == keeping._IN_VAIN_AT_MOST + 1
    assert sum(pauses_s) > 300.0, "what is short of memory may have some again"
    assert "9 servers in a row have died soon" in caplog.text


def test_there_is_none_once_the_job_is_over(stage: Stage):
    stage.server.close()
    assert stage.process.poll() == -9
    assert stage.server.command() is None


@pytest.mark.parametrize(
    ("settings", "inherited", "is_one"),
    [
        (SETTINGS, {}, True),
        (SETTINGS, {"working_dir": "gcs://a.zip", "env_vars": {}}, True),
        (SETTINGS, {"pip": ["einops"]}, False),
        (None, {}, False),
    ],
)
def test_there_is_one_where_a_fork_is_what_the_job_s_own_python_would_be(
    monkeypatch: pytest.MonkeyPatch,
    settings: ForkServerSettings | None,
    inherited: dict[str, Any],
    *,
    is_one: bool,
):
    context = SimpleNamespace(runtime_env=inherited, get_job_id=lambda: "01000000")
    monkeypatch.setattr(keeping.ray, "get_runtime_context", lambda: context)
    found = open_fork_server(settings, FakeClock())
    assert (found is not None) is is_one
    if found is not None:
        found.close()
