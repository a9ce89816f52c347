"""Ctrl-C while a service has yet to answer."""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from trainflow.cli.exit_codes import ExitCode
from trainflow.clock import SYSTEM_CLOCK

WITHIN_S = 60.0
COMMAND = """import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job has it ignored
from trainflow.cli.main import main
main()
"""


@pytest.fixture
def silent() -> Iterator[socket.socket]:
    """A service that takes what it is asked, and doesn't answer."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(WITHIN_S)
        yield server


def wait_waiting(pid: int) -> None:
    """Wait until a process waits: a signal right before it does is noted once that is over."""
    deadline_s = SYSTEM_CLOCK.monotonic_s() + WITHIN_S
    while psutil.Process(pid).status() != psutil.STATUS_SLEEPING:
        assert SYSTEM_CLOCK.monotonic_s() < deadline_s, "it never waits"
        SYSTEM_CLOCK.sleep(0.01)


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("events", "left; the job goes on. Come back with: trainflow events -f --after 0"),
        ("events -f --after 7 -o json", "trainflow events -f --after 7 -o json"),
        ("events job-1 -f", "left; job-1 goes on. Come back with: trainflow events job-1 -f"),
        ("logs", "left; the job goes on. Come back with: trainflow logs -f --offset 0"),
        ("logs -f --worker all", "trainflow logs --worker all -f"),
        ("profile --number 3 --to x", "Come back with: trainflow profile --number 3 --to x"),
        ("profile", "left; steps may be recorded all the same; `trainflow events` tells of that"),
        ("submit job.yaml", "submit it again as before, with --idempotency-key"),
    ],
)
def test_it_leaves_and_says_how_to_come_back(
    typed: str, expected: str, silent: socket.socket, home: Path, job_file: Path
):
    url = f"http://127.0.0.1:{silent.getsockname()[1]}"
    arguments = [sys.executable, "-c", COMMAND, *typed.split(), "--server", url]
    with subprocess.Popen(arguments, stderr=subprocess.PIPE, text=True, env=os.environ) as process:
        connection, _ = silent.accept()
        with connection:
            assert connection.recv(1)  # it has asked
            wait_waiting(process.pid)
            process.send_signal(signal.SIGINT)
            _, error = process.communicate(timeout=WITHIN_S)
    assert process.returncode == ExitCode.DETACHED
    assert expected in error
    assert "Traceback" not in error
    if "Come back" in error:
        assert error.rstrip().endswith(f"--server {url}")
