"""``trainflow run`` as a person uses it: real processes, a real Ray of one node."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from trainflow.coordination import names
from trainflow.coordination.local_cluster import LocalCluster

pytestmark = [pytest.mark.ray, pytest.mark.slow]

ROOT = Path(__file__).parents[2]
ENDLESS = ["--set", "training.max_steps=1000000"]
GONE_WITHIN_S = 20


class CommandLine:
    """Calls ``trainflow`` in a home of its own."""

    def __init__(self, home: Path):
        self.home = home
        ours = {
            name: v for name, v in os.environ.items() if not name.startswith(("TRAINFLOW", "RAY"))
        }
        self._env = ours | {"TRAINFLOW_HOME": str(home)}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "trainflow", *arguments],
            cwd=ROOT,
            env=self._env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def call(self, *arguments: str) -> tuple[int, str, str]:
        """Return a command's exit code, stdout and stderr."""
        process = self.start(*arguments)
        stdout, stderr = process.communicate()
        return process.returncode, stdout, stderr

    def read_events(self) -> list[str]:
        """Return the kinds of the events of all runs."""
        logs = [path.read_text() for path in self.home.glob("runs/*/events.jsonl")]
        return [json.loads(line)["kind"] for log in logs for line in log.splitlines()]


@pytest.fixture
def command_line(tmp_path: Path) -> Iterator[CommandLine]:
    command_line = CommandLine(tmp_path / "home")
    yield command_line
    command_line.call("down")  # whatever a failed test has left


@pytest.fixture
def job(tmp_path: Path) -> str:
    path = tmp_path / "job.yaml"
    path.write_text(
        "name: tiny\n"
        "entrypoint: tests.integration.command_line_job:train\n"
        "training: {max_steps: 20, global_batch_size: 8, microbatch_size: 2}\n"
        "data: {dataset: 'tests.integration.command_line_job:make_points'}\n"
        "workers: {minimum: 1, target: 2}\n"
        "monitoring: {log_every_steps: 10}\n"
    )
    return str(path)


@pytest.fixture(scope="class")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster.start(head_cpus=2) as cluster:
        yield cluster


def list_descendants(process: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def wait_gone(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Return those that are still alive after a while."""
    return psutil.wait_procs(processes, timeout=GONE_WITHIN_S)[1]


def read_until(process: subprocess.Popen[str], text: str) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if text in line:
            return line
    _, stderr = process.communicate()
    raise AssertionError(f"{text!r} never came; stderr: {stderr}")


class TestOnAGivenCluster:
    """Beside it no other one is up."""

    def test_a_run_on_a_given_cluster_succeeds_and_leaves_nothing_there(
        self, command_line: CommandLine, job: str, cluster: LocalCluster
    ):
        code, stdout, stderr = command_line.call("run", job, "--address", cluster.address)
        assert (code, stderr) == (0, "")
        assert [line.split()[1] for line in stdout.splitlines() if "step=" in line] == [
            "step=10/20",
            "step=20/20",
        ]
        assert stdout.splitlines()[-2] == "succeeded: every step is done"
        assert not (command_line.home / "head.json").exists()

    def test_a_training_function_that_raises_fails_the_run_once_with_its_traceback(
        self, command_line: CommandLine, job: str, cluster: LocalCluster
    ):
        arguments = ["--set", "args.raise_in_step=5", "--address", cluster.address]
        code, stdout, stderr = command_line.call("run", job, *arguments)
        assert code == 1
        first, *rest = stderr.splitlines()
        assert first.startswith("failed: rank ")
        assert "ValueError: the job gives up in step 5 (" in first
        assert "command_line_job.py:" in first
        assert stderr.count("Traceback") == 1
        assert rest.count("ValueError: the job gives up in step 5") == 1
        assert "Traceback" not in stdout
        assert "respawned" not in command_line.read_events()


def test_a_run_of_its_own_is_found_and_stopped_by_a_signal(command_line: CommandLine, job: str):
    run = command_line.start("run", job, *ENDLESS)
    read_until(run, "step=10/")
    descendants = list_descendants(run)
    _, stdout, _ = command_line.call("workers", "-o", "json")
    workers = json.loads(stdout)["workers"]
    assert {row["rank"] for row in workers} == {0, 1}
    assert {row["pid"] for row in workers} <= {each.pid for each in descendants}
    code, _, stderr = command_line.call("run", job)
    assert code == 6
    assert "trainflow down" in stderr
    run.send_signal(signal.SIGTERM)
    stdout, stderr = run.communicate()
    assert run.returncode == 7
    assert stderr == "stopped: stopped on request\n"
    assert command_line.read_events().count("stopping") == 1
    assert wait_gone(descendants) == []
    assert not (command_line.home / "head.json").exists()


def test_a_run_outlives_its_driver_until_its_head_is_ended(command_line: CommandLine, job: str):
    run = command_line.start("run", job, *ENDLESS)
    read_until(run, "step=10/")
    descendants = list_descendants(run)
    run.kill()
    run.communicate()
    code, stdout, _ = command_line.call("status", "-o", "json")
    assert (code, json.loads(stdout)["state"]) == (0, "running")
    stamps = names.memory_directory() / json.loads(stdout)["job_id"]
    assert list(stamps.glob("*/*.stamp"))
    assert command_line.call("down")[0] == 0
    assert wait_gone(descendants) == []
    assert not stamps.exists()
    assert command_line.call("list")[0] == 5
