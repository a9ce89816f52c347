"""What tests of commands share: a home, a cluster, a job file, and a way to call a command."""

import sys
from collections.abc import Callable
from pathlib import Path
from threading import Event

import pytest

from tests.unit.cli.fakes import FakeCluster
from trainflow.cli import leaving
from trainflow.cli import main as command_line
from trainflow.coordination import driver

CallMain = Callable[..., int]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty TRAINFLOW_HOME, and no address or token in the environment."""
    monkeypatch.setenv("TRAINFLOW_HOME", str(tmp_path / "home"))
    for name in ("TRAINFLOW_SERVER", "TRAINFLOW_TOKEN_FILE", "TRAINFLOW_ADDRESS", "RAY_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "home"


@pytest.fixture
def cluster(home: Path, monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    fake = FakeCluster()
    monkeypatch.setattr(driver, "connect", fake.addresses.append)
    monkeypatch.setattr(driver, "disconnect", lambda: None)
    monkeypatch.setattr(driver, "find_run", fake.find_run)
    monkeypatch.setattr(driver, "list_runs", lambda: sorted(fake.runs))
    monkeypatch.setattr(driver, "start_run", fake.start_run)
    return fake


@pytest.fixture(autouse=True)
def go_on_after_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no command end the process of the tests at once, nor the next test's for its sake."""
    monkeypatch.setattr(leaving, "_must_be_at_once", Event())
    monkeypatch.setattr(command_line, "heed_ending", lambda _ending: None)


@pytest.fixture
def call_main(monkeypatch: pytest.MonkeyPatch) -> CallMain:
    """Call ``trainflow`` with some arguments; returns its exit code."""

    def call(*arguments: str | Path) -> int:
        monkeypatch.setattr("sys.argv", ["trainflow", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            command_line.main()
        return int(end.value.code or 0)

    return call


@pytest.fixture
def job_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A job that is valid, with its module beside it in the working directory."""
    (tmp_path / "tiny_job_of_a_test.py").write_text(
        "from pydantic import BaseModel\n"
        "class Args(BaseModel):\n    lr: float = 0.5\n"
        "def train(session, args: Args) -> None: ...\n"
        "def make_points(args: Args) -> list: return [{'x': n} for n in range(8)]\n"
    )
    path = tmp_path / "job.yaml"
    path.write_text(
        "name: tiny\n"
        "entrypoint: tiny_job_of_a_test:train\n"
        "training: {max_steps: 10, global_batch_size: 8, microbatch_size: 2}\n"
        "data: {dataset: 'tiny_job_of_a_test:make_points'}\n"
        "workers: {minimum: 1, target: 2}\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "tiny_job_of_a_test", raising=False)
    return path
