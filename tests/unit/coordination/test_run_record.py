import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from tests.distributed.jobs import make_job
from tests.full_disk import room_for
from tests.unit.coordination.fakes import FakeClock
from trainflow.computation.reports import (
    CompressionChosen,
    EvaluationReport,
    GradientSums,
    Joined,
    ResidualsLost,
    StepReport,
    TensorDigests,
    WorkDescribed,
)
from trainflow.coordination import line_file
from trainflow.coordination.endings import tell_ending
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.run_state import SUCCESS, Ending, RunState
from trainflow.epochs import INITIAL_EPOCH, EpochId, Version
from trainflow.monitoring.anomalies.norm_guard import OddNorm


class FrozenClock:
    def monotonic_s(self) -> float:
        return 5.0

    def unix_s(self) -> float:
        return 1000.0

    def sleep(self, duration_s: float) -> None:
        raise AssertionError("a record doesn't sleep")


class HandClock(FrozenClock):
    now_s = 1000.0

    def unix_s(self) -> float:
        return self.now_s


STEP = StepReport(
    step=1,
    epoch=EpochId(1, 2),
    rank=0,
    world_size=3,
    committed_at_s=1000.0,
    applied=True,
    loss=2.5,
    grad_norm=1.0,
    lr=0.1,
    weight=8.0,
    compute_s=0.3,
    wait_s=0.2,
    wire_bytes=100,
    scalars={"accuracy": 0.5},
    joined=Joined(1.0, 2.0, healed=True),
)


@pytest.fixture
def record(tmp_path: Path) -> RunRecord:
    return open_record(tmp_path)


def open_record(directory: Path) -> RunRecord:
    return RunRecord(directory, FrozenClock())


def test_events_are_numbered_from_one_without_gaps_across_coordinators(record: RunRecord):
    record.add_event("failure", "lost a")
    record.add_event("epoch", "epoch 1.1", members=["a"])
    again = open_record(record.directory)
    again.add_event("failure", "lost b")
    assert [event["number"] for event in again.events_since(0)] == [1, 2, 3]
    assert [event["text"] for event in again.events_since(1)] == ["epoch 1.1", "lost b"]
    assert again.events_since(2)[0]["at_s"] == 1000.0
    assert again.num_failures == 2


def test_a_repeated_or_late_report_is_dropped(record: RunRecord):
    for step in (1, 2, 2, 1, 3):
        record.add_step(replace(STEP, step=step))
    assert [line["step"] for line in record.steps_since(0)] == [1, 2, 3]
    assert record.last_step == 3
    lines = (record.directory / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 3]


def test_a_step_is_kept_as_it_was_reported(record: RunRecord):
    record.add_step(STEP)
    (line,) = open_record(record.directory).steps_since(0)
    assert line["epoch"] == "1.2"
    assert line["scalars"] == {"accuracy": 0.5}
    told_elsewhere = {"joined", "pausing", "compute_by_rank", "odd_norm"}
    heard = {"heard_at_s": 1000.0, "after_event": 0}
    assert line.keys() == {*STEP.__dataclass_fields__, *heard} - told_elsewhere
    assert line | heard == line
    assert record.step_times_s(5) == [0.5]


def test_the_first_steps_of_epochs_are_known_apart(record: RunRecord):
    times = [(1, 1, 60.0), (2, 1, 0.0), (3, 1, 1.0), (4, 2, 30.0), (5, 2, 2.0)]
    for step, counter, wait_s in times:
        record.add_step(replace(STEP, step=step, epoch=EpochId(1, counter), wait_s=wait_s))
    compute_s = STEP.compute_s
    assert record.warm_step_times_s(9) == [compute_s + wait_s for wait_s in (0.0, 1.0, 2.0)]
    assert record.warm_step_times_s(3) == [compute_s + wait_s for wait_s in (1.0, 2.0)]
    assert record.first_step_times_s(9) == [compute_s + wait_s for wait_s in (60.0, 30.0)]
    assert record.first_step_times_s(4) == [compute_s + 30.0]
    assert record.step_times_s(2) == [compute_s + wait_s for wait_s in (30.0, 2.0)]


