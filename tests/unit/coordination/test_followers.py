"""Who follows a run is told of all that is recorded, and can't harm it."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.unit.coordination.test_run_record import STEP, open_record
from trainflow.computation.reports import StepReport
from trainflow.coordination.run_record import RunRecord


class Notes:
    def __init__(self) -> None:
        self.told: list[str | int] = []

    def on_event(self, event: Mapping[str, Any]) -> None:
        self.told.append(event["kind"])

    def on_step(self, report: StepReport) -> None:
        self.told.append(report.step)


class Broken(Notes):
    def on_event(self, event: Mapping[str, Any]) -> None:
        super().on_event(event)
        raise RuntimeError("on purpose")

    def on_step(self, report: StepReport) -> None:
        super().on_step(report)
        raise ZeroDivisionError("on purpose")


def test_events_and_steps_are_told_in_their_order_once(record: RunRecord):
    notes = Notes()
    record.add_event("submitted", "before")
    record.follow(notes)
    record.add_event("launched", "two workers")
    for step in (1, 1, 2):
        record.add_step(replace(STEP, step=step))
    record.add_event("failure", "lost a")
    assert notes.told == ["launched", 1, 2, "failure"]


def test_one_that_raises_is_told_no_more_and_the_others_are(record: RunRecord):
    broken, notes = Broken(), Notes()
    record.follow(broken)
    record.follow(notes)
    record.add_step(STEP)
    record.add_event("failure", "lost a")
    assert broken.told == [1]
    assert notes.told == [1, "monitoring_failed", "failure"]
    assert record.steps_since(0)[0]["step"] == 1
    (event,) = [each for each in record.events_since(0) if each["kind"] == "monitoring_failed"]
    assert event["data"] == {"follower": "Broken"}


def test_two_that_raise_at_an_event_end_both(tmp_path: Path):
    record = open_record(tmp_path)
    record.follow(Broken())
    record.follow(Broken())
    record.add_event("failure", "lost a")
    kinds = [each["kind"] for each in record.events_since(0)]
    assert kinds == ["failure", "monitoring_failed", "monitoring_failed"]
