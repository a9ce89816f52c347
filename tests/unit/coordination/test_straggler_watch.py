"""What a run tells of its stragglers."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.distributed.jobs import make_job
from tests.unit.coordination.fakes import FakeClock, FakePool, FakeWorker, describe
from trainflow.computation.reports import StepReport
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.straggler_detection import BEGIN_AFTER, END_AFTER, Load
from trainflow.coordination.straggler_watch import StragglerWatch, deal_loads
from trainflow.epochs import EpochId

STEP_S = 0.5
STEPS_A_WINDOW = 10


class Run:
    """Two nodes of two ranks each, whose steps a test makes up."""

    def __init__(self, directory: Path):
        ids = [f"slot{i}-1.{i}" for i in range(4)]
        pool = FakePool([FakeWorker(each, None) for each in ids])
        for number, each in enumerate(ids):
            node, host = f"node-{number // 2}", f"10.0.0.{number // 2}"
            pool.entries[each].description = replace(describe(each), node_id=node, host=host)
        self.pool: Any = pool
        self.asked: list[str] = []
        self.can_relieve = False
        self.control: Any = SimpleNamespace(
            members=tuple(ids), epoch=EpochId(1, 1), relieve=self.relieve
        )
        self.record = RunRecord(directory, FakeClock())
        self.num_steps = 0
        self.watch = self.open()

    def relieve(self, worker_id: str) -> bool:
        self.asked.append(worker_id)
        return self.can_relieve

    def open(self, **failures: Any) -> StragglerWatch:
        job = make_job(world=4, training={"global_batch_size": 12})
        job = job.model_copy(update={"failures": job.failures.model_copy(update=failures)})
        return StragglerWatch(job, self.pool, self.control, self.record)

    def step(self, *times_s: float, **others: Any) -> None:
        self.num_steps += 1
        values: dict[str, Any] = {
            "step": self.num_steps,
            "rank": 0,
            "epoch": self.control.epoch,
            "committed_at_s": self.num_steps * STEP_S,
            "compute_by_rank": times_s,
            "world_size": len(times_s),
            "applied": True,
            **dict.fromkeys(("loss", "grad_norm", "lr", "weight", "compute_s", "wait_s"), 1.0),
        }
        self.watch.on_step(StepReport(wire_bytes=0, **values | others))

    def windows(self, number: int, *times_s: float) -> None:
        for _ in range(number * STEPS_A_WINDOW):
            self.step(*times_s)

    def begin(self) -> None:
        self.step(0.1, 0.1, 0.1, 0.1)

    def events(self) -> list[dict[str, Any]]:
        return self.record.events_since(0)


@pytest.fixture
def run(tmp_path: Path) -> Run:
    run = Run(tmp_path)
    run.begin()
    return run


def test_a_rank_is_named_with_its_worker_node_and_figures(run: Run):
    run.windows(BEGIN_AFTER, 0.1, 0.1, 0.3, 0.1)
    (event,) = run.events()
    assert event["kind"] == "straggler"
    assert event["text"] == (
        "rank 2 (slot2-1.2) on 10.0.0.1 computes 3.00 times as long as usual, 0.300 s a step where "
        "0.100 s would do; the others wait"
    )
    (slow,) = event["data"]["stragglers"]
    assert (slow["rank"], slow["worker_id"], slow["node_id"]) == (2, "slot2-1.2", "node-1")
    assert (event["data"]["node_id"], event["data"]["whole_node"]) == ("node-1", False)
    assert run.watch.current() == [slow]


def test_its_end_is_told(run: Run):
    run.windows(BEGIN_AFTER, 0.1, 0.1, 0.3, 0.1)
    run.windows(END_AFTER, 0.1, 0.1, 0.1, 0.1)
    event = run.events()[-1]
    assert (event["kind"], event["data"]) == (
        "straggler_over",
        {"worker": "slot2-1.2", "left": False},
    )
    assert run.watch.current() == []


def test_one_that_loses_its_rank_is_told_of(run: Run):
    run.windows(BEGIN_AFTER, 0.1, 0.1, 0.3, 0.1)
    run.control.members = run.control.members[:2]
    run.control.epoch = EpochId(1, 2)
    run.step(0.1, 0.1)
    event = run.events()[-1]
    assert (event["kind"], event["data"]) == (
        "straggler_over",
        {"worker": "slot2-1.2", "left": True},
    )


def test_a_whole_node_is_named_once(run: Run):
    run.windows(BEGIN_AFTER, 0.1, 0.1, 0.3, 0.2)
    (event,) = run.events()
    assert event["text"].startswith("every rank on 10.0.0.1 (2, 3) computes 3.00 times as long")
    assert (event["data"]["node_id"], event["data"]["whole_node"]) == ("node-1", True)
    assert [each["rank"] for each in event["data"]["stragglers"]] == [2, 3]


def test_a_new_coordinator_goes_on_from_what_was_told(run: Run):
    run.windows(BEGIN_AFTER, 0.1, 0.1, 0.3, 0.1)
    told = run.watch.current()
    run.record = RunRecord(run.record.directory, FakeClock())
    run.watch = run.open()
    assert run.watch.current() == told
    run.begin()
    run.windows(2 * BEGIN_AFTER, 0.1, 0.1, 0.3, 0.1)
    assert [event["kind"] for event in run.events()] == ["straggler"]
    run.windows(END_AFTER, 0.1, 0.1, 0.1, 0.1)
    assert [event["kind"] for event in run.events()] == ["straggler", "straggler_over"]
    assert run.open().current() == []


@pytest.mark.parametrize(
    "others",
    [{"rank": 1}, {"epoch": EpochId(1, 0)}, {"step": 1}, {"compute_by_rank": (0.1, 0.1)}],
    ids=["another rank's", "of an epoch that is past", "repeated", "of another world"],
)
def test_reports_that_tell_nothing_new_count_for_nothing(run: Run, others: dict[str, Any]):
    for _ in range(2 * BEGIN_AFTER * STEPS_A_WINDOW):
        run.step(0.1, 0.1, 0.3, 0.1, **others)
    assert run.events() == []


def test_a_straggler_is_relieved_only_if_the_job_says_so(run: Run):
    run.windows(BEGIN_AFTER, 0.1, 0.1, 0.3, 0.1)
    assert run.asked == []


def test_the_worst_straggler_is_relieved_as_soon_as_that_can_be(run: Run):
    run.watch = run.open(replace_stragglers=True)
    run.begin()
    run.windows(BEGIN_AFTER, 0.1, 0.2, 0.3, 0.1)
    assert run.asked == ["slot2-1.2", "slot1-1.1"], "neither could be"
    run.can_relieve = True
    run.step(0.1, 0.2, 0.3, 0.1)
    assert run.asked[2:] == ["slot2-1.2"], "one at a time"
    event = run.events()[-1]
    assert event["kind"] == "straggler_relieved"
    assert event["text"] == "rank 2 goes from slot2-1.2 to a spare after this step"
    assert event["data"]["worker_id"] == "slot2-1.2"


def test_ranks_have_the_loads_that_they_are_dealt():
    job = make_job(world=3)
    assert deal_loads(job, 3) == [Load(2, 6), Load(1, 3), Load(1, 1)]
    assert deal_loads(job, 5)[-1] == Load(0, 0)


def test_of_a_sharded_model_all_ranks_go_through_equally_many():
    job = make_job(world=3, parallel={"mode": "fsdp"})
    assert deal_loads(job, 3) == [Load(2, 6)] * 3