def test_a_record_tells_whether_a_hang_was_followed_by_a_step_beyond_it(record: RunRecord):
    record.add_step(STEP)
    hang = {"worker": "w0", "stands_in": "step", "epoch": "1.2", "after_step": 1}
    record.add_event("hang", "", **hang)
    assert open_record(record.directory).hangs.num_stuck == record.hangs.num_stuck == 1
    record.add_step(replace(STEP, step=2))
    assert open_record(record.directory).hangs.num_stuck == record.hangs.num_stuck == 0


def test_it_is_known_when_the_run_last_moved_on(record: RunRecord):
    assert record.moved_on_at_s == -math.inf
    record.add_step(STEP)
    assert open_record(record.directory).moved_on_at_s == 1000.0


def test_a_step_s_line_says_what_was_recorded_before_it(record: RunRecord):
    slow = replace(STEP, sums=GradientSums(1, 0.0, 0.0, 0.0, slow_kernels=True))
    record.add_event("epoch", "epoch 1.1")
    record.add_step(slow)
    record.add_step(replace(slow, step=2))
    assert [event["kind"] for event in record.events_since(0)] == ["epoch", "compression_slow"]
    assert [line["after_event"] for line in record.steps_since(0)] == [2, 2]
    assert open_record(record.directory).newest_step == record.newest_step
    assert record.newest_step == record.steps_since(1)[0]


def test_how_many_spares_there_were_is_kept_with_a_new_step_where_it_is_known(record: RunRecord):
    told = iter([2, 1])
    for step, count_spares in ((1, None), (2, lambda: next(told)), (2, lambda: next(told))):
        record.add_step(replace(STEP, step=step), count_spares)
    lines = open_record(record.directory).steps_since(0)
    assert [line.get("num_spares") for line in lines] == [None, 2]
    assert next(told) == 1, "none are counted for a step that is known"


def test_why_a_step_was_skipped_for_its_norm_is_kept_with_it(record: RunRecord):
    record.add_step(replace(STEP, applied=False, odd_norm=OddNorm(1.0, 40.0, 2)))
    (line,) = open_record(record.directory).steps_since(0)
    assert line["odd_norm"] == {"expected": 1.0, "score": 40.0, "num_in_a_row": 2}


def test_a_step_whose_line_was_torn_is_taken_when_it_is_reported_again(record: RunRecord):
    record.add_step(STEP)
    record.add_step(replace(STEP, step=2))
    tear_last_line(record.directory / "metrics.jsonl")
    again = open_record(record.directory)
    assert again.last_step == 1
    again.add_step(replace(STEP, step=2))
    assert [line["step"] for line in again.steps_since(0)] == [1, 2]


def test_what_follows_a_torn_line_is_not_torn_with_it(record: RunRecord):
    record.add_event("submitted", "job a")
    record.add_event("failure", "lost a")
    tear_last_line(record.directory / "events.jsonl")
    open_record(record.directory).add_event("coordinator_restarted", "again")
    kinds = [event["kind"] for event in open_record(record.directory).events_since(0)]
    assert kinds == ["submitted", "coordinator_restarted"]


def test_the_result_is_there_whole_or_not_at_all(record: RunRecord):
    failed = Ending(RunState.FAILED, "why", 1)
    assert record.read_ending() is None
    record.write_ending("job", failed)
    path = record.directory / "result.json"
    written = json.loads(path.read_text())
    assert (written["job_id"], written["ended_at_s"]) == ("job", 1000.0)
    assert record.read_ending() == failed

    with room_for(5):
        record.write_ending("job", SUCCESS)
        assert not record.unwritten.flush()
    assert record.read_ending() == failed
    assert sorted(p.name for p in record.directory.iterdir() if "part" in p.name) == []


