"""What a run leaves behind is found: real processes, sockets and files."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from trainflow.clock import SYSTEM_CLOCK
from trainflow.coordination import names
from trainflow.coordination.chaos import leftovers
from trainflow.coordination.chaos.leftovers import Traces

JOB_ID = f"leftovers-of-{os.getpid()}"  # others run the same tests beside us
LISTEN = (
    "import os, socket, sys\n"
    "s = socket.create_server(('127.0.0.1', 0))\n"
    "s.set_inheritable(True)\n"
    "u = socket.socket(type=socket.SOCK_DGRAM); u.bind(('127.0.0.1', s.getsockname()[1]))\n"
    "u.set_inheritable(True)\n"
    "n = socket.socket(socket.AF_UNIX); n.bind('\\0of-' + str(os.getpid())); n.listen()\n"
    "n.set_inheritable(True)\n"
    "if os.fork() == 0: os.setsid()\n"
    "os.write(1, f'{s.getsockname()[1]} {os.getpid()}\\n'.encode())\n"  # one call, or lines mix
    "sys.stdin.read()\n"
)


@pytest.fixture(autouse=True)
def _no_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leftovers, "list_named_actors", lambda **_: [])
    monkeypatch.setattr(leftovers, "placement_group_table", dict)


@pytest.fixture
def listener() -> Iterator[subprocess.Popen[str]]:
    """A process that listens, and whose child holds the same socket."""
    command = [sys.executable, "-c", LISTEN]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
    yield process
    process.kill()
    process.communicate()  # the child ends with its stdin


def read_lines(process: subprocess.Popen[str]) -> list[list[int]]:
    assert process.stdout is not None
    return [[int(word) for word in process.stdout.readline().split()] for _ in range(2)]


def wait_until_gone(pid: int) -> None:
    deadline_s = SYSTEM_CLOCK.monotonic_s() + 20.0
    while psutil.pid_exists(pid):
        assert SYSTEM_CLOCK.monotonic_s() < deadline_s, f"process {pid} lives"
        SYSTEM_CLOCK.sleep(0.01)


def without_commands(left: list[str]) -> list[str]:
    return [each.partition(" (")[0] for each in left]


def test_what_a_process_of_the_run_has_started_is_left_too(listener: subprocess.Popen[str]):
    lines = read_lines(listener)
    (child,) = {pid for _, pid in lines} - {listener.pid}
    traces = Traces()
    traces.note([listener.pid])
    listener.send_signal(signal.SIGKILL)
    left = traces.find_left(JOB_ID)
    assert f"process {child}" in without_commands(left)


def test_a_process_that_lives_is_left(listener: subprocess.Popen[str]):
    read_lines(listener)
    traces = Traces()
    traces.note([listener.pid])
    (process,) = [each for each in traces.find_left(JOB_ID) if str(listener.pid) in each.split()]
    command = f"process {listener.pid} ({sys.executable} -c 'import os, socket, sys s = "
    assert process.startswith(command), "what it was is told, in one line"
    assert "\n" not in process


def test_a_socket_that_a_child_has_kept_is_left_and_one_that_is_closed_is_not(
    listener: subprocess.Popen[str],
):
    lines = read_lines(listener)
    (port, _), _ = lines
    (child,) = {pid for _, pid in lines} - {listener.pid}
    traces = Traces()
    traces.note([listener.pid])
    listener.kill()
    listener.wait()
    sockets = [f"socket at @of-{listener.pid}", f"socket at port {port}"]
    left = without_commands(traces.find_left(JOB_ID))
    assert left == [f"process {child}", *sockets]
    assert listener.stdin is not None
    listener.stdin.close()  # the child ends
    listener.stdin = None
    wait_until_gone(child)
    with socket.create_server(("127.0.0.1", port)):
        assert traces.find_left(JOB_ID) == [], "it is another socket that has the port now"


def test_a_run_that_left_nothing_has_left_nothing():
    assert Traces().find_left(JOB_ID) == []


def test_what_is_new_in_shared_memory_and_maybe_anybody_s_is_found():
    folder = Path(f"/dev/shm/{JOB_ID}-of-somebody")
    folder.mkdir()
    try:
        (folder / "before").write_text("")
        traces = Traces()
        (folder / "new").write_text("")
        assert str(folder / "new") in traces.find_new_shared()
        assert str(folder / "before") not in traces.find_new_shared()
        assert traces.find_left(JOB_ID) == []
    finally:
        shutil.rmtree(folder)


def test_shared_memory_is_left():
    folder = names.stamp_directory(JOB_ID, "node")
    folder.mkdir(parents=True)
    try:
        left = Traces().find_left(JOB_ID)
    finally:
        shutil.rmtree(folder.parent)
    assert left == [str(folder.parent), str(folder)]


STRAY = (
    "import mmap, os, sys\n"
    "os.setpgid(0, 0)\n"
    "file = open(sys.argv[1], 'w+b'); file.truncate(4096)\n"
    "mapped = mmap.mmap(file.fileno(), 4096)\n"
    "print(os.getpid(), flush=True)\n"
    "sys.stdin.readline()\n"
    "child = os.fork()\n"
    "if child: print(child, flush=True); os._exit(0)\n"
    "sys.stdin.read()\n"
)


def test_what_was_started_unseen_is_left_and_so_is_memory_of_the_job_s_own():
    path = Path(f"/dev/shm/{JOB_ID}")
    command = [sys.executable, "-c", STRAY, str(path)]
    pipe = subprocess.PIPE
    traces = Traces()
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdout.readline()
        traces.note([process.pid])
        process.stdin.write("\n")
        process.stdin.flush()
        child = int(process.stdout.readline())
        process.wait()
        left = without_commands(traces.find_left(JOB_ID))
        assert left == [f"process {child}", str(path)]
        process.stdin.close()
        process.stdin = None
        wait_until_gone(child)
        assert traces.find_left(JOB_ID) == [str(path)]
    path.unlink()
    path.touch()  # another has the name
    try:
        assert traces.find_left(JOB_ID) == []
    finally:
        path.unlink()


def test_memory_that_was_there_before_or_is_gone_with_its_node_is_not_left():
    path = Path(f"/dev/shm/{JOB_ID}")
    command = [sys.executable, "-c", STRAY, str(path)]
    pipe = subprocess.PIPE
    early = Traces()
    try:
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
            assert process.stdout is not None
            process.stdout.readline()
            late, of_lost_node = Traces(), Traces()
            of_lost_node._others.clear()
            for traces in (early, late, of_lost_node):
                traces.note([process.pid])
            of_lost_node.excuse([process.pid])
            process.kill()
        assert early.find_left(JOB_ID) == [str(path)]
        assert late.find_left(JOB_ID) == of_lost_node.find_left(JOB_ID) == []
    finally:
        path.unlink()


def test_names_of_others_need_not_be_text(listener: subprocess.Popen[str]):
    read_lines(listener)
    with socket.socket(socket.AF_UNIX) as odd:
        odd.bind(b"\0" + JOB_ID.encode() + b"\xff\xfe")
        odd.listen()
        traces = Traces()
        traces.note([listener.pid])
        assert f"process {listener.pid}" in without_commands(traces.find_left(JOB_ID))


def test_an_empty_folder_in_shared_memory_is_left():
    folder = names.stamp_directory(JOB_ID, "node").parent
    folder.mkdir(parents=True)
    try:
        assert Traces().find_left(JOB_ID) == [str(folder)]
    finally:
        folder.rmdir()


def test_actors_and_placement_groups_of_the_run_are_left(monkeypatch: pytest.MonkeyPatch):
    actors = [{"name": f"{JOB_ID}/coordinator"}, {"name": "another/coordinator"}]
    group = {"name": f"{JOB_ID}/workers", "state": "CREATED"}
    groups = {"a": group, "b": group | {"state": "REMOVED"}, "c": group | {"name": "another/w"}}
    monkeypatch.setattr(leftovers, "list_named_actors", lambda **_: actors)
    monkeypatch.setattr(leftovers, "placement_group_table", lambda: groups)
    left = Traces().find_left(JOB_ID)
    assert left == [f"actor {JOB_ID}/coordinator", f"placement group {JOB_ID}/workers"]


def test_a_process_that_is_gone_when_it_is_seen_is_no_error():
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    traces = Traces()
    traces.note([gone.pid])
    assert traces.find_left(JOB_ID) == []
    assert not Path(f"/proc/{gone.pid}").exists()
