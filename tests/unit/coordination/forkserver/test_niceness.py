"""How nice forks are, where the server may become less nice, and where it may not."""

import os
from typing import Never

import pytest

from trainflow.coordination.forkserver import server


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_RAYLET_PID", str(os.getpid()))


def test_forks_begin_as_nice_as_raylet():
    assert server.find_niceness() == os.getpriority(os.PRIO_PROCESS, 0)


def test_nothing_is_said_where_that_can_t_be_taken_back(
    monkeypatch: pytest.MonkeyPatch,
):
    def refuse(*_: int) -> Never:
        raise PermissionError

    monkeypatch.setattr(server.os, "setpriority", refuse)
    assert server.find_niceness() is None
