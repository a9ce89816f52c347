"""Commands as they are called: output, exit codes, and what is loaded for them."""

import errno
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.cli.conftest import CallMain
from tests.unit.cli.fakes import FakeCluster, FakeRun, make_ending, make_status
from trainflow.cli import head, main, preflight
from trainflow.cli.exit_codes import ExitCode
from trainflow.cli.jobs import WORKER_COLUMNS
from trainflow.client.problems import Problem, ServiceError
from trainflow.coordination import driver
from trainflow.data.pack import PackOptions
from trainflow.errors import ConflictError, TrainFlowError

ADDRESS = "--address=10.0.0.1:6379"


def list_errors(root: type[TrainFlowError]) -> list[type[TrainFlowError]]:
    return [root, *(leaf for child in root.__subclasses__() for leaf in list_errors(child))]


@pytest.mark.parametrize(
    ("state", "exit_code"),
    [("succeeded", 0), ("failed", 1), ("failed", 2), ("stopped", 7), ("failed", 8)],
)
def test_run_leaves_with_the_ending_of_its_run(
    state: str, exit_code: int, cluster: FakeCluster, call_main: CallMain, job_file: Path
):
    run = cluster.runs["tiny-abcdef"] = FakeRun([make_status(), make_ending(state, exit_code)])
    assert call_main("run", job_file, ADDRESS) == exit_code
    assert run.calls == ["status", "status", "retire"]
    assert cluster.addresses == ["10.0.0.1:6379"]


