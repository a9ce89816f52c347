"""What a run looks like from outside."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.coordination.fakes import FakeClock, describe
from tests.unit.coordination.test_run_record import STEP
from trainflow.coordination.hang_detection import Progress
from trainflow.coordination.node_watch import NodeWatch
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.status import list_news, list_workers
from trainflow.coordination.worker_pool import WorkerEntry, WorkerPool
from trainflow.epochs import EpochId, Phase


class Pool(WorkerPool):
    def __init__(self, *entries: WorkerEntry):
        self.entries = {entry.worker_id: entry for entry in entries}


class Nodes(NodeWatch):
    def __init__(self, progress: dict[str, Progress]):
        self._progress = {"node": progress}


def rehearsing(pid: int) -> Progress:
    return Progress(pid, 1, EpochId(0, 0), Phase.COMPUTE, 0.1, 0.1)


def test_a_worker_that_starts_shows_its_pid_and_phase_and_no_step():
    pool = Pool(WorkerEntry("slot0-1.0", None), WorkerEntry("slot1-1.1", None))
    rehearses, unheard = list_workers(pool, (), Nodes({"slot0-1.0": rehearsing(42)}))
    assert (rehearses["state"], rehearses["pid"]) == ("starting", 42)
    assert (rehearses["phase"], rehearses["step"]) == ("compute", None)
    assert (unheard["pid"], unheard["phase"], unheard["step"]) == (None, None, None)


def test_members_show_how_long_they_compute_and_spares_nothing():
    ids = ("slot0-1.0", "slot1-1.1")
    pool = Pool(*(WorkerEntry(each, None, describe(each), compute_s=0.25) for each in ids))
    member, spare = list_workers(pool, ids[:1], Nodes({}))
    assert (member["rank"], member["compute_s"]) == (0, 0.25)
    assert (spare["rank"], spare["compute_s"]) == (None, None)


def test_a_warm_worker_shows_its_step():
    spare = WorkerEntry("slot0-1.0", None, describe("slot0-1.0"))
    (row,) = list_workers(Pool(spare), (), Nodes({"slot0-1.0": rehearsing(42)}))
    assert (row["state"], row["step"], row["pid"]) == ("spare", 1, describe("slot0-1.0").pid)


def train(record: RunRecord, incarnation: int, steps: range) -> None:
    epoch, base = EpochId(incarnation, 1), steps.start - 1
    record.begin_after(base, "a checkpoint", epoch)
    record.add_event("epoch", "an epoch", epoch=str(epoch), base=f"{base}@0.0", members=["a"])
    for step in steps:
        record.add_step(replace(STEP, step=step, epoch=epoch))


@pytest.mark.parametrize("num_events", [0, 2000])
def test_who_follows_an_attempt_hears_nothing_of_those_before(num_events: int, tmp_path: Path):
    record = RunRecord(tmp_path, FakeClock())
    train(record, 1, range(1, 8))
    first = list_news(record, None, 0)
    assert [each["kind"] for each in first["events"]] == ["resumed", "epoch"]
    assert [line["step"] for line in first["steps"]] == [1, 2, 3, 4, 5, 6, 7]

    record.begin_attempt(2)
    begun = list_news(record, None, 0)
    assert [each["kind"] for each in begun["events"]] == ["attempt"]
    assert begun["steps"] == []
    for _ in range(num_events):  # so that its beginning is no longer in memory
        record.add_event("note", "something")
    train(record, 2, range(4, 6))  # from an earlier step than the one before had reached
    further = list_news(record, begun["events"][-1]["number"] + num_events, 4)
    assert [each["kind"] for each in further["events"]] == ["resumed", "epoch"]
    assert [line["step"] for line in further["steps"]] == [5]
    assert len(list_news(record, 0, 0)["events"]) == min(1000, num_events + 5)
