"""What is told of an attempt's end as the next one begins."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.coordination.fakes import FakeClock
from tests.unit.coordination.test_run_record import STEP
from trainflow.coordination.resumptions import record_resumption
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.run_state import STOPPED

JOB_ID = "tiny-abcdef"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRAINFLOW_HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def record(home: Path, clock: FakeClock) -> RunRecord:
    record = RunRecord(home / "runs" / JOB_ID, clock)
    record.add_event("submitted", f"job {JOB_ID}")
    return record


def begin_next(record: RunRecord, clock: FakeClock) -> dict[str, Any] | None:
    """Begin another attempt, as a coordinator that knows the files alone."""
    clock.now_s += 600.0
    again = RunRecord(record.directory, clock)
    again.begin_attempt(again.attempt + 1)
    return again.events_since(0)[-1]["data"].get("before")


def publish(record: RunRecord, as_of_s: object) -> None:
    document = {"status": {"as_of_s": as_of_s}, "workers": []}
    (record.directory / "status.json").write_text(json.dumps(document))


def test_one_that_nobody_ended_was_lost_when_it_was_last_heard_of(
    record: RunRecord, clock: FakeClock
):
    lost = {"attempt": 1, "state": "lost", "ended_at_s": clock.unix_s(), "exit_code": None}
    lost |= {"reason": "its cluster died before it had ended"}
    assert begin_next(record, clock) == lost


@pytest.mark.parametrize(
    ("as_of_s", "heard_at_s"),
    [(None, 1005.0), ("damaged", 1005.0), (1009.5, 1009.5), (7.0, 1005.0)],
)
def test_steps_and_the_status_are_heard_of_too(
    as_of_s: object, heard_at_s: float, record: RunRecord, clock: FakeClock
):
    clock.now_s = 1005.0
    record.add_step(replace(STEP, step=1))
    publish(record, as_of_s)
    before = begin_next(record, clock)
    assert before is not None
    assert (before["attempt"], before["ended_at_s"]) == (1, heard_at_s)


def test_what_the_service_writes_of_a_lost_job_was_not_heard_of_it(
    record: RunRecord, clock: FakeClock
):
    heard_at_s = clock.unix_s()
    clock.now_s += 90.0
    record_resumption(JOB_ID, 2, 3, clock)
    before = begin_next(record, clock)
    assert before is not None
    assert before["ended_at_s"] == heard_at_s


def test_one_whose_end_an_event_tells_is_told_no_other(record: RunRecord, clock: FakeClock):
    record.add_event("stopped", STOPPED.reason, exit_code=7)
    assert begin_next(record, clock) is None


def test_a_result_that_no_event_tells_is_told(record: RunRecord, clock: FakeClock):
    record.write_ending(JOB_ID, STOPPED)
    ended_at_s = clock.unix_s()
    before = begin_next(record, clock)
    told = {"attempt": 1, "state": "stopped", "ended_at_s": ended_at_s, "exit_code": 7}
    assert before == told | {"reason": "stopped on request"}


def test_one_of_which_nothing_was_heard_is_not_told_of(home: Path, clock: FakeClock):
    assert begin_next(RunRecord(home / "runs" / JOB_ID, clock), clock) is None
