"""Where a run's time goes, from what it records; also past a coordinator that died."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.full_disk import room_for
from tests.unit.coordination.fakes import FakeClock
from tests.unit.coordination.noted_export import NotedExport
from tests.unit.coordination.test_run_record import STEP
from trainflow.coordination import goodput_watch
from trainflow.coordination.goodput_watch import GoodputWatch, describe_goodput
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.run_state import RunState
from trainflow.epochs import EpochId
from trainflow.monitoring import metrics

IDS = ["slot0-1.0", "slot1-1.1", "slot2-1.2"]
SPARE = "slot3-1.3"
LOST = "lost slot1-1.1 (rank 1): its actor exited"
CUT, CUT_COST = "a collective failed on slot0-1.0", "recovery_collective"


@pytest.fixture(autouse=True)
def kept_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(goodput_watch, "KEEP_EVERY", 4)


class Run:
    """Three members and a spare, whose steps take a second."""

    def __init__(self, directory: Path):
        self.clock = FakeClock()
        self._directory = directory
        self._counter = 0
        self.open()

    def open(self) -> None:
        """Begin, or go on with a new coordinator."""
        self.record = RunRecord(self._directory, self.clock)
        self.export = NotedExport()
        self.watch = GoodputWatch(self.record, self.export, self.clock)
        self.record.follow(self.watch)

    def begin(self, base: int = 0) -> None:
        self.record.add_event("submitted", "job a")
        self.tell("launched", 2.0, workers=[*IDS, SPARE])
        self.tell("warm", 8.0, worker=SPARE)
        self.form(2.0, IDS, base)

    def tell(self, kind: str, after_s: float, text: str = "", **data: Any) -> None:
        self.clock.now_s += after_s
        self.record.add_event(kind, text, **data)

    def form(self, after_s: float, members: list[str], base: int = 0) -> None:
        self._counter += 1
        epoch = EpochId(1, self._counter)
        self.tell("epoch", after_s, epoch=str(epoch), members=members, base=f"{base}@1.1")

    def steps(self, until: int, **others: Any) -> None:
        for step in range(self.record.last_step + 1, until + 1):
            self.clock.now_s += 1.0
            values = {"committed_at_s": self.clock.now_s, "epoch": EpochId(1, self._counter)}
            self.record.add_step(replace(STEP, step=step, **values | others))

    def fail_over(self) -> None:
        self.tell("failure", 0.5, LOST, worker=IDS[1], rank=1)
        self.form(0.5, [IDS[0], SPARE, IDS[2]], base=self.record.last_step)

    def show_after(self, passed_s: float, cause: str) -> float | None:
        """Return a cause's counter, once some time has passed."""
        self.clock.now_s += passed_s
        self.watch.tick()
        return self.export.value(metrics.BADPUT, cause=cause)

    def seconds(self) -> dict[str, float]:
        return self.watch.describe()["seconds"]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    run = Run(tmp_path)
    run.begin()
    return run


def test_a_run_with_a_loss_is_accounted_for(run: Run):
    run.steps(10, phases_s={"data": 0.25, "snapshot": 0.125, "compute": 0.625})
    run.fail_over()
    run.steps(12)
    assert run.seconds() == {
        "waiting": 8.0,
        "start": 3 * 10.0 + 8.0,
        "data": 7.5,
        "checkpoint": 3.75,
        "productive": 30 - 11.25 + 3.0,
        "wasted": 1.5,
        "recovery_died": 2 * 0.5 + 3.0,
        "idle": 2.0 + 11.0,
    }
    assert run.watch.describe()["worker_s"] == sum(run.seconds().values())


def test_a_new_coordinator_goes_on_with_the_very_ledger(run: Run):
    run.steps(10)
    run.fail_over()
    run.steps(17)
    before = run.watch._ledger.to_json()
    run.open()
    assert run.watch._ledger.to_json() == before
    run.steps(20)
    run.tell("failure", 0.5, LOST, worker=IDS[0])
    run.form(0.5, [SPARE, IDS[2]], base=20)
    after = run.watch._ledger.to_json()
    run.open()
    assert run.watch._ledger.to_json() == after


def test_one_that_was_kept_never_is_made_from_all_that_is_recorded(run: Run):
    run.steps(3)
    before = run.watch._ledger.to_json()
    assert not (run.record.directory / "ledger.json").exists()
    run.open()
    assert run.watch._ledger.to_json() == before


