"""A TRAINFLOW_HOME that can't be used is said in one line, before anything starts."""

import errno
import os
from pathlib import Path

import pytest

from tests.unit.cli.conftest import CallMain
from tests.unit.cli.fakes import FakeCluster, FakeRun
from trainflow.cli import head as heads
from trainflow.cli.exit_codes import ExitCode
from trainflow.cli.home import require_home
from trainflow.errors import ConfigError

ADDRESS = "--address=10.0.0.1:6379"
UNUSABLE = [errno.EACCES, errno.EROFS, errno.EPERM, errno.ENOTDIR]


def read_one_line(capsys: pytest.CaptureFixture[str]) -> str:
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    return line


@pytest.mark.parametrize("options", [[], [ADDRESS]])
def test_a_run_is_refused_where_a_file_is_in_its_place(
    options: list[str],
    cluster: FakeCluster,
    home: Path,
    call_main: CallMain,
    job_file: Path,
    capsys: pytest.CaptureFixture[str],
):
    home.write_text("no folder")
    assert call_main("run", job_file, *options) == ExitCode.USAGE
    line = read_one_line(capsys)
    assert line.startswith(f"trainflow: TRAINFLOW_HOME: got {home} (")
    assert "set TRAINFLOW_HOME to another one" in line
    assert cluster.addresses == []


@pytest.mark.parametrize("command", ["workers", "list", "status", "stop", "down"])
def test_a_command_is_refused_where_a_file_is_in_its_place(
    command: str, home: Path, call_main: CallMain, capsys: pytest.CaptureFixture[str]
):
    home.write_text("no folder")
    assert call_main(command) == ExitCode.USAGE
    assert "TRAINFLOW_HOME: got" in read_one_line(capsys)


def test_a_command_with_an_address_needs_no_home(
    cluster: FakeCluster, home: Path, call_main: CallMain
):
    home.write_text("no folder")
    cluster.runs["tiny-abcdef"] = FakeRun()
    assert call_main("workers", ADDRESS) == ExitCode.SUCCESS


@pytest.mark.parametrize("number", UNUSABLE)
def test_a_home_that_can_t_be_made_is_refused(
    number: int, home: Path, monkeypatch: pytest.MonkeyPatch
):
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number), str(home))

    monkeypatch.setattr(Path, "mkdir", fail)
    with pytest.raises(ConfigError, match=os.strerror(number)):
        require_home()


@pytest.mark.parametrize("number", UNUSABLE)
def test_a_home_that_can_t_be_written_is_refused(
    number: int, home: Path, monkeypatch: pytest.MonkeyPatch
):
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number), str(home))

    monkeypatch.setattr("tempfile.TemporaryFile", fail)
    with pytest.raises(ConfigError, match=os.strerror(number)):
        require_home()


@pytest.mark.parametrize("number", UNUSABLE)
def test_a_record_that_can_t_be_read_is_said(
    number: int, home: Path, monkeypatch: pytest.MonkeyPatch
):
    def fail(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number), str(home))

    monkeypatch.setattr(Path, "read_text", fail)
    with pytest.raises(ConfigError, match=os.strerror(number)):
        heads.read_head()


def test_a_usable_home_is_left_empty(home: Path):
    require_home()
    assert [path.name for path in home.rglob("*")] == ["runs"]
