"""Forks of a real server, with all that workers import, beside Python as Ray starts it."""

import json
import os
import resource
import shlex
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import psutil
import pytest

from tests.integration.served import wait_until
from trainflow.clock import SYSTEM_CLOCK
from trainflow.coordination.forkserver import keeping, launcher
from trainflow.coordination.forkserver.keeping import ForkServer
from trainflow.coordination.forkserver.processes import find_servers
from trainflow.coordination.forkserver.settings import ForkServerSettings

RAY_JOB = "01000000"
WITHIN_S = 60.0

# What a process can tell of itself that a worker, or what a worker runs, may go by.
TELL = """
import gc, json, locale, os, resource, signal, sys, threading

had_torch = "torch" in sys.modules
import numpy, ray.train.torch, torch, trainflow.coordination.worker_runtime

told = {
    "argv": sys.argv,
    "environment": {k: v for k, v in os.environ.items() if k not in ("_", "SHLVL")},
    "path": sys.path,
    "directory": os.getcwd(),
    "name": __name__,
    "file": __file__,
    "main": sys.modules["__main__"].__file__,
    "input": sys.stdin.read(),
    "threads": [torch.get_num_threads(), threading.active_count()],
    "descriptors": sorted(int(each) for each in os.listdir("/proc/self/fd"))[:-1],
    "signals": [str(signal.getsignal(each)) for each in sorted(signal.valid_signals())],
    "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
    "niceness": os.getpriority(os.PRIO_PROCESS, 0),
    "limits": [resource.getrlimit(each) for each in range(16)],
    "flags": [repr(sys.flags), sys.getrecursionlimit(), locale.getlocale(), os.umask(0)],
    "text": [(each.encoding, each.errors, each.line_buffering) for each in (sys.stdin, sys.stdout)],
    "collects": gc.isenabled(),
}
alone = {"had_torch": had_torch, "leads": os.getpgid(0) == os.getpid()}
print(json.dumps([told, alone]))
"""


@pytest.fixture(scope="module")
def server() -> Iterator[ForkServer]:
    made = ForkServer(ForkServerSettings((), 2.0), RAY_JOB, SYSTEM_CLOCK)
    made.command()  # from now on it imports
    yield made
    made.close()
    process = made._process
    assert process is not None
    assert process.wait(WITHIN_S) == -signal.SIGKILL