@pytest.mark.parametrize("num_before", [3, 9])
def test_events_that_are_too_many_for_memory_lose_nobody(run: Run, num_before: int):
    """Also if the ledger was kept before all of them, or never."""
    run.steps(num_before)
    run.fail_over()
    for number in range(1100):
        run.tell("noise", 0.0, str(number))
    before = run.watch._ledger.to_json()
    assert len(before["members"]) == len(IDS)
    assert (run.record.directory / "ledger.json").exists() == (num_before > 4)
    run.open()
    assert run.watch._ledger.to_json() == before


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_later_attempt_goes_on_and_the_time_between_is_nobody_s(run: Run, *, is_killed: bool):
    run.steps(10)
    run.clock.now_s += 2.0
    if is_killed:
        run.record.add_event("checkpoint", "the last that is known of it", step=8)
    else:
        run.watch.end(RunState.FAILED)
    run.clock.now_s += 3600.0
    RunRecord(run.record.directory, run.clock).begin_attempt(2)
    run.open()
    run.record.begin_after(8, "a checkpoint", EpochId(1, 2))
    run.begin(base=8)  # with workers of the same names
    run.steps(10)
    run.watch.end(RunState.SUCCEEDED)
    assert run.seconds() == {
        "waiting": 2 * 8.0,
        "start": 2 * (3 * 10.0 + 8.0),
        "productive": 24.0 + 6.0,
        "wasted": 3 * 2.0 + 6.0,  # what came after the newest step, and two steps
        "idle": 14.0 + 4.0,
    }
    told = [e["data"]["worker_s"] for e in run.record.events_since(0) if e["kind"] == "goodput"]
    assert told[-1] == 4 * 24.0 + 4 * 14.0


@pytest.mark.parametrize("kind", ["resuming", "stopped", "failed"])
def test_time_until_others_tell_of_a_run_that_is_gone_is_nobody_s(run: Run, kind: str):
    run.steps(10)
    run.tell("checkpoint", 2.0, "the last that is known of it", step=8)
    before = run.watch.describe()["worker_s"]
    run.tell(kind, 3600.0)
    RunRecord(run.record.directory, run.clock).begin_attempt(2)
    run.open()
    assert run.watch.describe()["worker_s"] == before + 3 * 2.0  # members up to the checkpoint


@pytest.mark.parametrize("is_launching", [False, True])
def test_the_wait_for_room_counts_whole_where_a_coordinator_dies_in_it(
    tmp_path: Path, *, is_launching: bool
):
    run = Run(tmp_path)
    run.record.add_event("submitted", "job a")
    run.clock.now_s += 50.0
    run.open()
    if is_launching:
        run.tell("coordinator_restarted", 2.0, workers=[*IDS, SPARE])
    else:
        run.tell("submitted", 1.0)
        run.tell("launched", 1.0, workers=[*IDS, SPARE])
    run.tell("warm", 8.0, worker=SPARE)
    run.form(2.0, IDS)
    run.steps(1)
    assert run.seconds()["waiting"] == 4 * 52.0
    assert run.seconds()["start"] == 3 * 10.0 + 8.0


def test_workers_of_a_run_that_is_launched_anew_cost_nothing_more(run: Run):
    """All nodes were lost while there was no coordinator: nobody tells of their deaths."""
    run.steps(4)
    run.clock.now_s += 100.0
    run.open()
    run.tell("submitted", 0.0)
    run.tell("launched", 1.0, workers=["slot0-2.0"])
    assert run.watch.describe()["worker_s"] == 4 * 16.0 + 1.0


def test_workers_that_went_while_there_was_no_coordinator_cost_nothing_more(run: Run):
    run.steps(4)
    run.tell("respawned", 0.0, worker="slot4-1.r1")
    run.tell("coordinator_restarted", 3.0, workers=[*IDS])
    run.clock.now_s += 100.0
    run.watch.tick()
    assert run.seconds()["idle"] == 2.0 + 4.0 + 3.0
    assert run.seconds()["start"] == 38.0 + 3.0


