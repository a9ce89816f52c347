"""What nodes leave in shared memory when they are killed, and whose it is."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.unit.coordination.left_stamps import leave_stamp, stand_in_for_memory
from trainflow.clock import SYSTEM_CLOCK
from trainflow.coordination import abandoned_memory
from trainflow.coordination.abandoned_memory import (
    find_abandoned,
    mark_used,
    measure_bytes,
    remove_abandoned,
    remove_of_node,
)

NODE_ID, OTHER = "5eed" * 14, "07e4" * 14
NOBODY = 2**22 + 1  # beyond what pids there are
LONG_AGO_S = 3600.0


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return stand_in_for_memory(tmp_path / "shm", monkeypatch)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(abandoned_memory, "_DIE_WITHIN_S", 0.0)


def age(folder: Path) -> None:
    """Let it be long since anything was written there."""
    then_s = SYSTEM_CLOCK.unix_s() - LONG_AGO_S
    for path in (*folder.iterdir(), folder):
        os.utime(path, (then_s, then_s))


def leave(folder: Path, pid: int = NOBODY) -> Path:
    """Leave what a worker does that was killed long ago."""
    leave_stamp(folder, pid, SYSTEM_CLOCK.monotonic_s() - LONG_AGO_S)
    (folder / "slot0-1.0.0.snapshot").write_bytes(bytes(8192))
    age(folder)
    return folder


def test_of_a_dead_node_goes_what_all_jobs_have_left(memory: Path):
    leave_stamp(memory / "job-a" / NODE_ID, NOBODY)
    (memory / "job-b" / NODE_ID).mkdir(parents=True)
    remove_of_node(NODE_ID)
    assert list(memory.iterdir()) == []


def test_what_another_node_has_is_left(memory: Path):
    for node_id in (NODE_ID, OTHER):
        leave_stamp(memory / "job-a" / node_id, NOBODY)
    remove_of_node(NODE_ID)
    assert [path.name for path in (memory / "job-a").iterdir()] == [OTHER]
    assert [path.name for path in (memory / "job-a" / OTHER).iterdir()] == ["slot0-1.0.stamp"]


@pytest.mark.usefixtures("impatient")
def test_what_a_live_worker_has_is_left(memory: Path):
    stamp = leave_stamp(memory / "job-a" / NODE_ID, os.getpid())
    remove_of_node(NODE_ID)
    assert stamp.exists()


def test_a_worker_that_is_about_to_stamp_is_waited_for(
    memory: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = memory / "job-a" / NODE_ID
    folder.mkdir(parents=True)
    (folder / "slot0-1.0.stamp").write_bytes(bytes(64))
    naps_s: list[float] = []

    def stamp_meanwhile(duration_s: float) -> None:
        naps_s.append(duration_s)
        leave_stamp(folder, os.getpid())

    clock = SimpleNamespace(sleep=stamp_meanwhile, monotonic_s=lambda: 10.0 * len(naps_s))
    monkeypatch.setattr(abandoned_memory, "SYSTEM_CLOCK", clock)
    remove_of_node(NODE_ID)
    assert (folder / "slot0-1.0.stamp").exists()


@pytest.mark.usefixtures("impatient")
def test_a_stamp_that_is_never_made_goes_with_its_folder(memory: Path):
    folder = memory / "job-a" / NODE_ID
    folder.mkdir(parents=True)
    (folder / "slot0-1.0.stamp").write_bytes(b"")
    remove_of_node(NODE_ID)
    assert list(memory.iterdir()) == []


def test_what_nobody_uses_is_found_and_removed(memory: Path):
    left = leave(memory / "job-a" / NODE_ID)
    (memory / "job-b" / OTHER).mkdir(parents=True)
    assert find_abandoned() == [left]
    assert measure_bytes([left]) >= 8192
    remove_abandoned()
    assert [path.name for path in memory.iterdir()] == ["job-b"]


def test_what_a_worker_has_that_stands_still_is_no_others(
    memory: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(abandoned_memory, "_UNUSED_AFTER_S", 0.0)
    folder = memory / "job-a" / NODE_ID
    leave_stamp(folder, os.getpid(), SYSTEM_CLOCK.monotonic_s())
    age(folder)
    assert find_abandoned() == []


def test_a_later_process_with_a_workers_pid_is_not_that_worker(memory: Path):
    left = leave(memory / "job-a" / NODE_ID, os.getpid())  # before this process began
    assert find_abandoned() == [left]


def test_an_empty_folder_goes_too(memory: Path):
    folder = memory / "job-a" / NODE_ID
    folder.mkdir(parents=True)
    age(folder)
    remove_abandoned()
    assert list(memory.iterdir()) == []


def test_there_may_be_no_memory_at_all(memory: Path):
    assert find_abandoned() == []


@pytest.fixture
def raylet() -> Iterator[None]:
    """A process that was started for a node, and has none of its files open."""
    command = "import signal; print(flush=True); signal.pause()"
    arguments = [sys.executable, "-c", command, f"--node_id={NODE_ID}"]
    with subprocess.Popen(arguments, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield
        process.kill()


@pytest.mark.usefixtures("raylet")
def test_what_the_dead_workers_of_a_live_node_have_left_is_its_keepers(memory: Path):
    leave(memory / "job-a" / NODE_ID)
    leave(memory / "job-a" / OTHER)
    assert [folder.name for folder in find_abandoned()] == [OTHER]


class TestWhereProcessesAreNotSeen:
    """As in a container that shares its memory with another one."""

    def test_a_pulse_shows_a_live_worker(self, memory: Path):
        folder = leave(memory / "job-a" / NODE_ID)
        leave_stamp(folder, NOBODY, SYSTEM_CLOCK.monotonic_s())
        age(folder)
        assert find_abandoned() == []

    def test_a_mark_shows_a_live_keeper(self, memory: Path):
        folder = leave(memory / "job-a" / NODE_ID)
        mark_used(folder)
        assert find_abandoned() == []

    def test_a_file_that_is_new_shows_that_somebody_is_there(self, memory: Path):
        folder = leave(memory / "job-a" / NODE_ID)
        (folder / "slot0-1.0.0.snapshot").write_bytes(b"")
        assert find_abandoned() == []

    def test_nothing_is_marked_where_nothing_is(self, memory: Path):
        mark_used(memory / "job-a" / NODE_ID)
        assert not memory.exists()


def test_what_is_another_users_is_left(memory: Path, monkeypatch: pytest.MonkeyPatch):
    leave(memory / "job-a" / NODE_ID)
    monkeypatch.setattr(abandoned_memory.os, "geteuid", lambda: os.getuid() + 1)
    assert find_abandoned() == []
