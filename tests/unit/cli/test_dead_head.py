"""A run whose own head dies: what Ray would do on leaving it must not come in the way."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.cli.conftest import CallMain
from tests.unit.cli.fakes import FakeCluster, FakeRun, make_ending, make_status
from trainflow.cli import cluster_jobs, leaving, run_command
from trainflow.cli.exit_codes import ExitCode
from trainflow.coordination import driver
from trainflow.errors import UnreachableError

ENDS = """import atexit, sys
from trainflow.cli import leaving, main
atexit.register(print, "what Ray does at the end")
if {at_once}:
    leaving.leave_at_once_in_the_end()
sys.argv = ["trainflow", "dashboards", "write", {place!r}]
main.main()
"""


class OwnHead:
    """A head that dies when it is told to.

    Attributes:
        calls: what was done, in order.
        dead: what has died of it.
    """

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.dead: str | None = None

    @contextmanager
    def start(self, _workers: object) -> Iterator[Any]:
        node = SimpleNamespace(find_dead=lambda: self.dead, pid=42)
        try:
            yield SimpleNamespace(address="127.0.0.1:5", head=node)
        finally:
            self.calls.append("clean up")


@pytest.fixture
def own_head(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> OwnHead:
    own = OwnHead()
    monkeypatch.setattr(run_command, "own_head", own.start)
    for name in ("abandon", "disconnect"):
        monkeypatch.setattr(driver, name, lambda name=name: own.calls.append(name))
    monkeypatch.setattr(
        run_command, "leave_at_once_in_the_end", lambda: own.calls.append("leave at once")
    )
    return own


class Deadly(FakeRun):
    """A run with whose first answer the head dies."""

    own: OwnHead

    def status(self, since_event: int | None = 0, since_step: int = 0) -> dict[str, Any]:
        self.own.dead = "43 (raylet)"
        return super().status()


def test_a_dead_head_is_left_without_ray_and_cleaned_up_after(
    own_head: OwnHead,
    cluster: FakeCluster,
    call_main: CallMain,
    job_file: Path,
    capsys: pytest.CaptureFixture[str],
):
    run = cluster.runs["tiny-abcdef"] = Deadly([make_status()])
    run.own = own_head
    assert call_main("run", job_file) == UnreachableError.exit_code
    assert own_head.calls == ["leave at once", "abandon", "clean up"]
    assert "head: got no process 43 (raylet) any more" in capsys.readouterr().err


def test_a_living_head_is_left_in_order(
    own_head: OwnHead, cluster: FakeCluster, call_main: CallMain, job_file: Path
):
    cluster.runs["tiny-abcdef"] = FakeRun([make_ending("succeeded", 0)])
    assert call_main("run", job_file) == 0
    assert own_head.calls == ["leave at once", "disconnect", "clean up"]


@pytest.mark.parametrize(("at_once", "late"), [(True, ""), (False, "what Ray does at the end\n")])
def test_a_process_that_is_to_end_at_once_says_all_and_keeps_its_exit_code(
    *, at_once: bool, late: str, tmp_path: Path
):
    (tmp_path / "file").touch()
    for place, code in ((tmp_path / "made", ExitCode.SUCCESS), (tmp_path / "file", ExitCode.USAGE)):
        script = ENDS.format(at_once=at_once, place=str(place))
        ended = subprocess.run(
            [sys.executable, "-c", script], capture_output=True, text=True, check=False
        )
        assert ended.returncode == code
        assert ended.stdout.endswith(late)
        assert ("what Ray does" in ended.stdout) is bool(late)
        assert (str(place) in ended.stderr) is (code != 0)


def test_processes_end_as_usual_unless_they_are_told_otherwise():
    leaving.heed_ending(SystemExit(3))


def test_whoever_has_asked_a_cluster_ends_at_once_too(monkeypatch: pytest.MonkeyPatch):
    calls: list[str] = []
    for name in ("connect", "disconnect"):
        monkeypatch.setattr(driver, name, lambda *_, name=name: calls.append(name))
    monkeypatch.setattr(
        cluster_jobs, "leave_at_once_in_the_end", lambda: calls.append("leave at once")
    )
    with cluster_jobs.connected("127.0.0.1:5"):
        pass
    assert sorted(calls) == ["connect", "disconnect", "leave at once"]
