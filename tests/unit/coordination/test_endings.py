"""How a job ended that no coordinator was started for."""

import errno
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from trainflow.coordination import ending_file
from trainflow.coordination.endings import describe_failure, record_ending, record_refusal
from trainflow.coordination.line_file import read_lines
from trainflow.coordination.names import Attempt, run_directory
from trainflow.coordination.run_state import STOPPED
from trainflow.errors import DataError

NO_DATA = DataError("data.url: got nothing, expected a corpus")
NO_DATA_ENDING = describe_failure(NO_DATA)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRAINFLOW_HOME", str(tmp_path))
    return run_directory("tiny-abcdef")


def test_a_refusal_is_the_jobs_result_and_an_event(folder: Path):
    record_refusal(Attempt("tiny-abcdef"), NO_DATA)
    result = json.loads((folder / "result.json").read_text())
    assert (result["job_id"], result["state"]) == ("tiny-abcdef", "failed")
    assert (result["reason"], result["exit_code"]) == (str(NO_DATA), 2)
    (event,) = read_lines(folder / "events.jsonl")
    assert (event["kind"], event["text"]) == ("failed", str(NO_DATA))


def test_a_later_attempts_refusal_leaves_the_first_result_readable(folder: Path):
    record_ending(Attempt("tiny-abcdef"), STOPPED)
    record_refusal(Attempt("tiny-abcdef", 2), NO_DATA)
    assert json.loads((folder / "result-a1.json").read_text())["state"] == "stopped"
    assert json.loads((folder / "result.json").read_text())["state"] == "failed"


def test_an_ending_that_is_written_stays(folder: Path):
    record_refusal(Attempt("tiny-abcdef"), NO_DATA)
    record_ending(Attempt("tiny-abcdef"), STOPPED)
    assert json.loads((folder / "result.json").read_text())["state"] == "failed"
    assert len(read_lines(folder / "events.jsonl")) == 1


def test_of_many_who_tell_an_ending_at_once_one_does(folder: Path):
    record_ending(Attempt("tiny-abcdef"), NO_DATA_ENDING)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: record_ending(Attempt("tiny-abcdef", 2), STOPPED), range(8)))
    assert json.loads((folder / "result-a1.json").read_text())["state"] == "failed"
    assert json.loads((folder / "result.json").read_text())["state"] == "stopped"
    kinds = [line["kind"] for line in read_lines(folder / "events.jsonl")]
    assert kinds == ["failed", "attempt", "stopped"]


def test_an_ending_that_the_disk_does_not_take_is_not_told_as_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    def refuse(*_given: object) -> None:
        raise OSError(errno.ENOSPC, "no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(ending_file, "write_ending", refuse)
        with pytest.raises(OSError, match="does not take how the job ended"):
            record_ending(Attempt("tiny-abcdef"), STOPPED)
    record_ending(Attempt("tiny-abcdef"), STOPPED)
    assert json.loads((folder / "result.json").read_text())["state"] == "stopped"
