"""A job whose id was given before it began."""

import json
import os
import signal
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from ray._private.runtime_env.constants import RAY_JOB_CONFIG_JSON_ENV_VAR

from tests.full_disk import room_for
from tests.unit.cli.conftest import CallMain
from tests.unit.cli.fakes import FakeCluster, FakeRun, make_ending, make_status
from trainflow.cli.kept_output import keep_output
from trainflow.cli.output import silence
from trainflow.cli.ray_submission import is_ray_submission
from trainflow.clock import SYSTEM_CLOCK
from trainflow.coordination import driver
from trainflow.coordination.endings import tell_ending
from trainflow.coordination.line_file import read_lines
from trainflow.coordination.names import Attempt, run_directory
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.run_state import STOPPED
from trainflow.errors import ConflictError, CoordinationError
from trainflow.service.submission_files import KeptSubmission, read_submission

ADDRESS = "--address=10.0.0.1:6379"


@pytest.fixture
def folder(home: Path) -> Path:
    return home / "runs" / "mine-1"


@pytest.fixture
def run(cluster: FakeCluster) -> FakeRun:
    cluster.runs["tiny-abcdef"] = FakeRun([make_ending("succeeded", 0)])
    return cluster.runs["tiny-abcdef"]


def begin(folder: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "events.jsonl").write_text(
        '{"number": 1, "at_s": 1.0, "kind": "a", "text": "", "data": {}}\n'
    )


def test_the_job_has_the_given_id_and_what_is_printed_is_kept(
    run: FakeRun,
    cluster: FakeCluster,
    folder: Path,
    call_main: CallMain,
    job_file: Path,
    capfd: pytest.CaptureFixture[str],
):
    assert call_main("run", job_file, ADDRESS, "--job-id=mine-1") == 0
    assert cluster.attempts == [Attempt("mine-1")]
    kept = (folder / "driver.log").read_text()
    assert kept == "".join(capfd.readouterr())
    assert "succeeded: so it ended" in kept
    assert stat.S_IMODE((folder / "driver.log").stat().st_mode) == 0o600


def test_what_ray_job_submission_has_started_is_kept_with_the_run(
    run: FakeRun,
    home: Path,
    call_main: CallMain,
    job_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
):
    path = home / "runs" / "tiny-abcdef" / "driver.log"
    assert call_main("run", job_file, ADDRESS) == 0
    assert not path.exists()
    assert read_submission("tiny-abcdef") is None
    capfd.readouterr()
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    assert call_main("run", job_file, ADDRESS) == 0
    assert read_submission("tiny-abcdef") == KeptSubmission("job.json", str(Path.cwd()))
    assert path.read_text() == "".join(capfd.readouterr())
    assert path.read_text().startswith("run tiny-abcdef on the cluster at ")
    assert "succeeded: so it ended" in path.read_text()
    run.answers = [CoordinationError("it is gone for good")]
    assert call_main("run", job_file, ADDRESS) == 1
    assert "trainflow: it is gone for good\n" in path.read_text()


def test_a_run_goes_on_where_what_is_printed_can_not_be_kept(
    run: FakeRun,
    home: Path,
    call_main: CallMain,
    job_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
):
    (home / "runs" / "tiny-abcdef" / "driver.log").mkdir(parents=True)
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    assert call_main("run", job_file, ADDRESS) == 0
    out, err = capfd.readouterr()
    assert "succeeded: so it ended" in out
    assert "not kept with the run" in err


def test_the_variable_is_what_ray_sets():
    assert is_ray_submission({RAY_JOB_CONFIG_JSON_ENV_VAR: "{}"})
    assert not is_ray_submission({"RAY_ADDRESS": "10.0.0.1:6379"})


def test_a_job_that_is_refused_has_ended(
    cluster: FakeCluster, folder: Path, call_main: CallMain, job_file: Path
):
    bad = "--set=data.dataset=tiny_job_of_a_test:absent"
    assert call_main("run", job_file, ADDRESS, "--job-id=mine-1", bad) == 2
    result = json.loads((folder / "result.json").read_text())
    assert (result["state"], result["exit_code"]) == ("failed", 2)
    assert "absent" in result["reason"]
    assert result["reason"] in (folder / "driver.log").read_text()
    assert cluster.attempts == []


