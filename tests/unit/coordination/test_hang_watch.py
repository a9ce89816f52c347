"""Judging heartbeats that were read at different times."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.distributed.jobs import make_job
from tests.unit.coordination.fakes import FakeClock, FakePool, FakeWorker
from trainflow.computation.reports import StepReport
from trainflow.coordination import hang_watch
from trainflow.coordination.hang_detection import Hang, HangKind, Progress
from trainflow.coordination.hang_watch import HangWatch
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.timeout_budget import Limit
from trainflow.epochs import INITIAL_EPOCH, EpochId, Phase

OLD, NEW = EpochId(1, 1), EpochId(1, 2)


def waiting(epoch: EpochId) -> Progress:
    return Progress(1, 5, epoch, Phase.COMMUNICATE, progress_age_s=500.0, pulse_age_s=0.0)


@pytest.mark.parametrize(
    ("second", "deadlocked"), [(NEW, True), (OLD, False)], ids=["both in it", "one read before it"]
)
def test_only_those_in_the_epoch_can_deadlock_it(tmp_path: Path, second: EpochId, deadlocked: Any):
    class Nodes:
        def progress_of(self, worker_ids: set[str]) -> dict[str, Progress]:
            return {"a": waiting(NEW), "b": waiting(second)}

    pool: Any = FakePool()
    nodes: Any = Nodes()
    watch = HangWatch(make_job(), pool, nodes, RunRecord(tmp_path, FakeClock()))
    assert watch.is_deadlocked(("a", "b"), NEW) is deadlocked


def test_one_of_whom_nothing_is_heard_may_be_whom_the_others_wait_for(tmp_path: Path):
    pool: Any = FakePool()
    nodes: Any = SimpleNamespace(progress_of=lambda _: {"a": waiting(NEW)})
    watch = HangWatch(make_job(), pool, nodes, RunRecord(tmp_path, FakeClock()))
    assert not watch.is_deadlocked(("a", "b"), NEW)
    assert watch.is_deadlocked(("a",), NEW)


@pytest.fixture
def record(tmp_path: Path) -> RunRecord:
    return RunRecord(tmp_path, FakeClock())


def do_steps(record: RunRecord, *times_s: float, epoch: EpochId = NEW) -> None:
    for compute_s in times_s:
        step = record.last_step + 1
        values: dict[str, Any] = dict.fromkeys(("loss", "grad_norm", "lr", "weight", "wait_s"), 0.0)
        record.add_step(
            StepReport(step, epoch, 0, 2, step, True, **values, compute_s=compute_s, wire_bytes=0)
        )


def test_the_limits_are_told_at_first_and_when_they_are_quite_others(record: RunRecord):
    parts: Any = FakePool()
    watch = HangWatch(make_job(), parts, parts, record)

    def told() -> list[float]:
        assert watch.timeout_s > 0.0
        events = [each for each in record.events_since(0) if each["kind"] == "timeouts"]
        return [each["data"]["hang_s"] for each in events]

    assert told() == told() == [120.0]
    do_steps(record, *[1.2] * 10)
    assert told() == [120.0, 12.0]
    do_steps(record, 1.6)
    assert told() == [120.0, 12.0]
    assert watch.timeout_s == 16.0
    do_steps(record, 2.4)
    assert told() == [120.0, 12.0, 24.0]


def test_a_limit_of_the_job_s_own_that_is_below_its_steps_is_told_once(record: RunRecord):
    parts: Any = FakePool()
    job = make_job(failures={"hang_timeout_s": 1.0})
    watch = HangWatch(job, parts, parts, record)
    do_steps(record, *[1.2] * 10)
    assert watch.timeout_s == 1.0
    do_steps(record, 1.2)
    assert watch.timeout_s == 1.0
    tight = [each for each in record.events_since(0) if each["kind"] == "hang_timeout_tight"]
    assert len(tight) == 1
    assert "got 1, while 99% of 9 steps took at most 1.20 s" in tight[0]["text"]


def test_a_stop_waits_until_who_hangs_in_the_steps_until_then_is_found(record: RunRecord):
    pool: Any = FakePool()
    seen = {"w0": Progress(1, 5, NEW, Phase.COMPUTE, progress_age_s=1.0, pulse_age_s=0.0)}
    nodes: Any = SimpleNamespace(progress_of=lambda _: dict(seen))
    watch = HangWatch(make_job(), pool, nodes, record)
    assert watch.stop_patience_s > 120.0, "the first step may load and compile"
    do_steps(record, *[0.1] * 10)
    assert watch.stop_patience_s == pytest.approx(12.3)
    slow = HangWatch(make_job(failures={"hang_timeout_s": 5.0}), pool, nodes, record)
    do_steps(record, 30.0)
    assert slow.stop_patience_s == pytest.approx(97.0)
    seen["w0"] = replace(seen["w0"], phase=Phase.SNAPSHOT)
    assert slow.stop_patience_s == pytest.approx(332.0), "the store may have one before to take"


def begin_epoch(record: RunRecord, epoch: EpochId, world_size: int = 2) -> None:
    members = [f"w{number}" for number in range(world_size)]
    record.add_event("epoch", "", epoch=str(epoch), members=members, base=f"{record.last_step}@1.1")


def computing(epoch: EpochId, age_s: float) -> Any:
    progress = Progress(1, 5, epoch, Phase.COMPUTE, progress_age_s=age_s, pulse_age_s=0.0)
    return SimpleNamespace(progress_of=lambda _: {"w0": progress})


def test_who_is_waited_for_is_known_once_all_are_heard(record: RunRecord):
    pool: Any = FakePool()
    waits = Progress(1, 5, NEW, Phase.COMMUNICATE, progress_age_s=81.0, pulse_age_s=0.0)
    heard = {"w0": waits, "w1": replace(waits, phase=Phase.USER, progress_age_s=90.0)}
    nodes: Any = SimpleNamespace(progress_of=lambda _: dict(heard))
    watch = HangWatch(make_job(failures={"hang_timeout_s": 10.0}), pool, nodes, record)
    assert watch.find_waited_for(("w0", "w1")) == {"w1": 90.0}
    assert watch.find_waited_for(("w0", "w1", "w2")) == {}


def test_an_epoch_s_first_step_may_take_longer_and_more_so_in_another_world(record: RunRecord):
    pool: Any = FakePool()
    begin_epoch(record, NEW)
    do_steps(record, *[0.1] * 10)

    def find(epoch: EpochId, age_s: float) -> set[str]:
        return {*HangWatch(make_job(), pool, computing(epoch, age_s), record).find_hung({})}

    assert find(NEW, 11.0) == {"w0"}
    newer, smaller = EpochId(1, 3), EpochId(1, 4)
    begin_epoch(record, newer)
    assert (find(newer, 11.0), find(newer, 21.0)) == (set(), {"w0"})
    assert find(NEW, 11.0) == {"w0"}, "who is still in the one before"
    begin_epoch(record, smaller, world_size=1)
    assert (find(smaller, 119.0), find(smaller, 121.0)) == (set(), {"w0"})


def test_a_limit_is_raised_by_who_hangs_and_lowered_by_the_next_commit(record: RunRecord):
    parts: Any = FakePool()
    begin_epoch(record, NEW)
    do_steps(record, *[0.1] * 10)
    watch = HangWatch(make_job(), parts, parts, record)
    assert watch.timeout_s == 10.0
    data = {"worker": "w0", "stands_in": "step", "epoch": str(NEW), "after_step": watch.last_step}
    record.add_event("hang", "w0: no progress", **data)
    assert watch.timeout_s == 20.0
    assert "doubled for an epoch with a hang" in record.events_since(0)[-1]["text"]
    begin_epoch(record, EpochId(1, 3))
    assert watch.timeout_s == 40.0, "in its first step"
    again = HangWatch(make_job(), parts, parts, RunRecord(record.directory, FakeClock()))
    assert again.timeout_s == 40.0, "another coordinator knows it too"
    do_steps(record, 0.1, epoch=EpochId(1, 3))
    assert watch.timeout_s == 10.0


def test_a_hang_has_the_limit_in_force_and_not_the_one_that_was_told_last(record: RunRecord):
    pool: Any = FakePool()
    begin_epoch(record, NEW)
    do_steps(record, *[1.2] * 10)
    watch = HangWatch(make_job(), pool, computing(NEW, 20.0), record)
    assert watch.timeout_s == 12.0
    do_steps(record, 1.6)
    hang = watch.find_hung({})["w0"]
    told = [each for each in record.events_since(0) if each["kind"] == "timeouts"]
    assert [each["data"]["hang_s"] for each in told] == [12.0]
    assert hang.limit == Limit(16.0, "ten steps: 99% of 10 steps took at most 1.60 s")
    assert "20.0 s (limit 16 s: ten steps: 99% of 10 steps" in hang.text
    own = make_job(failures={"hang_timeout_s": 5.0})
    hang = HangWatch(own, pool, computing(NEW, 20.0), record).find_hung({})["w0"]
    assert hang.limit == Limit(5.0, "as failures.hang_timeout_s has it")


def test_all_may_wait_for_as_long_as_that_limit_says(record: RunRecord):
    pool: Any = FakePool()
    begin_epoch(record, NEW)
    do_steps(record, *[0.1] * 10, 5.7)
    nodes: Any = SimpleNamespace()
    watch = HangWatch(make_job(failures={"hang_timeout_s": 3.0}), pool, nodes, record)
    limit = watch.wait_limit(NEW)
    assert limit == Limit(11.4, "two steps of 5.70 s, as the slowest of the newest ones took")
    for age_s, deadlocked in [(11.3, False), (11.5, True)]:
        nodes.progress_of = lambda _, age_s=age_s: {
            "a": replace(waiting(NEW), progress_age_s=age_s)
        }
        assert watch.is_deadlocked(("a",), NEW) is deadlocked


def test_a_record_that_limits_can_not_be_derived_from_stops_no_coordinator(
    record: RunRecord, monkeypatch: pytest.MonkeyPatch
):
    """What is asked of it later is asked under a guard."""
    parts: Any = FakePool()
    with monkeypatch.context() as broken:
        broken.setattr(hang_watch, "derive_budget", lambda *_, **__: 1 / 0)
        watch = HangWatch(make_job(), parts, parts, record)
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                assert watch.timeout_s
    assert watch.timeout_s == 120.0, "it is tried again"


def test_a_start_that_was_killed_is_given_longer(record: RunRecord):
    progress = Progress(1, 0, INITIAL_EPOCH, Phase.STARTING, 130.0, 0.0)
    heard = dict.fromkeys(("slot0-1.r1", "slot1-1.1"), progress)
    pool: Any = FakePool([FakeWorker(each, None) for each in heard])
    nodes: Any = SimpleNamespace(progress_of=lambda _: heard)
    watch = HangWatch(make_job(), pool, nodes, record)
    assert watch.find_hung({}).keys() == heard.keys()
    record.add_event("hang", "", worker="slot0-1.0", stands_in="start", epoch="0.0", after_step=0)
    assert watch.find_hung({}).keys() == {"slot1-1.1"}, "where none has hung"


def test_who_has_moved_is_known_by_the_newest_heartbeat_of_those_that_are_heard(record: RunRecord):
    pool: Any = FakePool([FakeWorker("w0", None), FakeWorker("w1", None)])
    watch = HangWatch(make_job(), pool, computing(NEW, 0.5), record)
    hang = Hang(HangKind.STEP, NEW, "", stood_s=11.0, limit=Limit(10.0, ""))
    assert watch.find_moved({"w0": hang, "w1": hang}) == {"w0"}
