"""How a job ended that no coordinator was started for."""

import json
from pathlib import Path

import pytest

from trainflow.coordination.endings import record_ending, record_refusal
from trainflow.coordination.line_file import read_lines
from trainflow.coordination.names import Attempt, run_directory
from trainflow.coordination.run_state import STOPPED
from trainflow.errors import DataError

NO_DATA = DataError("data.url: got nothing, expected a corpus")


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
