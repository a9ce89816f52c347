"""Output that can't be written: a run that goes on is followed to its end all the same."""

import errno
import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from io import TextIOWrapper
from pathlib import Path

import pytest
from rich.console import Console

from tests.unit.cli.conftest import CallMain
from tests.unit.cli.fakes import (
    FakeCluster,
    FakeRun,
    make_ending,
    make_event,
    make_status,
    make_step,
)
from trainflow.cli.display import DriverConsole, TerminalDisplay
from trainflow.cli.exit_codes import ExitCode
from trainflow.cli.output import say
from trainflow.cli.progress import Progress

ADDRESS = "--address=10.0.0.1:6379"
ROOT = Path(__file__).parents[3]
# Leaves as the command does, with the answers of a run that isn't there.
SCRIPT = """
import sys
from tests.unit.cli.fakes import FakeCluster, FakeRun, make_ending, make_status, make_step
from trainflow.cli import main
from trainflow.coordination import driver
run = FakeRun([make_status(), make_status(steps=[make_step(1)]), make_ending("stopped", 7)])
driver.connect = lambda _address: None
driver.disconnect = lambda: None
driver.start_run = lambda _job, attempt=None: run
main.main()
"""


def open_full() -> TextIOWrapper:
    return open("/dev/full", "w")  # noqa: PTH123  as Python opens stdout


def open_unread() -> TextIOWrapper:
    """Return a pipe whose reader is gone."""
    reader, writer = os.pipe()
    os.close(reader)
    return os.fdopen(writer, "w")


@pytest.fixture(params=[open_full, open_unread])
def broken(request: pytest.FixtureRequest) -> Iterator[TextIOWrapper]:
    with request.param() as stream:
        yield stream


def test_a_run_is_followed_to_its_end_and_the_loss_said_once(
    broken: TextIOWrapper,
    cluster: FakeCluster,
    call_main: CallMain,
    job_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    news = [make_status(events=[make_event(n)], steps=[make_step(n)]) for n in range(1, 5)]
    run = cluster.runs["tiny-abcdef"] = FakeRun([*news, make_ending("succeeded", 0)])
    monkeypatch.setattr(sys, "stdout", broken)
    assert call_main("run", job_file, ADDRESS) == ExitCode.SUCCESS
    assert run.calls == ["status"] * 5 + ["retire"]
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("trainflow: stdout can't be written (")


def test_with_stderr_lost_too_the_exit_code_is_that_of_the_run(
    broken: TextIOWrapper,
    cluster: FakeCluster,
    call_main: CallMain,
    job_file: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    cluster.runs["tiny-abcdef"] = FakeRun([make_status(), make_ending("failed", 8)])
    monkeypatch.setattr(sys, "stdout", broken)
    monkeypatch.setattr(sys, "stderr", broken)
    assert call_main("run", job_file, ADDRESS) == ExitCode.NO_CAPACITY


def test_a_refusal_that_can_t_be_said_keeps_its_exit_code(
    broken: TextIOWrapper,
    call_main: CallMain,
    job_file: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(sys, "stderr", broken)
    assert call_main("validate", job_file, "--set", "training.steps=3") == ExitCode.USAGE


@pytest.mark.slow
@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("opened", [open_full, open_unread])
def test_leaving_python_changes_nothing(opened: type, job_file: Path, tmp_path: Path):
    command = [sys.executable, "-c", SCRIPT, "run", str(job_file), ADDRESS]
    with opened() as stdout:
        ended = subprocess.run(
            command,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"},
        )
    assert ended.returncode == ExitCode.STOPPED, ended.stderr
    loss, ending = ended.stderr.splitlines()
    assert "stdout can't be written" in loss
    assert ending == "stopped: so it ended"


def test_an_answer_that_can_t_be_written_is_a_failure_and_no_traceback(job_file: Path):
    command = [sys.executable, "-m", "trainflow", "validate", str(job_file)]
    with open_full() as stdout:
        ended = subprocess.run(
            command,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            env=os.environ | {"PYTHONPATH": str(ROOT)},
        )
    assert ended.returncode == ExitCode.FAILED
    (line,) = ended.stderr.splitlines()
    assert "no space is left" in line


def show_twice(console: Console) -> TerminalDisplay:
    progress = Progress("tokens", 1)
    progress.take(make_status(events=[make_event(1)], steps=[make_step(1)]))
    display = TerminalDisplay(console)
    display.show(progress, [])
    display.show(progress, [])
    display.notice("a notice")
    display.close()
    return display


def test_a_terminal_that_is_gone_is_given_up(capsys: pytest.CaptureFixture[str]):
    controller, terminal = pty.openpty()
    os.close(controller)
    with os.fdopen(terminal, "w") as stream:
        show_twice(DriverConsole(file=stream, force_terminal=True))
    assert capsys.readouterr().err.count(os.strerror(errno.EIO)) == 1


def test_what_is_taken_for_a_terminal_may_lose_its_reader(capsys: pytest.CaptureFixture[str]):
    with open_unread() as stream:
        show_twice(DriverConsole(file=stream, force_terminal=True))
    assert capsys.readouterr().err.count(os.strerror(errno.EPIPE)) == 1


def test_a_terminal_that_is_lost_later_gives_stderr_back(capsys: pytest.CaptureFixture[str]):
    reader, writer = os.pipe()
    progress = Progress("tokens", 1)
    progress.take(make_status())
    with os.fdopen(writer, "w") as stream:
        display = TerminalDisplay(DriverConsole(file=stream, force_terminal=True))
        display.show(progress, [])
        os.close(reader)
        display.show(progress, [])
        say("afterwards", err=True)
        display.close()
    loss, afterwards = capsys.readouterr().err.splitlines()
    assert "stdout can't be written" in loss
    assert afterwards == "afterwards"