def test_one_that_is_given_up_before_it_began_costs_nothing_more(run: Run):
    run.tell("respawned", 1.0, worker="slot4-1.r1")
    run.tell("withdrawn", 5.0, worker="slot4-1.r1")
    run.clock.now_s += 100.0
    run.watch.tick()
    assert run.seconds()["start"] == 38.0 + 5.0


def test_one_that_is_damaged_is_made_from_what_is_recorded(run: Run):
    run.steps(10)
    before = run.watch._ledger.to_json()
    (run.record.directory / "ledger.json").write_text('{"event": ')
    run.open()
    assert run.watch._ledger.to_json() == before


def test_steps_that_are_void_were_wasted(run: Run):
    run.steps(10)
    run.record.begin_after(6, "a checkpoint", EpochId(2, 1))
    run.form(0.0, IDS, base=6)
    assert (run.seconds()["productive"], run.seconds()["wasted"]) == (18.0, 12.0)


@pytest.mark.parametrize("is_kept", [False, True])
@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("wrong_by_s", [-3600.0, -5.0, 0.0, 5.0, 3600.0])
def test_a_rank_whose_clock_is_wrong_changes_nothing(
    run: Run, wrong_by_s: float, *, is_restarted: bool, is_kept: bool
):
    for step in range(1, 11):
        run.steps(step, committed_at_s=run.clock.now_s + 1.0 + wrong_by_s)
    run.fail_over()
    for step in range(11, 14):
        run.steps(step, committed_at_s=run.clock.now_s + 1.0 + wrong_by_s)
    if not is_kept:
        (run.record.directory / "ledger.json").unlink()
    if is_restarted:
        run.open()
    assert run.seconds() == {
        "waiting": 8.0,
        "start": 3 * 10.0 + 8.0,
        "productive": 3 * 10.0 + 3 * 2.0,
        "wasted": 3 * 0.5,
        "recovery_died": 2 * 0.5 + 3.0,
        "idle": 2.0 + 11.0,
    }


def test_a_coordinator_whose_clock_is_behind_comes_to_the_same_as_the_next(run: Run):
    run.steps(3)
    run.clock.now_s -= 3600.0
    run.open()
    run.fail_over()
    run.steps(6)
    before = run.watch._ledger.to_json()
    (run.record.directory / "ledger.json").unlink()
    run.open()
    assert run.watch._ledger.to_json() == before


def test_steps_of_an_earlier_release_count_when_the_rank_says(run: Run):
    run.steps(10)
    run.fail_over()
    run.steps(13)
    before = run.watch._ledger.to_json()
    path = run.record.directory / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    for line in lines:
        del line["heard_at_s"], line["after_event"]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    (run.record.directory / "ledger.json").unlink()
    run.open()
    assert run.watch._ledger.to_json() == before


def test_steps_that_waited_for_a_coordinator_count_when_they_were_committed(run: Run):
    now_s = run.clock.now_s
    run.clock.now_s += 100.0
    for step in range(1, 6):
        run.record.add_step(
            replace(STEP, step=step, epoch=EpochId(1, 1), committed_at_s=now_s + step)
        )
    assert run.seconds()["productive"] == 15.0


def test_badput_is_shown_by_cause_now_and_then(run: Run):
    run.steps(4)
    run.watch.tick()
    assert run.export.value(metrics.BADPUT, cause="idle") == 6.0
    run.clock.now_s += 1.0
    run.watch.tick()
    assert run.export.value(metrics.BADPUT, cause="idle") == 6.0
    run.clock.now_s += 9.0
    run.watch.tick()
    assert run.export.value(metrics.BADPUT, cause="idle") == 16.0
    assert run.export.value(metrics.GOODPUT) == pytest.approx(12 / (8 + 38 + 12 + 16))
    run.open()
    run.clock.now_s += 10.0
    run.watch.tick()
    assert run.export.value(metrics.BADPUT, cause="idle") == 10.0, "the first one showed the rest"


def test_what_nothing_commits_in_is_shown_as_it_passes(run: Run):
    run.steps(4)
    run.tell("failure", 0.5, LOST, worker=IDS[1])
    run.tell("waiting", 1.5, "training waits for workers: 1 of 3 are warm")
    ratios: list[float] = []
    for hours in range(1, 4):
        assert run.show_after(3600.0, "waiting") == 8.0 + 2 * 3600.0 * hours
        assert run.export.value(metrics.BADPUT, cause="recovery_died") == 2 * 1.5
        assert run.seconds()["waiting"] == 8.0 + 2 * 3600.0 * hours
        assert run.watch.describe()["worker_s"] == sum(run.seconds().values())
        ratios.append(run.export.value(metrics.GOODPUT) or 0.0)
    assert ratios == sorted(ratios, reverse=True)
    assert ratios[0] > ratios[-1] == run.watch.describe()["ratio"]