def test_a_failure_is_told_once_with_its_traceback(
    cluster: FakeCluster, call_main: CallMain, job_file: Path, capsys: pytest.CaptureFixture[str]
):
    reason = "rank 1 (slot1-1.1) raised:\nTraceback (most recent call last):\nValueError: no\n"
    cluster.runs["tiny-abcdef"] = FakeRun([make_ending("failed", 1, reason)])
    call_main("run", job_file, ADDRESS)
    captured = capsys.readouterr()
    assert captured.err == f"failed: {reason}"
    assert captured.out.splitlines() == [
        "run tiny-abcdef on the cluster at 10.0.0.1:6379",
        "events, metrics and result are in /runs/tiny-abcdef",
    ]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_run_is_stopped_by_a_signal_though_connecting_takes_the_signals(
    number: signal.Signals,
    cluster: FakeCluster,
    call_main: CallMain,
    job_file: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    def connect(_address: str) -> None:
        signal.signal(number, signal.SIG_IGN)

    monkeypatch.setattr(driver, "connect", connect)

    class Signalled(FakeRun):
        def status(self, since_event: int | None = 0, since_step: int = 0) -> dict[str, object]:
            if "stop" in self.calls:
                return make_ending("stopped", 7)
            signal.raise_signal(number)
            return super().status()

    run = cluster.runs["tiny-abcdef"] = Signalled([make_status()])
    assert call_main("run", job_file, ADDRESS) == ExitCode.STOPPED
    assert run.calls == ["status", "stop", "retire"]


def test_run_leaves_at_once_after_a_second_signal(
    cluster: FakeCluster, call_main: CallMain, job_file: Path
):
    class Stubborn(FakeRun):
        def status(self, since_event: int | None = 0, since_step: int = 0) -> dict[str, object]:
            signal.raise_signal(signal.SIGINT)
            return super().status()

    cluster.runs["tiny-abcdef"] = Stubborn([make_status()])
    assert call_main("run", job_file, ADDRESS) == ExitCode.DETACHED


def test_a_signal_before_the_run_began_starts_none(
    cluster: FakeCluster, call_main: CallMain, job_file: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(driver, "connect", lambda _: signal.raise_signal(signal.SIGTERM))
    assert cluster.runs == {}
    assert call_main("run", job_file, ADDRESS) == ExitCode.STOPPED


@pytest.mark.parametrize("name", ["TRAINFLOW_ADDRESS", "RAY_ADDRESS"])
def test_the_address_may_come_from_the_environment(
    name: str,
    cluster: FakeCluster,
    call_main: CallMain,
    job_file: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    cluster.runs["tiny-abcdef"] = FakeRun()
    monkeypatch.setenv("RAY_ADDRESS", "of-ray:1")
    monkeypatch.setenv(name, "of-the-test:1")
    assert call_main("run", job_file) == ExitCode.SUCCESS
    assert cluster.addresses == ["of-the-test:1"]


@pytest.mark.parametrize("command", ["run", "validate"])
def test_a_bad_job_is_refused_before_anything_starts(
    command: str,
    cluster: FakeCluster,
    call_main: CallMain,
    job_file: Path,
    capsys: pytest.CaptureFixture[str],
):
    assert call_main(command, job_file, "--set", "training.steps=3") == ExitCode.USAGE
    assert cluster.addresses == []
    message = capsys.readouterr().err
    assert "--set training.steps: training.steps: got an unknown key" in message
    assert "Traceback" not in message


def test_validate_prints_what_would_run(
    call_main: CallMain, job_file: Path, capsys: pytest.CaptureFixture[str]
):
    assert call_main("validate", job_file, "--set", "args.lr=0.25") == ExitCode.SUCCESS
    assert '{"lr":0.25}' in capsys.readouterr().out


def test_workers_are_listed(
    cluster: FakeCluster, call_main: CallMain, capsys: pytest.CaptureFixture[str]
):
    cluster.runs["tiny-abcdef"] = FakeRun()
    assert call_main("workers", ADDRESS) == ExitCode.SUCCESS
    heading, row = capsys.readouterr().out.splitlines()
    assert heading.split() == list(WORKER_COLUMNS)
    assert row.split() == ["0", "slot0-1.0", "10.0.0.1", "42", "member", "7", "compute", "0.0"]
    call_main("workers", "tiny-abcdef", ADDRESS, "-o", "json")
    assert json.loads(capsys.readouterr().out)["workers"][0]["pid"] == 42


def test_runs_are_listed(
    cluster: FakeCluster, call_main: CallMain, capsys: pytest.CaptureFixture[str]
):
    cluster.runs["tiny-abcdef"] = FakeRun([make_status()])
    call_main("list", ADDRESS)
    assert "tiny-abcdef  running  0     10  3      2       0" in capsys.readouterr().out
    call_main("status", ADDRESS, "-o", "json")
    assert json.loads(capsys.readouterr().out)["job_id"] == "tiny-abcdef"


def test_stop_asks_once(cluster: FakeCluster, call_main: CallMain):
    run = cluster.runs["tiny-abcdef"] = FakeRun()
    assert call_main("stop", ADDRESS) == ExitCode.SUCCESS
    assert run.calls == ["stop"]


@pytest.mark.usefixtures("cluster")
def test_a_run_that_is_not_there_is_not_found(call_main: CallMain):
    assert call_main("stop", "other", ADDRESS) == ExitCode.NOT_FOUND


@pytest.mark.parametrize("command", ["workers", "list", "status", "stop"])
@pytest.mark.usefixtures("cluster")
def test_without_any_address_nothing_is_reached(command: str, call_main: CallMain):
    assert call_main(command) == ExitCode.UNREACHABLE


@pytest.mark.usefixtures("home")
def test_down_without_a_head_is_no_error(call_main: CallMain, capsys: pytest.CaptureFixture[str]):
    assert call_main("down") == ExitCode.SUCCESS
    assert "no head" in capsys.readouterr().out


@pytest.mark.usefixtures("cluster")
def test_a_second_head_is_a_conflict(
    call_main: CallMain, job_file: Path, monkeypatch: pytest.MonkeyPatch
):
    def refuse() -> None:
        raise ConflictError("head: got one that runs already")

    monkeypatch.setattr(head, "refuse_second_head", refuse)
    assert call_main("run", job_file) == ExitCode.CONFLICT


@pytest.mark.usefixtures("cluster")
def test_beside_a_running_head_none_is_said_to_start(
    call_main: CallMain,
    job_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    running = head.HeadRecord("10.0.0.1:6379", 42, 0.0, "/tmp/tf-head")
    monkeypatch.setattr(head, "read_head", lambda: running)
    assert call_main("run", job_file) == ExitCode.CONFLICT
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("trainflow: head: got one that runs already")


@pytest.mark.parametrize("error_type", list_errors(TrainFlowError))
def test_every_error_is_one_message_and_a_documented_code(
    error_type: type[TrainFlowError],
    call_main: CallMain,
    job_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    def fail(*_: object) -> None:
        if issubclass(error_type, ServiceError):
            raise error_type(Problem("", 0, "what was got"))
        raise error_type("what was got")

    monkeypatch.setattr(preflight, "check_job", fail)
    assert call_main("validate", job_file) == error_type.exit_code == ExitCode(error_type.exit_code)
    assert capsys.readouterr().err == "trainflow: what was got\n"


def test_a_full_disk_is_said_plainly(
    call_main: CallMain,
    job_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    def fill_disk(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "/tmp/tf-head")

    monkeypatch.setattr(preflight, "check_job", fill_disk)
    assert call_main("validate", job_file) == ExitCode.FAILED
    assert capsys.readouterr().err.startswith("trainflow: /tmp/tf-head: no space is left")


@pytest.mark.parametrize(
    "number", [errno.ENOTDIR, errno.EACCES, errno.EROFS, errno.EISDIR, errno.EPERM]
)
def test_a_place_that_can_t_be_used_is_said_plainly(
    number: int,
    call_main: CallMain,
    job_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
):
    def fail(*_: object) -> None:
        raise OSError(number, "", "/some/where")

    monkeypatch.setattr(preflight, "check_job", fail)
    assert call_main("validate", job_file) == ExitCode.FAILED
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("trainflow: /some/where: ")


@pytest.mark.parametrize("error", [OSError(errno.EIO, "input/output"), RuntimeError("a bug")])
def test_the_unexpected_keeps_its_traceback(
    error: Exception, job_file: Path, monkeypatch: pytest.MonkeyPatch
):
    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(preflight, "check_job", fail)
    monkeypatch.setattr("sys.argv", ["trainflow", "validate", str(job_file)])
    with pytest.raises(type(error)):
        main.main()


def test_help_documents_every_exit_code(call_main: CallMain, capsys: pytest.CaptureFixture[str]):
    assert call_main("run", "--help") == ExitCode.SUCCESS
    text = capsys.readouterr().out
    for code in ExitCode:
        assert f"{code:>3}  {code.meaning}" in text


def test_a_wrong_option_is_wrong_usage(call_main: CallMain):
    assert call_main("run", "--no-such-option") == ExitCode.USAGE


def test_packing_has_the_defaults_of_its_options(
    call_main: CallMain, monkeypatch: pytest.MonkeyPatch
):
    packed: list[tuple[str, str, PackOptions]] = []

    def pack_corpus(source: str, out: str, *, options: PackOptions) -> None:
        packed.append((source, out, options))
        raise TrainFlowError("far enough")

    monkeypatch.setattr("trainflow.data.pack.pack_corpus", pack_corpus)
    call_main("data", "pack", "stdlib", "--out", "somewhere")
    assert packed == [("stdlib", "somewhere", PackOptions())]
    call_main("data", "pack", "x", "--out=y", "--max-bytes=9", "--sequence-length=8")
    assert packed[1] == ("x", "y", PackOptions(max_bytes=9, sequence_length=8))


def test_packing_says_what_it_made(
    call_main: CallMain, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "text.txt").write_text(" ".join(map(str, range(400))))
    out = tmp_path / "corpus"
    arguments = ["--vocab-size=300", "--sequence-length=16"]
    assert call_main("data", "pack", tmp_path / "text.txt", "--out", out, *arguments) == 0
    assert "packed 1 documents" in capsys.readouterr().out
    assert (out / "corpus.json").exists()


def test_help_loads_neither_ray_nor_torch_nor_pydantic():
    probe = (
        "import sys, trainflow.cli.main; print([name for name in "
        "('ray', 'torch', 'pydantic', 'pyarrow', 'yaml') if name in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, check=True
    )
    assert result.stdout.strip() == "[]"
