"""Runs that never ran, recorded by what records real ones, and their history as plain values."""

import json
from collections.abc import Iterable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from tests.distributed.jobs import make_job
from tests.unit.coordination.test_run_record import STEP
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.run_state import Ending
from trainflow.epochs import EpochId
from trainflow.service.history.history import History
from trainflow.service.history.ingest import Ingester
from trainflow.service.history.record_files import SLICE_BYTES

JOB_ID = "tiny-abcdef"


class HandClock:
    """A clock that goes on only where a test says so."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def monotonic_s(self) -> float:
        return self.now_s

    def unix_s(self) -> float:
        return self.now_s

    def sleep(self, duration_s: float) -> None:
        raise AssertionError("nothing here sleeps")


class RecordedRun:
    """A run's folder, and the coordinator that writes there."""

    def __init__(self, directory: Path):
        self.directory = directory
        self.clock = HandClock()
        self.record = RunRecord(directory, self.clock)

    def keep_job(self, **changes: Any) -> "RecordedRun":
        job = make_job(world=2).model_copy(update={"name": "tiny"} | changes)
        self.record.keep_job(self.directory.name, job, ())
        return self

    def event(self, kind: str, text: str = "", **data: Any) -> "RecordedRun":
        self.clock.now_s += 1
        self.record.add_event(kind, text or kind, **data)
        return self

    def steps(
        self, *numbers: int, epoch: tuple[int, int] = (1, 1), **changes: Any
    ) -> "RecordedRun":
        for number in numbers:
            values = {"loss": number / 8, "committed_at_s": self.clock.now_s} | changes
            self.record.add_step(replace(STEP, step=number, epoch=EpochId(*epoch), **values))
        return self

    def go_back(self, step: int, epoch: tuple[int, int]) -> "RecordedRun":
        self.clock.now_s += 1
        self.record.begin_after(step, "a checkpoint", EpochId(*epoch))
        return self

    def publish(self, state: str = "running", **status: Any) -> "RecordedRun":
        self.clock.now_s += 1
        row = {"worker_id": "slot0-1.0", "rank": 0, "lag_s": 0.1}
        told = {"state": state, "as_of_s": self.clock.now_s, "ending": None} | status
        document = {"status": told, "workers": [row]}
        (self.directory / "status.json").write_text(json.dumps(document))
        return self

    def end(self, ending: Ending) -> "RecordedRun":
        self.clock.now_s += 1
        self.record.write_ending(self.directory.name, ending)
        return self.event(str(ending.state), ending.reason, exit_code=ending.exit_code)

    def again(self) -> "RecordedRun":
        """Return the run with a coordinator that has come back."""
        next_one = RecordedRun(self.directory)
        next_one.clock.now_s = self.clock.now_s
        return next_one


class Home:
    """A TRAINFLOW_HOME."""

    def __init__(self, path: Path):
        self.runs = path / "runs"

    def run(self, job_id: str = JOB_ID) -> RecordedRun:
        return RecordedRun(self.runs / job_id)

    def ingester(
        self, history: History, clock: HandClock | None = None, slice_bytes: int = SLICE_BYTES
    ) -> Ingester:
        clock = clock or HandClock()
        return Ingester(history.database, self.runs, clock, slice_bytes=slice_bytes)

    def take(self, history: History) -> frozenset[str]:
        """Have whoever comes anew take all that there is."""
        return self.ingester(history).catch_up()


def tell(history: History, job_id: str = JOB_ID) -> dict[str, Any]:
    """Return all that a history says of a job."""
    points = history.series.since(job_id, max_points=10_000)
    return {
        "job": asdict(history.jobs.get(job_id)) | {"stale_s": None},
        "attempts": [asdict(each) for each in history.jobs.attempts(job_id)],
        "events": [asdict(each) for each in history.events.after(job_id, limit=10_000)],
        "points": [asdict(each) for each in points],
        "checkpoints": [asdict(each) for each in history.checkpoints.of(job_id)],
    }


def steps_of(history: History, job_id: str = JOB_ID) -> list[int]:
    points = history.series.since(job_id, max_points=10_000)
    assert all(point.first_step == point.last_step for point in points)
    return [point.last_step for point in points]


def numbers(history: History, job_id: str = JOB_ID) -> list[int]:
    return [event.number for event in history.events.after(job_id)]


def write_lines(path: Path, lines: Iterable[object]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