def test_what_one_coordinator_has_shown_the_next_does_not_show_again(run: Run):
    run.steps(4)
    run.tell("waiting", 2.0, "training waits for workers: 2 of 3 are warm")
    assert run.show_after(3600.0, "waiting") == 8.0 + 3 * 3600.0
    run.open()
    assert run.show_after(10.0, "waiting") == 3 * 10.0
    run.form(0.0, IDS, base=4)
    assert run.show_after(5.0, "waiting") == 3 * 10.0


def test_a_step_that_is_heard_late_takes_nothing_off_a_counter(run: Run):
    """It was committed 8 s after the loss was heard of, which is known 3 s after that."""
    run.steps(4)
    run.tell("failure", 1.0, CUT, epoch="1.1")
    late = {"step": 5, "epoch": EpochId(1, 1), "committed_at_s": run.clock.now_s + 8.0}
    assert run.show_after(11.0, CUT_COST) == 3 * 11.0
    run.record.add_step(replace(STEP, **late))
    assert run.show_after(5.0, CUT_COST) == 3 * 11.0
    assert run.seconds()[CUT_COST] == 3 * 8.0
    assert run.show_after(5.0, CUT_COST) == run.seconds()[CUT_COST] == 3 * 13.0


def test_what_only_seemed_to_recover_while_there_was_no_coordinator_does_not_lack_later(run: Run):
    """A recovery that goes on when the next one begins is over, once its steps are heard of."""
    run.steps(4)
    run.tell("failure", 0.0, CUT, epoch="1.1")
    run.form(1.0, IDS, base=4)
    begun_at_s = run.clock.now_s
    run.clock.now_s += 100.0
    run.open()
    for step in (5, 6):
        values = {"epoch": EpochId(1, 2), "committed_at_s": begun_at_s + step - 4}
        run.record.add_step(replace(STEP, step=step, **values))
    assert run.show_after(0.0, CUT_COST) == 0.0
    assert run.seconds()[CUT_COST] == 3 * 2.0
    run.tell("failure", 0.0, CUT, epoch="1.2")
    unfound_s = 100.0 - 2.0 - 1.0  # since the newest step, less a try as long as that
    assert run.show_after(9.0, CUT_COST) == 3 * (unfound_s + 9.0)


def test_the_end_is_told_once_with_what_took_most(run: Run):
    run.steps(10)
    run.clock.now_s += 2.0
    run.watch.end(RunState.SUCCEEDED)
    event = run.record.events_since(0)[-1]
    assert event["kind"] == "goodput"
    assert event["data"]["seconds"]["checkpoint"] == 6.0
    assert "worker-seconds went into steps that count; most of the rest: start" in event["text"]
    run.watch.end(RunState.SUCCEEDED)
    assert [e["kind"] for e in run.record.events_since(0)].count("goodput") == 1


def test_a_run_without_workers_has_nothing_to_tell(tmp_path: Path):
    run = Run(tmp_path)
    run.watch.tick()
    run.watch.end(RunState.FAILED)
    assert run.record.events_since(0) == []
    assert run.watch.describe() == {"ratio": None, "worker_s": 0.0, "seconds": {}}


def test_on_a_full_disk_nothing_is_kept_and_all_goes_on(run: Run):
    with room_for(0):
        run.steps(10)
    assert run.seconds()["productive"] == 30.0


def test_what_there_is_to_tell_is_shares_of_the_whole():
    seconds = {"productive": 90.0, "start": 6.0, "idle": 4.0}
    text = describe_goodput({"ratio": 0.9, "worker_s": 100.0, "seconds": seconds})
    assert text == (
        "90.0% of 100.0 worker-seconds went into steps that count; most of the rest: start 6.0%, "
        "idle 4.0%"
    )
    text = describe_goodput({"ratio": 1.0, "worker_s": 1.0, "seconds": {"productive": 1.0}})
    assert text == "100.0% of 1.0 worker-seconds went into steps that count"