def run(
    command: str, script: str, folder: Path, environment: dict[str, str], *arguments: str
) -> "subprocess.CompletedProcess[str]":
    """Start a script as Ray starts a worker, by bash, which becomes it; waits for its end."""
    path = folder / "script.py"
    path.write_text(script)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])  # as raylet's children have
    try:
        return subprocess.run(
            ["bash", "-c", f"exec {command} {shlex.join([str(path), *arguments])}"],
            cwd=folder,
            env=environment,
            input="said to it",
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
            check=True,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def command_of(server: ForkServer) -> str:
    command = server.command()
    assert command is not None
    wait_until(lambda: server._is_ready, lambda: "it has not imported all")
    return command


def fork(server: ForkServer, script: str, folder: Path) -> str:
    """Run a script in a fork; returns what it prints."""
    done = run(command_of(server), script, folder, server._environment())
    assert done.stderr == ""
    return done.stdout


def pid_of(server: ForkServer) -> int:
    assert server._process is not None
    return server._process.pid


def process_of(server: ForkServer) -> psutil.Process:
    return psutil.Process(pid_of(server))


def replace(server: ForkServer) -> None:
    """Kill a server; returns when another has imported all."""
    first = process_of(server)
    first.kill()
    wait_next(server, first)


def wait_next(server: ForkServer, first: psutil.Process) -> None:
    wait_until(lambda: pid_of(server) != first.pid, lambda: "there is no other")
    wait_until(lambda: server._is_ready, lambda: "it has not imported all")


def test_a_fork_is_what_python_would_have_been(server: ForkServer, tmp_path: Path):
    environment = server._environment()
    arguments = ("--one=1", "two three")
    by_ray = environment | {"OMP_NUM_THREADS": "2"}  # which Ray sets before torch is imported
    spawned = run(sys.executable, TELL, tmp_path, by_ray, *arguments)
    forked = run(command_of(server), TELL, tmp_path, environment, *arguments)
    expected, of_python = json.loads(spawned.stdout)
    told, of_fork = json.loads(forked.stdout)
    assert of_python == {"had_torch": False, "leads": False}
    assert of_fork == {"had_torch": True, "leads": True}, "Ray ends a worker with its group"
    del expected["environment"]["OMP_NUM_THREADS"]
    assert told == expected
    assert forked.stderr == spawned.stderr


def test_forks_draw_numbers_of_their_own(server: ForkServer, tmp_path: Path):
    draw = (
        "import numpy, random, torch; from threading import Thread; from ray import WorkerID; "
        "print(numpy.random.rand(), random.random(), torch.rand(())); "
        "show = lambda: print(WorkerID.from_random().hex()); show(); Thread(target=show).start()"
    )
    first, second = (fork(server, draw, tmp_path).split() for _ in range(2))
    assert len(first) == 5
    assert all(one != other for one, other in zip(first, second, strict=True))


def test_a_fork_computes_with_threads(server: ForkServer, tmp_path: Path):
    compute = (
        "import torch; x = torch.ones(2048, 2048); print((x @ x).sum().item(), x.sum().item())"
    )
    assert fork(server, compute, tmp_path).split() == [str(2048.0**3), str(2048.0**2)]


def test_a_fork_that_ends_leaves_nothing_and_its_exit_runs(server: ForkServer, tmp_path: Path):
    at_exit = "import atexit, os; atexit.register(print, 'left'); print(os.getpid())"
    pid, left = fork(server, at_exit, tmp_path).split()
    assert left == "left"
    wait_until(lambda: not psutil.pid_exists(int(pid)), lambda: f"{pid} is left")


def test_what_a_fork_raises_is_told_as_python_tells_it(server: ForkServer, tmp_path: Path):
    environment = server._environment()
    done = run(command_of(server), "raise ValueError('no')", tmp_path, environment)
    assert done.stderr.endswith("ValueError: no\n")


def test_under_other_variables_python_is_started(server: ForkServer, tmp_path: Path):
    environment = server._environment() | {"TORCH_LOGS": "", "ONE": "1"}
    script = "import sys; print('torch' in sys.modules, sys.argv[1:], sys.stdin.read())"
    done = run(command_of(server), script, tmp_path, environment, "a b")
    assert done.stdout == "False ['a b'] said to it\n"
    assert "can't be a fork: the variable ONE is another than where it was imported" in done.stderr


def test_what_bash_changes_is_no_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Ray starts workers by bash, and Keepers without: an activated venv exports PS1, say."""
    with closing(open_server()) as server:
        prompt = server._environment() | {"PS1": "(venv) $ ", "OPTIND": "7"}
        monkeypatch.setattr(server, "_environment", lambda: prompt)
        script = "import os, sys; print('torch' in sys.modules, os.environ.get('PS1'))"
        assert fork(server, script, tmp_path) == "True None\n"


def test_where_there_is_no_server_python_is_started(tmp_path: Path):
    command = f"{sys.executable} -S -E {launcher.__file__} trainflow-fork-nobody ticket"
    script = "import sys; print(len(sys.argv), sys.stdin.read())"
    done = run(command, script, tmp_path, {**os.environ})
    assert done.stdout == "1 said to it\n"
    assert "refused" in done.stderr


def test_neither_a_folder_that_is_gone_nor_a_full_disk_keeps_a_worker_from_starting(tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text("print('runs')")
    gone = tmp_path / "gone"
    gone.mkdir()
    launch = f"{sys.executable} -S -E {launcher.__file__} trainflow-fork-nobody ticket {script}"
    told = subprocess.run(
        ["bash", "-c", f"rmdir {gone}; exec {launch} 2>/dev/full"],
        cwd=gone,
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout == "runs\n"


def test_a_launcher_that_has_given_up_leaves_no_fork(server: ForkServer, tmp_path: Path):
    """It becomes a worker itself: there are never two."""
    trace = tmp_path / "trace"
    script = tmp_path / "script.py"
    script.write_text(f"open({str(trace)!r}, 'w')")
    command_of(server)  # it serves
    wait_until(lambda: not process_of(server).children(), lambda: "a fork of before stays")
    with socket.socket(socket.AF_UNIX) as connection, (tmp_path / "null").open("w") as null:
        connection.connect(launcher.address_of(server._name))
        streams = (null.fileno(),) * 3
        variables = server._environment()
        request = launcher.Request("one", [str(script)], variables, str(tmp_path), [], streams)
        launcher.send_request(connection, request)
        assert connection.recv(1) == launcher.READY
        assert len(process_of(server).children()) == 1
    wait_until(lambda: not process_of(server).children(), lambda: "the fork stays")
    assert not trace.exists()


def framed(body: bytes) -> bytes:
    return struct.pack("!I", len(body)) + body


OF_WRONG_KINDS = b'{"ticket": 1, "argv": [], "environment": [], "directory": 1, "blocked": 1}'


@pytest.mark.parametrize(
    "sent", [b"", b"abc", b"\xff\xff\xff\xff", *map(framed, (b"{}", b"[]", OF_WRONG_KINDS))]
)
def test_who_asks_for_nothing_harms_nobody(server: ForkServer, tmp_path: Path, sent: bytes):
    before = process_of(server).pid
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(launcher.address_of(server._name))
        socket.send_fds(connection, [sent or b"."], [0, 1, 2])
    assert fork(server, "print(1)", tmp_path) == "1\n"
    assert process_of(server).pid == before


def test_what_a_worker_starts_with_ray_is_no_fork(server: ForkServer, tmp_path: Path):
    """It inherits the command. So may what is started again."""
    command, environment = command_of(server), server._environment()
    script = "import sys; print('torch' in sys.modules)"
    assert run(command, script, tmp_path, environment).stdout == "True\n"
    again = run(command, script, tmp_path, environment)
    assert again.stdout == "False\n"
    assert "it was started by a worker, or another time" in again.stderr


def test_nor_is_it_when_another_server_is_there_by_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(keeping, "_LASTING_S", 0.0)
    script = "import sys; print('torch' in sys.modules)"
    with closing(open_server()) as server:
        command, environment = command_of(server), server._environment()
        assert run(command, script, tmp_path, environment).stdout == "True\n"
        declined = command_of(server)
        other = run(declined, script, tmp_path, environment | {"ONE": "1"})
        assert "the variable ONE is another" in other.stderr
        replace(server)
        for used in (command, declined):
            again = run(used, script, tmp_path, environment)
            assert again.stdout == "False\n"
            assert "it was started by a worker, or another time" in again.stderr
        assert fork(server, script, tmp_path) == "True\n"


def test_where_the_launcher_is_not_there_raylet_s_python_is_started(tmp_path: Path):
    """A worker's tasks may be on another node."""
    command = keeping._COMMAND.format(
        python=sys.executable,
        flags="-S",
        launcher="/elsewhere/launcher.py",
        name="name",
        ticket="ticket",
    )
    script = tmp_path / "script.py"
    script.write_text("import sys; print(sys.executable, sys.argv[1:])")
    start = "import subprocess, sys; sys.exit(subprocess.call(['bash', '-c', sys.argv[1]]))"
    raylet = f"--python_worker_command={sys.executable} setup_worker.py default_worker.py"
    told = subprocess.run(
        [sys.executable, "-c", start, f"exec {command} {script} --one", "--static", raylet],
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout == f"{sys.executable} ['--one']\n"


def test_where_ray_has_activated_an_environment_its_python_is_started(
    server: ForkServer, tmp_path: Path
):
    """A worker's task may have packages of its own."""
    packages = tmp_path / "packages" / "bin"
    packages.mkdir(parents=True)
    (packages / "python").write_text("#!/bin/sh\necho python of the packages: $2\n")
    (packages / "python").chmod(0o755)
    with subprocess.Popen(["sleep", "60"], env=server._environment()) as raylet:
        environment = server._environment() | {"RAY_RAYLET_PID": str(raylet.pid)}
        plain = run(command_of(server), "print('plain')", tmp_path, environment)
        path = f"{packages}:{environment['PATH']}"
        environment |= {"VIRTUAL_ENV": str(packages.parent), "PATH": path}
        activated = run(command_of(server), "print('plain')", tmp_path, environment, "argument")
        raylet.kill()
    assert plain.stdout == "plain\n"
    assert activated.stdout == "python of the packages: argument\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="no other may become less nice")
def test_a_fork_is_as_nice_as_raylet_which_its_keeper_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Ray makes each process nicer as it connects: the Keeper, and then the fork."""
    own = os.getpriority(os.PRIO_PROCESS, 0)
    with subprocess.Popen(["sleep", "60"]) as raylet, closing(open_server()) as server:
        environment = server._environment() | {"RAY_RAYLET_PID": str(raylet.pid)}
        monkeypatch.setattr(server, "_environment", lambda: environment)
        os.setpriority(os.PRIO_PROCESS, 0, own + 5)
        try:
            server.command()  # from this thread
        finally:
            os.setpriority(os.PRIO_PROCESS, 0, own)
        tell = "import os; print(os.getpriority(os.PRIO_PROCESS, 0))"
        assert fork(server, tell, tmp_path) == f"{own}\n"
        assert process_of(server).nice() == own + 5
        raylet.kill()


def open_server(*preload: str, paths: tuple[str, ...] = ()) -> ForkServer:
    return ForkServer(ForkServerSettings(paths, 1.0, preload), RAY_JOB, SYSTEM_CLOCK)


def test_a_job_s_modules_are_imported_before(tmp_path: Path):
    (tmp_path / "quiet_one.py").write_text(
        "import os, sys\nPID = os.getpid()\nprint('imported', end='')\nsys.path.append('/last')\n"
    )
    script = "import quiet_one, sys; print(quiet_one.PID, sys.path[-1], sys.path[0] == '/last')"
    with closing(open_server("quiet_one", "missing_one", paths=(str(tmp_path),))) as server:
        told = fork(server, script, tmp_path)
        assert told == f"{process_of(server).pid} /last False\n"


def test_a_job_s_modules_are_not_taken_for_those_of_libraries(tmp_path: Path):
    """A worker imports Ray before it looks for modules where its job's are, too."""
    (tmp_path / "queue.py").write_text("raise OSError('not the one that is meant')")
    (tmp_path / "own_one.py").write_text("")
    with closing(open_server("own_one", paths=(str(tmp_path),))) as server:
        assert fork(server, "import queue; print(queue.Queue.__name__)", tmp_path) == "Queue\n"


@pytest.mark.parametrize(
    ("begins", "told"),
    [
        ("from threading import *; Thread(None, Event().wait, 'own', daemon=True).start()", "own"),
        ("import torch; torch.set_num_threads(2); torch.ones(3000, 3000).sum()", "threads: p"),
        ("raise OSError('too many files')", "importing busy_one has failed"),
        ("raise SystemExit", "importing busy_one has failed"),
        ("import nobody_s", "importing busy_one has failed"),
        ("from ray import WorkerID; WorkerID.from_random()", "has drawn Ray's identifiers"),
    ],
    ids=["thread", "threads of a library", "it raises", "it exits", "it lacks something", "draws"],
)
def test_what_can_t_be_forked_has_python_started(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, begins: str, told: str
):
    (tmp_path / "busy_one.py").write_text(begins)
    with closing(open_server("busy_one", paths=(str(tmp_path),))) as server:
        command = server.command()
        assert command is not None
        done = run(command, "print('runs')", tmp_path, server._environment())
        assert done.stdout == "runs\n"
        assert "can't be a fork" in done.stderr
        wait_until(server._closed.is_set, lambda: "it is still relied on")
        assert server.command() is None
    assert told in caplog.text


def test_a_keeper_with_very_many_open_files_has_forks_too(tmp_path: Path):
    before, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as files, closing(open_server()) as server:
        files.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (before, most))
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        for _ in range(1024):
            files.enter_context(Path(os.devnull).open())
        assert fork(server, "print(1)", tmp_path) == "1\n"


def test_a_server_that_has_died_is_started_again_and_forks_outlive_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(keeping, "_LASTING_S", 0.0)
    others = {*find_servers(os.getpid())}
    with closing(open_server()) as server:
        environment = server._environment()
        (tmp_path / "wait.py").write_text("import sys; sys.stdin.read(); print('lives')")
        command = f"exec {command_of(server)} {tmp_path / 'wait.py'}"
        waiting = subprocess.Popen(
            ["bash", "-c", command],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert waiting.wait(WITHIN_S) == 0, "the launcher is gone, the fork has its streams"
        first = process_of(server)
        found = {*find_servers(os.getpid())} - others
        assert {each.pid for each in found} == {first.pid}, "and not its fork"
        replace(server)
        assert fork(server, "print(1)", tmp_path) == "1\n"
        assert waiting.communicate("")[0] == "lives\n"
    wait_until(lambda: process_of_closed(server), lambda: "the server stays")


def test_a_server_that_stands_still_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(keeping, "_LASTING_S", 0.0)
    monkeypatch.setattr(keeping, "_LOOK_EVERY_S", 0.1)
    with closing(open_server()) as server:
        assert fork(server, "print(1)", tmp_path) == "1\n"
        monkeypatch.setattr(keeping, "_ANSWERS_WITHIN_S", 2.0)
        silent = process_of(server)
        silent.suspend()
        wait_until(lambda: not silent.is_running(), lambda: "it is not ended")
        monkeypatch.setattr(keeping, "_ANSWERS_WITHIN_S", WITHIN_S)  # of the next one
        wait_next(server, silent)
        assert fork(server, "print(1)", tmp_path) == "1\n"


def process_of_closed(server: ForkServer) -> bool:
    return server._process is not None and server._process.poll() is not None


KEEP = """
import sys, threading
from trainflow.clock import SYSTEM_CLOCK
from trainflow.coordination.forkserver.keeping import ForkServer
from trainflow.coordination.forkserver.settings import ForkServerSettings
server = ForkServer(ForkServerSettings((), 1.0), "01000000", SYSTEM_CLOCK)
server.command()
while server._process is None: pass
print(server._process.pid, flush=True)
threading.Event().wait()
"""


def test_a_server_dies_with_its_keeper():
    keeper = subprocess.Popen([sys.executable, "-c", KEEP], stdout=subprocess.PIPE, text=True)
    assert keeper.stdout is not None
    pid = int(keeper.stdout.readline())
    assert psutil.pid_exists(pid)
    keeper.kill()
    keeper.communicate()
    wait_until(lambda: not psutil.pid_exists(pid), lambda: f"{pid} is left")
