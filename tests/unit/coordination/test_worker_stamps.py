"""A node's workers are found by their stamps, and ended though some can't be read."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.coordination.fakes import FakeClock
from tests.unit.coordination.left_stamps import leave_stamp
from trainflow.clock import SYSTEM_CLOCK
from trainflow.computation.stamps import Stamp, StampWriter, read_stamp
from trainflow.coordination import worker_stamps as module
from trainflow.coordination.start_times import read_process_age_s
from trainflow.coordination.wakefulness import Wakefulness
from trainflow.coordination.worker_stamps import WorkerStamps

FIRST, SECOND = "slot0-1.0", "slot1-1.1"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    writers = [StampWriter(tmp_path / f"{each}.stamp") for each in (FIRST, SECOND)]
    yield tmp_path
    for each in writers:
        each.close()


@pytest.fixture
def workers(folder: Path) -> WorkerStamps:
    return WorkerStamps(folder, Wakefulness(0.0), FakeClock())


@pytest.fixture
def killed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    killed: list[int] = []
    monkeypatch.setattr(module.os, "kill", lambda pid, _: killed.append(pid))
    return killed


def refuse(path: Path) -> Stamp | None:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))


def test_one_stamp_that_can_not_be_read_hides_nobody_else(
    workers: WorkerStamps, killed: list[int], monkeypatch: pytest.MonkeyPatch
):
    assert workers.read().keys() == {FIRST, SECOND}
    monkeypatch.setattr(
        module, "read_stamp", lambda p: refuse(p) if p.stem == FIRST else read_stamp(p)
    )
    assert workers.read().keys() == {SECOND}
    assert workers.read().keys() == {SECOND}
    assert sorted(workers.kill_all()) == [FIRST, SECOND], "its pid is known"
    assert killed == [os.getpid()] * 2


def test_a_later_process_with_the_pid_of_one_that_died_is_left_alone(
    tmp_path: Path, killed: list[int]
):
    now_s, age_s = SYSTEM_CLOCK.monotonic_s(), read_process_age_s()
    workers = WorkerStamps(tmp_path, Wakefulness(0.0), FakeClock())
    path = leave_stamp(tmp_path, os.getpid(), pulse_at_s=now_s - age_s - 1.0)
    assert not workers.kill(path.stem)
    assert not path.exists(), "it is gone, and its traces with it"
    leave_stamp(tmp_path, os.getpid(), pulse_at_s=now_s - age_s - 1.0)
    assert workers.read() == {}
    assert not path.exists()
    leave_stamp(tmp_path, os.getpid(), pulse_at_s=now_s - age_s + 0.1)
    assert workers.read().keys() == {path.stem}
    assert workers.kill(path.stem)
    assert killed == [os.getpid()]


def test_a_folder_that_can_not_be_read_keeps_nobody_alive(
    workers: WorkerStamps, killed: list[int], monkeypatch: pytest.MonkeyPatch
):
    assert workers.read().keys() == {FIRST, SECOND}
    monkeypatch.setattr(module.Path, "glob", lambda path, _: refuse(path))
    monkeypatch.setattr(module, "read_stamp", refuse)
    assert workers.read() == {}
    assert sorted(workers.kill_all()) == [FIRST, SECOND]
    assert len(killed) == 2


def test_a_worker_that_could_not_be_killed_is_found_the_next_time_and_costs_no_other_its_end(
    workers: WorkerStamps, folder: Path, monkeypatch: pytest.MonkeyPatch
):
    tried: list[int] = []

    def refuse_once(pid: int, _signal: int) -> None:
        tried.append(pid)
        if len(tried) == 1:
            raise PermissionError

    monkeypatch.setattr(module.os, "kill", refuse_once)
    (ended,) = workers.kill_all()
    (left,) = {FIRST, SECOND} - {ended}
    assert [path.stem for path in folder.glob("*.stamp")] == [left]
    assert workers.kill(left)
    assert not list(folder.glob("*.stamp"))
    assert not workers.kill(left)
