"""Steps that were committed while nobody lived, or was there, to hear of it."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.coordination.fakes import FakeWorker
from tests.unit.coordination.test_run_record import STEP, open_record
from trainflow.computation.reports import StepReport
from trainflow.coordination.missed_reports import make_up_for_reports
from trainflow.coordination.run_record import RunRecord
from trainflow.epochs import (
    EpochId,
    EpochSpec,
    HeldShards,
    MemberReport,
    RecoveryPlan,
    StoredState,
    Version,
    WhereKept,
)

FIRST, SECOND = EpochId(1, 1), EpochId(1, 2)
MEMBERS = ("w0", "w1", "w2")
SPEC = EpochSpec(EpochId(1, 3), MEMBERS, "host", 1)


def history(*steps: int, epoch: EpochId = FIRST, rank: int = 1) -> tuple[StepReport, ...]:
    return tuple(
        replace(STEP, step=step, epoch=epoch, rank=rank, loss=float(step)) for step in steps
    )


@pytest.fixture
def record(tmp_path: Path) -> RunRecord:
    record = open_record(tmp_path)
    for step in history(1, 2, rank=0):
        record.add_step(step)
    return record


def make_up(
    record: RunRecord,
    workers: Sequence[FakeWorker],
    base: Version,
    stored: WhereKept | None = None,
) -> list[int]:
    """Let an epoch begin from ``base``; returns the steps of the curve."""
    actors = {worker.worker_id: worker for worker in workers}
    reports = [MemberReport(worker.worker_id, worker.version) for worker in workers]
    plan = RecoveryPlan(SPEC, base, stored=stored)

    async def main() -> None:
        await make_up_for_reports(record, plan, reports, actors)

    asyncio.run(main())
    return [line["step"] for line in record.steps_since(0)]


def worker(index: int, version: Version | None, *steps: int, epoch: EpochId = FIRST) -> FakeWorker:
    made = FakeWorker(MEMBERS[index], version)
    made.steps = history(*steps, epoch=epoch, rank=index)
    return made


def test_what_a_dead_rank_0_had_not_told_a_survivor_tells_as_it_was(record: RunRecord):
    base = Version(3, FIRST)
    workers = [worker(0, None), worker(1, base, 1, 2, 3), worker(2, base, 1, 2, 3)]
    del workers[0].steps_up_to  # who holds the base is asked first
    assert make_up(record, workers, base) == [1, 2, 3]
    line = record.steps_since(2)[0]
    assert (line["epoch"], line["rank"], line["loss"], line["grad_norm"]) == ("1.1", 1, 3.0, 1.0)
    record.add_step(history(3, rank=0)[0])  # it was under way
    assert len(record.steps_since(0)) == 3
    record.add_step(replace(STEP, step=4, epoch=SPEC.epoch))
    assert open_record(record.directory).last_step == 4


def test_all_that_waited_for_a_coordinator_is_told_in_order(record: RunRecord):
    base = Version(9, SECOND)
    early = history(*range(1, 6))
    late = history(*range(6, 10), epoch=SECOND)
    survivor = worker(2, base)
    survivor.steps = (*early, *late)
    joined_later = worker(1, base, *range(6, 10), epoch=SECOND)
    assert make_up(record, [worker(0, None), survivor, joined_later], base) == [*range(1, 10)]
    assert [line["epoch"] for line in record.steps_since(4)] == ["1.1"] + ["1.2"] * 4


def test_of_a_step_that_all_had_who_are_dead_nothing_is_said(record: RunRecord):
    assert make_up(record, [worker(k, None) for k in range(3)], Version(3, FIRST)) == [1, 2]


def test_a_step_that_is_done_again_is_told_by_none_that_had_it_before(record: RunRecord):
    ahead = worker(0, Version(4, FIRST), 1, 2, 3, 4)
    assert make_up(record, [ahead], Version(3, FIRST)) == [1, 2, 3], "it goes back to 3"
    other = worker(1, Version(5, FIRST), 4, 5)
    assert make_up(record, [other], Version(5, SECOND)) == [1, 2, 3], "its 5 is another"


def test_one_that_gave_a_state_up_may_still_tell_of_it_once_it_counts(record: RunRecord):
    """Of shards all may have to read back what they had committed: copies of it are there."""
    base = Version(3, FIRST)
    kept = HeldShards(base, ())
    assert make_up(record, [worker(0, None, 1, 2, 3)], base, kept) == [1, 2, 3]


def test_what_comes_from_a_checkpoint_is_asked_of_nobody(record: RunRecord):
    stored = StoredState("/store", 7)
    nobody = FakeWorker(MEMBERS[0], None)
    del nobody.steps_up_to
    assert make_up(record, [nobody], stored.version, stored) == [1, 2]


def test_nobody_is_asked_for_what_is_known(record: RunRecord):
    nobody = FakeWorker(MEMBERS[0], Version(2, FIRST))
    del nobody.steps_up_to
    assert make_up(record, [nobody], Version(2, FIRST)) == [1, 2]


def test_a_late_report_of_a_void_step_is_dropped(record: RunRecord):
    record.add_event("epoch", "epoch 1.2", epoch="1.2", base="2@1.1", members=[])
    record.add_step(history(3)[0])
    assert record.last_step == 2
    record.add_step(history(3, epoch=SECOND)[0])
    record.add_event("epoch", "epoch 1.3", epoch="1.3", base="4@1.2", members=[])
    record.add_step(history(4, epoch=SECOND)[0])
    assert [line["epoch"] for line in record.steps_since(0)] == ["1.1", "1.1", "1.2", "1.2"]
    again = open_record(record.directory)
    again.add_step(history(5, epoch=SECOND)[0])
    assert again.last_step == 4
