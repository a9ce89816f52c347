"""What is asked of another process comes back as an answer or as an error, and nothing stays."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from trainflow.checkpointing.torch_process import Leash, Surroundings, run_with_torch
from trainflow.errors import CheckpointError, ConfigError

MODULE = "answering_process_of_a_test"
SOURCE = """
import json, os, subprocess, sys, tempfile, time
from trainflow.computation.own_process import answer_request
from trainflow.errors import ConfigError

def answer(request):
    print("printed by a job")
    match request["do"]:
        case "echo":
            return {"got": request, "niceness": os.nice(0), "path": sys.path}
        case "show":
            with open("/proc/self/cmdline") as file:
                return {"variables": dict(os.environ), "path": sys.path, "command": file.read()}
        case "refuse":
            raise ConfigError("got this, expected that")
        case "raise":
            raise KeyError("x")
        case "die":
            print("last words", file=sys.stderr, flush=True)
            os._exit(7)
        case "hang":
            inner = subprocess.Popen(["sleep", "300"])
            tempfile.mkdtemp(prefix="left-behind-")
            with open(request["pids"], "w") as file:
                file.write(f"{os.getpid()} {inner.pid} {tempfile.gettempdir()}")
            time.sleep(300)

answer_request(answer)
"""


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / f"{MODULE}.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)


def test_an_answer_comes_back_whatever_else_is_printed(tmp_path: Path):
    answer = run_with_torch(
        MODULE,
        {"do": "echo", "n": [1, None]},
        surroundings=Surroundings([str(tmp_path), "somewhere"], niceness=5),
    )
    assert answer["got"] == {"do": "echo", "n": [1, None]}
    assert answer["niceness"] == os.nice(0) + 5
    assert any(path.endswith("/somewhere") for path in answer["path"])


def test_variables_are_in_its_environment_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TRAINFLOW_TEST_PLACE", "outside")
    variables = {
        "TRAINFLOW_TEST_TOKEN": "hf_0123456789",
        "PYTHONPATH": "/more",
        "TMPDIR": str(tmp_path),
    }
    surroundings = Surroundings([str(tmp_path)], variables)
    answer = run_with_torch(MODULE, {"do": "show"}, surroundings=surroundings)
    assert answer["variables"]["TRAINFLOW_TEST_TOKEN"] == "hf_0123456789"
    assert answer["variables"]["TRAINFLOW_TEST_PLACE"] == "outside"
    assert answer["variables"]["TMPDIR"] != str(tmp_path), "what is left there must go"
    assert {str(tmp_path), "/more"} < set(answer["path"])
    assert "hf_0123456789" not in answer["command"] + repr(surroundings)
    assert "TRAINFLOW_TEST_TOKEN" not in os.environ


def test_an_error_of_ours_is_raised_here():
    with pytest.raises(ConfigError, match="got this, expected that"):
        run_with_torch(MODULE, {"do": "refuse"})


def test_any_other_error_is_told():
    with pytest.raises(CheckpointError, match="KeyError: 'x'"):
        run_with_torch(MODULE, {"do": "raise"})


def test_a_death_is_told_with_the_last_words():
    with pytest.raises(CheckpointError, match=r"(?s)exit status 7.*last words"):
        run_with_torch(MODULE, {"do": "die"})


@pytest.mark.slow
def test_what_takes_too_long_is_killed_with_all_that_it_started(tmp_path: Path):
    pids = tmp_path / "pids"
    with pytest.raises(CheckpointError, match=r"no answer within 6 s"):
        run_with_torch(MODULE, {"do": "hang", "pids": str(pids)}, timeout_s=6)
    outer, inner, scratch = pids.read_text().split()
    deadline_s = time.monotonic() + 10
    while is_running(int(inner)):
        assert time.monotonic() < deadline_s
    assert not is_running(int(outer))
    assert not Path(scratch).exists()


def test_another_thread_ends_it_with_all_that_it_started(tmp_path: Path):
    pids, leash, raised = tmp_path / "pids", Leash(), list[CheckpointError]()

    def ask() -> None:
        try:
            run_with_torch(MODULE, {"do": "hang", "pids": str(pids)}, leash=leash)
        except CheckpointError as error:
            raised.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    deadline_s = time.monotonic() + 30
    while not (pids.exists() and len(pids.read_text().split()) == 3):
        assert time.monotonic() < deadline_s
    leash.pull()
    asking.join(10)
    assert not asking.is_alive()
    outer, inner, scratch = pids.read_text().split()
    while is_running(int(inner)):
        assert time.monotonic() < deadline_s
    assert not is_running(int(outer))
    assert not Path(scratch).exists()
    assert "exit status -9" in str(raised[0])


def test_what_is_begun_after_the_end_is_ended_at_once(tmp_path: Path):
    leash = Leash()
    leash.pull()
    with pytest.raises(CheckpointError, match="exit status -9"):
        run_with_torch(MODULE, {"do": "hang", "pids": str(tmp_path / "pids")}, leash=leash)


def test_it_dies_with_whoever_asked(tmp_path: Path):
    pids = tmp_path / "pids"
    ask = (
        "from trainflow.checkpointing.torch_process import Surroundings, run_with_torch\n"
        f"run_with_torch({MODULE!r}, {{'do': 'hang', 'pids': {str(pids)!r}}}, "
        f"surroundings=Surroundings([{str(tmp_path)!r}]))"
    )
    deadline_s = time.monotonic() + 30
    with subprocess.Popen([sys.executable, "-c", ask]) as asker:
        while not (pids.exists() and len(pids.read_text().split()) == 3):
            assert time.monotonic() < deadline_s
        asker.kill()
    outer, inner, scratch = pids.read_text().split()
    try:
        while is_running(int(outer)):
            assert time.monotonic() < deadline_s
    finally:
        os.kill(int(inner), signal.SIGKILL)
        shutil.rmtree(scratch)


def test_it_dies_with_whoever_asked_also_while_it_begins(tmp_path: Path):
    pids = tmp_path / "pids"
    (tmp_path / "begins_for_ever.py").write_text(
        f"import os, time\nopen({str(pids)!r}, 'w').write(f'{{os.getpid()}} ')\ntime.sleep(300)\n"
    )
    ask = (
        "from trainflow.checkpointing.torch_process import Surroundings, run_with_torch\n"
        "run_with_torch('begins_for_ever', {}, "
        f"surroundings=Surroundings([{str(tmp_path)!r}]))"
    )
    deadline_s = time.monotonic() + 30
    with subprocess.Popen(
        [sys.executable, "-c", ask], env=os.environ | {"TMPDIR": str(tmp_path)}
    ) as asker:
        while not (pids.exists() and pids.read_text().endswith(" ")):
            assert time.monotonic() < deadline_s
        asker.kill()
    pid = int(pids.read_text())
    try:
        while is_running(pid):
            assert time.monotonic() < deadline_s
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def is_running(pid: int) -> bool:
    with suppress(FileNotFoundError, ProcessLookupError):
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False
