"""Signals that end a command on checkpoints leave nothing of it behind."""

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.checkpointing.small_job import STEP, make_job, save
from tests.unit.checkpointing.test_torch_process import is_running
from trainflow.checkpointing.store import CheckpointStore

MODULE = "hanging_job_of_a_test"
SOURCE = """
import os, time
from tests.unit.checkpointing.small_job import Args

def train(session, args: Args) -> None:
    with open("pid.part", "w") as file:
        file.write(str(os.getpid()))
    os.rename("pid.part", "pid")
    time.sleep(300)
"""
ROOT = Path(__file__).parents[3]
# Also where these tests themselves were started so that no SIGHUP ends them.
COMMAND = """
import signal
signal.signal(signal.SIGHUP, signal.SIG_DFL)
from trainflow.cli.main import main
main()
"""


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    """A checkpoint of a job that never comes to its first step."""
    store = CheckpointStore(str(tmp_path / "store"))
    manifest = save(store, make_job())
    store.remove_marker(STEP)
    config = manifest.config | {"entrypoint": f"{MODULE}:train"}
    store.commit(replace(manifest, config=config, attempt="x"))
    return store


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize(
    "command", [("drill",), ("export", "--to", "out", "--format", "safetensors")]
)
def test_nothing_is_left(
    store: CheckpointStore, tmp_path: Path, command: tuple[str, ...], number: signal.Signals
):
    (tmp_path / f"{MODULE}.py").write_text(SOURCE)
    (tmp_path / "scratch").mkdir()
    before = {path.name for path in tmp_path.iterdir()}
    name, *options = command
    with subprocess.Popen(
        [
            sys.executable,
            "-c",
            COMMAND,
            *("checkpoints", name, store.url, *options),
        ],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path / "scratch")},
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        deadline_s = time.monotonic() + 60
        while not (tmp_path / "pid").exists():
            assert process.poll() is None
            assert time.monotonic() < deadline_s
        process.send_signal(number)
        try:
            _, said = process.communicate(timeout=60)
        finally:
            process.kill()
    pid = int((tmp_path / "pid").read_text())
    try:
        assert process.returncode == 128 + number, said
        assert not is_running(pid)
        assert not said
        assert not list((tmp_path / "scratch").iterdir())
        assert {path.name for path in tmp_path.iterdir()} - before - {"__pycache__"} == {"pid"}
    finally:
        if is_running(pid):
            os.kill(pid, signal.SIGKILL)