def test_an_ending_without_room_is_written_once_there_is_some(tmp_path: Path):
    clock = HandClock()
    record = RunRecord(tmp_path, clock)
    with room_for(5):
        record.write_ending("job", SUCCESS)
        record.add_event("succeeded", "every step is done")
        record.add_step(STEP)
        clock.now_s += 30.0
        assert not record.unwritten.flush()
    assert record.unwritten.flush()
    again = open_record(tmp_path)
    assert again.read_ending() == SUCCESS
    assert json.loads((tmp_path / "result.json").read_text())["ended_at_s"] == 1000.0
    kinds = [event["kind"] for event in again.events_since(0)]
    assert kinds == ["record_unwritable", "succeeded", "record_writable"]
    assert [line["step"] for line in again.steps_since(0)] == [1]
    tell_ending(SUCCESS, again)
    assert len(again.events_since(0)) == 3, "a coordinator that comes back tells it no second time"


def test_lines_that_were_too_many_to_wait_are_told(
    record: RunRecord, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(line_file, "MAX_WAITING", 2)
    record = open_record(record.directory)
    with room_for(0):
        for step in (1, 2, 3, 4):
            record.add_step(replace(STEP, step=step))
    assert record.unwritten.flush()
    again = open_record(record.directory)
    assert [line["step"] for line in again.steps_since(0)] == [3, 4]
    *_, told = again.events_since(0)
    assert told["kind"] == "record_incomplete"
    assert told["text"].startswith("2 lines of metrics.jsonl are lost")


def test_what_is_given_up_is_told(record: RunRecord, caplog: pytest.LogCaptureFixture):
    with room_for(0):
        record.add_step(STEP)
        record.write_ending("job", SUCCESS)
        record.unwritten.tell_lost(["status.json"])
    lost = "1 lines of events.jsonl, 1 lines of metrics.jsonl, result.json, status.json"
    assert lost in caplog.text
    assert record.has("record_incomplete")


def test_a_later_attempt_goes_on_with_the_record_and_ends_anew(record: RunRecord):
    record.add_event("epoch", "epoch 3.1", epoch="3.1", base="4@2.1", members=["a"])
    record.add_event("failure", "lost a")
    record.add_event("straggler_relieved", "b leaves", worker_id="b")
    record.add_event("epoch", "epoch 3.2", epoch="3.2", base="4@2.1", members=["a"])
    record.add_event("stopping", "asked to")
    record.write_ending("job", SUCCESS)

    again = open_record(record.directory)
    assert again.reliefs.relieved == {"b"}
    again.begin_attempt(2)
    assert again.reliefs.relieved == set()
    assert (again.attempt, again.num_failures, again.read_ending()) == (2, 0, None)
    assert not again.has("stopping")
    assert again.newest_incarnation == 3
    before = {"attempt": 1, "state": "succeeded", "ended_at_s": 1000.0}
    before |= {"exit_code": 0, "reason": "every step is done"}
    assert again.events_since(5)[0]["data"] == {"attempt": 2, "before": before}
    first = json.loads((record.directory / "result-a1.json").read_text())
    assert first["state"] == "succeeded"


def test_a_coordinator_that_comes_back_begins_no_other_attempt(record: RunRecord):
    record.begin_attempt(2)
    record.add_event("stopping", "asked to")
    record.write_ending("job", SUCCESS)
    again = open_record(record.directory)
    again.begin_attempt(2)
    assert again.read_ending() == SUCCESS
    assert again.has("stopping")
    assert [event["kind"] for event in again.events_since(0)] == ["attempt", "stopping"]


def test_an_attempt_that_a_crash_kept_from_being_told_is_told_later(record: RunRecord):
    record.write_ending("job", SUCCESS)
    (record.directory / "result.json").rename(record.directory / "result-a1.json")
    record.begin_attempt(2)
    assert (record.attempt, record.read_ending()) == (2, None)
    assert record.events_since(0)[-1]["data"]["before"]["state"] == "succeeded"


def test_steps_of_a_later_attempt_count_though_an_earlier_one_came_further(record: RunRecord):
    record.add_event("epoch", "epoch 1.5", epoch="1.5", base="0@0.0", members=["a"])
    for step in (1, 2, 3):
        record.add_step(replace(STEP, step=step, epoch=EpochId(1, 5)))
    again = open_record(record.directory)
    again.begin_attempt(2)
    again.begin_after(1, "a checkpoint", EpochId(2, 1))
    again.add_event("epoch", "epoch 2.1", epoch="2.1", base="1@1.5", members=["a"])
    again.add_step(replace(STEP, step=2, epoch=EpochId(2, 1)))
    assert again.last_step == 2


def test_a_full_disk_is_told_once_and_nothing_is_lost(record: RunRecord):
    record.add_event("submitted", "job a")
    with room_for((record.directory / "events.jsonl").stat().st_size):
        for step in (1, 2):
            record.add_step(replace(STEP, step=step))
        record.add_event("failure", "lost a")
    record.add_step(replace(STEP, step=3))
    record.add_event("epoch", "epoch 1.2")

    again = open_record(record.directory)
    kinds = [event["kind"] for event in again.events_since(0)]
    assert kinds == ["submitted", "record_unwritable", "failure", "epoch", "record_writable"]
    assert "free some space" in again.events_since(1)[0]["text"]
    assert [line["step"] for line in again.steps_since(0)] == [1, 2, 3]


def test_a_disk_with_room_for_some_lines_is_told_of_once(record: RunRecord):
    """Events may fit where a step does not: that is no reason to say that all is well again."""
    record.add_step(STEP)
    with room_for((record.directory / "metrics.jsonl").stat().st_size):
        for step in (2, 3):
            record.add_step(replace(STEP, step=step))
            record.add_event("failure", "short")
    kinds = [event["kind"] for event in record.events_since(0)]
    assert kinds == ["record_unwritable", "failure", "failure"]


def tear_last_line(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[:-7])


def test_what_happened_long_ago_is_still_known(tmp_path: Path):
    record = open_record(tmp_path)
    record.add_event("epoch", "the first")
    record.add_report(EvaluationReport(3, "loss", 0.5))
    record.add_event("checkpoint", "made", step=3)
    record.add_event("failure", "lost one")
    for number in range(1500):
        record.add_event("noise", str(number))
    for known in (record, open_record(tmp_path)):
        assert known.has("epoch")
        assert known.evaluations_of("loss") == {3: 0.5}
        assert known.steps_of("checkpoint") == [3]
        assert known.num_failures == 1


@pytest.mark.parametrize("num_events", [3, 1000, 1001, 1500])
def test_events_that_are_no_longer_in_memory_are_read(tmp_path: Path, num_events: int):
    record = open_record(tmp_path)
    for number in range(num_events):
        record.add_event("noise", str(number))
    for known in (record, open_record(tmp_path)):
        for since in (0, 1, 2, num_events):
            numbers = [event["number"] for event in known.read_events_since(since)]
            assert numbers == [*range(since + 1, num_events + 1)]


def test_what_compression_was_chosen_is_told_with_its_reasons(tmp_path: Path):
    record = open_record(tmp_path)
    predicted_s = {"none": 0.8, "int8": 0.22}
    record.add_report(CompressionChosen(1, "model", "int8", predicted_s, 117e6))
    (event,) = record.events_since(0)
    assert event["text"] == (
        "model: gradients are sent with compression int8; on 117 MB/s a step's sums are predicted "
        "to take none 0.8000 s, int8 0.2200 s"
    )
    assert event["data"]["predicted_s"] == predicted_s


def test_a_history_that_the_run_went_back_from_does_not_count(tmp_path: Path):
    record = open_record(tmp_path)
    record.add_step(replace(STEP, step=100, epoch=EpochId(1, 1)))
    record.begin_after(80, "the checkpoint of step 80", EpochId(1, 5))
    assert open_record(tmp_path).last_step == 80
    record.add_step(replace(STEP, step=81, epoch=EpochId(1, 5)))
    assert open_record(tmp_path).last_step == 81


def test_a_state_that_was_read_back_counts_until_an_older_one_is_gone_on_from(tmp_path: Path):
    record = open_record(tmp_path)

    def begin(counter: int, base: str) -> None:
        record.add_event("epoch", "", epoch=f"1.{counter}", members=[], base=base)

    stored = Version(50, INITIAL_EPOCH)
    begin(1, "0@0.0")
    assert record.is_void(stored), "nobody has read it"
    begin(2, "50@0.0")
    assert not record.is_void(stored)
    begin(3, "53@1.2")
    assert not open_record(tmp_path).is_void(stored)
    begin(4, "40@0.0")
    assert record.is_void(stored), "its place in the data may be another now"
    begin(5, "50@0.0")
    assert not record.is_void(stored)


def test_lost_residuals_are_told(record: RunRecord):
    record.add_report(ResidualsLost(step=7, ranks=(1, 2)))
    (event,) = record.events_since(0)
    assert event["kind"] == "residuals_lost"
    assert "up to step 7 on rank 1, 2" in event["text"]
    assert event["data"] == {"step": 7, "ranks": (1, 2)}


def test_slow_compression_is_told_once(record: RunRecord):
    sums = GradientSums(1000, 0.1, 0.2, 0.3)
    record.add_step(replace(STEP, sums=sums))
    assert record.events_since(0) == []
    for step in (2, 3):
        record.add_step(replace(STEP, step=step, sums=replace(sums, slow_kernels=True)))
    (event,) = record.events_since(0)
    assert (event["kind"], event["data"]) == ("compression_slow", {"since_step": 2})


def test_digests_of_tensors_are_kept_apart_from_what_is_shown(record: RunRecord):
    record.add_report(TensorDigests(4, EpochId(1, 2), {"/models/model/w": "ab"}))
    (line,) = (record.directory / "digests.jsonl").read_text().splitlines()
    assert json.loads(line) == {"step": 4, "epoch": "1.2", "digests": {"/models/model/w": "ab"}}
    assert record.events_since(0) == []
    assert record.steps_since(0) == []


def test_what_is_run_is_kept_and_a_full_disk_told(record: RunRecord):
    record.keep_job("r-1", make_job(), ())
    assert json.loads((record.directory / "job.json").read_text())["job_id"] == "r-1"
    (record.directory / "job.json").unlink()
    with room_for(5):
        record.keep_job("r-1", make_job(), ())
    assert not (record.directory / "job.json").exists()
    event = record.events_since(0)[0]
    assert event["kind"] == "record_incomplete"
    assert "can't be replayed" in event["text"]


def test_what_a_coordinator_goes_by_is_known_after_very_many_other_events(record: RunRecord):
    record.add_event("isolate", "node b takes no more ranks", host="b")
    for number in range(1100):
        record.add_event("checkpoint", "made", step=number)
    record.add_event("readmit", "node b takes ranks again", host="b")
    for each in (record, open_record(record.directory)):
        assert "isolate" not in [event["kind"] for event in each.events_since(0)]
        assert [event["kind"] for event in each.lasting_events] == ["isolate", "readmit"]


def test_the_time_between_failures_is_told_of_the_whole_run(tmp_path: Path):
    clock = FakeClock()
    record = RunRecord(tmp_path, clock)
    assert record.seconds_between_failures() == 86_400.0
    record.add_event("submitted", "job a")
    clock.now_s += 10 * 86_400.0
    record.add_event("failure", "lost b", worker="b")
    for number in range(1100):
        record.add_event("checkpoint", "made", step=number)
    assert record.seconds_between_failures() == 11 * 86_400.0 / 2


def test_how_much_is_computed_is_told_once_of_each_device(tmp_path: Path):
    record = RunRecord(tmp_path, FakeClock())
    one = WorkDescribed(6000, 8000, 16, "NVIDIA A", 1e6)
    other = replace(one, device="NVIDIA B", peak_flops=3e6)
    for told in (one, one, other, one, other):
        record.add_report(told)
    again = RunRecord(tmp_path, FakeClock())
    again.add_report(one)
    events = [event for event in again.events_since(0) if event["kind"] == "work"]
    assert [event["data"]["device"] for event in events] == ["NVIDIA A", "NVIDIA B"]