def test_a_conflict_with_a_running_job_is_not_its_result(
    run: FakeRun,
    folder: Path,
    call_main: CallMain,
    job_file: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    def refuse(_job_id: str, **_how: object) -> None:
        raise ConflictError("job mine-1: got one that is running")

    monkeypatch.setattr(driver, "make_room", refuse)
    assert call_main("run", job_file, ADDRESS, "--job-id=mine-1") == 6
    assert not (folder / "result.json").exists()


def test_a_later_attempt_is_told_so(
    run: FakeRun, cluster: FakeCluster, folder: Path, call_main: CallMain, job_file: Path
):
    begin(folder)
    assert call_main("run", job_file, ADDRESS, "--job-id=mine-1", "--attempt=2") == 0
    assert cluster.attempts == [Attempt("mine-1", 2)]


def test_a_later_attempt_is_refused_once_the_one_before_is_closed(
    cluster: FakeCluster,
    folder: Path,
    call_main: CallMain,
    job_file: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    """Its store may be back by then; and the record has one writer, that of the one before."""
    begin(folder)
    closed = RunRecord(folder, SYSTEM_CLOCK)
    closed.write_ending("mine-1", STOPPED)

    def make_room(job_id: str, **_how: object) -> None:
        assert cluster.addresses == ["10.0.0.1:6379"]
        tell_ending(STOPPED, RunRecord(run_directory(job_id), SYSTEM_CLOCK))

    monkeypatch.setattr(driver, "make_room", make_room)
    bad = "--set=data.dataset=tiny_job_of_a_test:absent"
    assert call_main("run", job_file, ADDRESS, "--job-id=mine-1", "--attempt=2", bad) == 2
    events = list(read_lines(folder / "events.jsonl"))
    assert [each["kind"] for each in events] == ["a", "stopped", "attempt", "failed"]
    assert [each["number"] for each in events] == [1, 2, 3, 4]
    assert json.loads((folder / "result-a1.json").read_text())["state"] == "stopped"
    assert "absent" in json.loads((folder / "result.json").read_text())["reason"]
    assert cluster.attempts == []


def test_who_stops_a_later_attempt_while_it_waits_for_room_has_no_refusal_told(
    cluster: FakeCluster,
    folder: Path,
    call_main: CallMain,
    job_file: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    begin(folder)

    def make_room(_job_id: str, *, is_in_vain: Callable[[], bool]) -> None:
        os.kill(os.getpid(), signal.SIGTERM)
        assert is_in_vain()

    monkeypatch.setattr(driver, "make_room", make_room)
    bad = "--set=data.dataset=tiny_job_of_a_test:absent"
    assert call_main("run", job_file, ADDRESS, "--job-id=mine-1", "--attempt=2", bad) == 7
    assert not (folder / "result.json").exists()
    assert cluster.attempts == []


def test_a_later_attempt_of_a_job_that_goes_on_changes_nothing_of_its_record(
    cluster: FakeCluster, folder: Path, call_main: CallMain, job_file: Path
):
    begin(folder)
    cluster.runs["mine-1"] = FakeRun([make_status()])
    bad = "--set=data.dataset=tiny_job_of_a_test:absent"
    assert call_main("run", job_file, ADDRESS, "--job-id=mine-1", "--attempt=2", bad) == 6
    assert not (folder / "result.json").exists()


@pytest.mark.usefixtures("cluster")
@pytest.mark.parametrize(
    ("options", "refusal"),
    [
        ("--job-id=../x", (2, "--job-id: got '../x', expected text that matches")),
        ("--job-id=other --attempt=2", (3, "which has no record in")),
        ("--job-id=mine-1", (6, "expected the id of a new job")),
        ("--attempt=2", (2, "--attempt: got 2 without --job-id")),
        ("--job-id=mine-1 --attempt=0", (2, "greater than or equal to 1")),
    ],
)
def test_an_attempt_that_follows_from_nothing_is_refused(
    options: str,
    refusal: tuple[int, str],
    folder: Path,
    call_main: CallMain,
    job_file: Path,
    capsys: pytest.CaptureFixture[str],
):
    begin(folder)
    exit_code, said = refusal
    assert call_main("run", job_file, ADDRESS, *options.split()) == exit_code
    assert said in capsys.readouterr().err
    assert [path.name for path in folder.iterdir()] == ["events.jsonl"]


def test_output_is_kept_in_order_and_appended(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    path, before = tmp_path / "new" / "driver.log", sys.stdout
    for number in (1, 2):
        with keep_output(path):
            print("out", number)
            print("err", number, file=sys.stderr)
            assert sys.stdout.fileno() == before.fileno()
            assert not sys.stdout.isatty()
    assert path.read_text() == "out 1\nerr 1\nout 2\nerr 2\n"
    assert capfd.readouterr() == ("out 1\nout 2\n", "err 1\nerr 2\n")


@contextmanager
def stdout_to_a_pipe() -> Iterator[int]:
    """Have stdout lead to a pipe; gives the pipe's reading end."""
    reader, writer = os.pipe()
    before = sys.stdout
    with os.fdopen(reader, "rb") as end, os.fdopen(writer, "w", encoding="utf-8") as stream:
        sys.stdout = stream
        try:
            yield end.fileno()
        finally:
            sys.stdout = before
            silence(stream)


def test_a_full_disk_costs_the_copy_alone(tmp_path: Path):
    path = tmp_path / "driver.log"
    with stdout_to_a_pipe() as pipe, room_for(0), keep_output(path):
        print("goes on", flush=True)
        assert os.read(pipe, 100) == b"goes on\n"
    assert path.read_bytes() == b""


def test_a_reader_that_left_is_noticed_and_the_copy_kept(tmp_path: Path):
    path = tmp_path / "driver.log"
    with stdout_to_a_pipe() as pipe, Path(os.devnull).open("rb") as nowhere:
        os.dup2(nowhere.fileno(), pipe)
        with keep_output(path), pytest.raises(BrokenPipeError):
            print("said to nobody", flush=True)
    assert path.read_text() == "said to nobody\n"
