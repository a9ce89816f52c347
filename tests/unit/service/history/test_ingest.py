"""What runs have recorded comes into the history once, whatever happens on the way."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.unit.service.history.records import (
    JOB_ID,
    HandClock,
    Home,
    RecordedRun,
    numbers,
    steps_of,
    tell,
)
from trainflow.coordination.run_state import STOPPED, SUCCESS, Ending, RunState
from trainflow.errors import HistoryError
from trainflow.service.history import ingest
from trainflow.service.history.history import History
from trainflow.service.history.records import Aggregate


@pytest.fixture
def run(home: Home) -> RecordedRun:
    return home.run().keep_job(labels={"team": "a"})


def test_a_home_without_runs_is_empty(history: History, home: Home):
    assert home.take(history) == frozenset()
    assert history.jobs.list().jobs == ()


def test_a_run_is_read_with_all_that_it_has(history: History, home: Home, run: RecordedRun):
    run.event("submitted").event("epoch").steps(1, 2).publish(step=2)
    assert home.take(history) == {JOB_ID}
    found = history.jobs.get(JOB_ID)
    assert (found.job.state, found.job.attempt) == (RunState.RUNNING, 1)
    assert (found.job.name, found.job.labels) == ("tiny", {"team": "a"})
    assert found.job.directory == str(run.directory)
    assert (found.job.created_at_s, found.job.updated_at_s) == (1001.0, 1003.0)
    assert (found.job.last_event, found.job.last_step) == (2, 2)
    assert found.status is not None
    assert found.status["step"] == 2
    assert found.workers[0]["rank"] == 0
    assert [event.kind for event in history.events.after(JOB_ID)] == ["submitted", "epoch"]
    (first, second) = history.series.since(JOB_ID)
    assert first.values["loss"] == Aggregate(0.125, 0.125, 0.125, 1, 0)
    assert second.values["scalars.accuracy"].mean == 0.5
    assert second.values["applied"].mean == 1.0


def test_what_has_not_changed_is_not_read_again(history: History, home: Home, run: RecordedRun):
    run.event("submitted").steps(1)
    ingester = home.ingester(history)
    assert ingester.poll().job_ids == {JOB_ID}
    assert ingester.poll().job_ids == frozenset()
    assert home.ingester(history).poll().job_ids == frozenset()
    run.steps(2)
    assert ingester.poll().job_ids == {JOB_ID}
    assert steps_of(history) == [1, 2]


def test_half_a_line_is_left_until_it_is_whole(history: History, home: Home, run: RecordedRun):
    run.event("submitted").event("epoch")
    path = run.directory / "events.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-5])
    ingester = home.ingester(history)
    ingester.catch_up()
    assert numbers(history) == [1]
    path.write_bytes(whole)
    ingester.catch_up()
    assert numbers(history) == [1, 2]


def test_a_torn_line_is_left_out_and_what_follows_is_taken(
    history: History, home: Home, run: RecordedRun, caplog: pytest.LogCaptureFixture
):
    run.event("submitted").event("epoch")
    path = run.directory / "events.jsonl"
    path.write_bytes(path.read_bytes()[:-5])
    home.take(history)
    run.again().event("coordinator_restarted")
    home.take(history)
    told = [event.kind for event in history.events.after(JOB_ID)]
    assert told == ["submitted", "coordinator_restarted"]
    assert "1 lines are left out" in caplog.text


def test_a_file_that_was_replaced_is_read_from_its_beginning(
    history: History, home: Home, run: RecordedRun, tmp_path: Path
):
    run.event("submitted").event("epoch", members=["a"]).event("waiting").steps(1, 2, 3)
    home.take(history)
    assert history.jobs.get(JOB_ID).ranks == ("a",)
    other = RecordedRun(tmp_path / "other").event("submitted").event("stopping").steps(1, 2)
    for file in ("events.jsonl", "metrics.jsonl"):
        (other.directory / file).replace(run.directory / file)
    home.take(history)
    assert [event.kind for event in history.events.after(JOB_ID)] == ["submitted", "stopping"]
    assert steps_of(history) == [1, 2]
    assert history.jobs.get(JOB_ID).job.last_step == 2
    assert history.jobs.get(JOB_ID).job.state is RunState.STOPPING
    assert history.jobs.get(JOB_ID).ranks == ()


def test_steps_are_asked_again_once_other_events_tell_which_count(
    history: History, home: Home, run: RecordedRun
):
    run.event("submitted").steps(1, 2, 3)
    events = (run.directory / "events.jsonl").read_bytes()
    run.go_back(1, (2, 1))
    home.take(history)
    assert steps_of(history) == [1]
    (run.directory / "events.jsonl").write_bytes(events)
    home.take(history)
    assert steps_of(history) == [1, 2, 3]


def test_an_ending_is_known_when_the_events_are_replaced(
    history: History, home: Home, run: RecordedRun
):
    run.event("submitted")
    run.record.write_ending(JOB_ID, SUCCESS)
    ingester = home.ingester(history)
    ingester.catch_up()
    assert history.jobs.get(JOB_ID).job.state is RunState.SUCCEEDED
    (run.directory / "events.jsonl").unlink()
    run.clock.now_s = 500.0
    run.again().event("record_incomplete").event("submitted")
    ingester.catch_up()
    assert history.jobs.get(JOB_ID).job.state is RunState.SUCCEEDED


def test_a_file_that_was_cut_off_is_believed_once_it_says_something(
    history: History, home: Home, run: RecordedRun
):
    run.event("submitted").event("epoch").event("waiting")
    ingester = home.ingester(history)
    ingester.catch_up()
    path = run.directory / "events.jsonl"
    path.write_bytes(b"")
    ingester.catch_up()
    assert numbers(history) == [1, 2, 3]
    run.again().event("submitted")
    ingester.catch_up()
    assert numbers(history) == [1]


def test_a_folder_that_is_removed_stays_in_the_history(
    history: History, home: Home, run: RecordedRun
):
    run.event("submitted").steps(1)
    ingester = home.ingester(history)
    ingester.catch_up()
    before = tell(history)
    for path in run.directory.iterdir():
        path.unlink()
    ingester.catch_up()
    run.directory.rmdir()
    ingester.catch_up()
    assert tell(history) == before


def test_steps_that_a_run_went_back_from_do_not_count(
    history: History, home: Home, run: RecordedRun
):
    run.event("submitted").steps(1, 2, 3, 4)
    home.take(history)
    run.go_back(2, (2, 1))
    home.take(history)
    assert steps_of(history) == [1, 2]
    run.steps(3, epoch=(2, 1), loss=9.0)
    home.take(history)
    assert steps_of(history) == [1, 2, 3]
    assert history.series.since(JOB_ID, 2)[0].values["loss"].mean == 9.0


def test_going_back_is_seen_without_its_event(history: History, home: Home, run: RecordedRun):
    """The event waits in the coordinator's memory while the disk has room for a line only."""
    run.event("submitted").steps(1, 2, 3, 4)
    home.take(history)
    events = (run.directory / "events.jsonl").read_bytes()
    run.go_back(1, (2, 1)).steps(2, 3, epoch=(2, 1), loss=9.0)
    with_event = (run.directory / "events.jsonl").read_bytes()
    (run.directory / "events.jsonl").write_bytes(events)
    home.take(history)
    assert steps_of(history) == [1, 2, 3]
    (run.directory / "events.jsonl").write_bytes(with_event)
    home.take(history)
    assert steps_of(history) == [1, 2, 3]
    assert [point.values["loss"].mean for point in history.series.since(JOB_ID)] == [0.125, 9, 9]


@pytest.mark.parametrize("ending", [SUCCESS, STOPPED, Ending(RunState.FAILED, "rank 0 raised", 1)])
def test_an_ending_is_kept_with_its_reason(
    history: History, home: Home, run: RecordedRun, ending: Ending
):
    run.event("submitted").steps(1).end(ending).publish(str(ending.state))
    home.take(history)
    job = history.jobs.get(JOB_ID).job
    assert (job.state, job.exit_code, job.reason) == (
        ending.state,
        ending.exit_code,
        ending.reason,
    )
    assert job.ended_at_s == 1002.0
    (attempt,) = history.jobs.attempts(JOB_ID)
    assert (attempt.state, attempt.exit_code, attempt.ended_at_s) == (
        ending.state,
        ending.exit_code,
        1003.0,
    )
    assert history.jobs.unfinished() == ()


def test_a_run_of_an_earlier_release_has_no_status(history: History, home: Home):
    run = home.run().event("submitted").event("epoch").steps(1)
    home.take(history)
    assert history.jobs.get(JOB_ID).job.state is RunState.RUNNING
    (run.directory / "result.json").write_text(
        json.dumps({"job_id": JOB_ID, "state": "succeeded", "reason": "done", "exit_code": 0})
    )
    home.take(history)
    job = history.jobs.get(JOB_ID).job
    assert (job.state, job.name, job.config) == (RunState.SUCCEEDED, "tiny", {})
    assert job.ended_at_s == pytest.approx((run.directory / "result.json").stat().st_mtime)


def test_an_ending_that_found_no_room_is_known_by_the_status(
    history: History, home: Home, run: RecordedRun
):
    ending = {"reason": "every step is done", "exit_code": 0}
    run.event("submitted").publish("succeeded", ending=ending)
    home.take(history)
    job = history.jobs.get(JOB_ID).job
    assert (job.state, job.exit_code, job.reason) == (
        RunState.SUCCEEDED,
        0,
        "every step is done",
    )
    (attempt,) = history.jobs.attempts(JOB_ID)
    assert (attempt.state, attempt.exit_code, attempt.reason, attempt.ended_at_s) == (
        RunState.SUCCEEDED,
        0,
        "every step is done",
        job.ended_at_s,
    )


def test_a_run_whose_head_died_stays_as_it_was_and_grows_old(
    history: History, home: Home, run: RecordedRun, clock: HandClock
):
    run.event("submitted").event("epoch").publish("running")
    home.take(history)
    clock.now_s = run.clock.now_s + 3600
    found = history.jobs.get(JOB_ID)
    assert (found.job.state, found.stale_s) == (RunState.RUNNING, 3600.0)
    assert [job.job_id for job in history.jobs.unfinished()] == [JOB_ID]


def test_damaged_documents_change_nothing(history: History, home: Home, run: RecordedRun):
    run.event("submitted").publish("running")
    home.take(history)
    before = tell(history)
    for file in ("status.json", "result.json", "job.json"):
        (run.directory / file).write_text('{"status": ')
    home.take(history)
    assert tell(history) == before


def test_folders_of_other_names_are_no_runs(history: History, home: Home):
    for name in ("Upper", "a.b", "-x", "a" * 64):
        RecordedRun(home.runs / name).event("submitted")
    (home.runs / "file").write_text("")
    (home.runs / "empty-abcdef").mkdir()
    assert home.take(history) == frozenset()


def test_one_record_that_cannot_be_read_does_not_hold_up_others(
    history: History, home: Home, run: RecordedRun, caplog: pytest.LogCaptureFixture
):
    run.event("submitted")
    broken = home.run("a-broken")
    (broken.directory / "events.jsonl").mkdir()
    ingester = home.ingester(history)
    assert ingester.poll().job_ids == {JOB_ID}
    ingester.poll()
    assert caplog.text.count("a-broken is left out") == 1


def refuse(monkeypatch: pytest.MonkeyPatch, error: Exception) -> list[str]:
    """Have no run taken; returns a list of those that were tried."""
    tries: list[str] = []

    def fail(_database: object, folder: Path, _num_bytes: int) -> None:
        tries.append(folder.name)
        raise error

    monkeypatch.setattr(ingest, "import_run", fail)
    return tries


@pytest.mark.parametrize("error", [HistoryError("no room"), OSError("no such device")])
def test_what_is_lacking_outside_a_record_is_looked_for_again_soon(
    history: History,
    home: Home,
    run: RecordedRun,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
):
    run.event("submitted")
    clock = HandClock()
    ingester = home.ingester(history, clock)
    with monkeypatch.context() as refusing:
        tries = refuse(refusing, error)
        for rest_s in (1, 2, 4, 8, 8):
            before = len(tries)
            ingester.poll()
            clock.now_s += rest_s - 0.5
            ingester.poll()
            assert len(tries) == before + 1
            clock.now_s += 0.5
        assert (ingester.trouble == "no room") == isinstance(error, HistoryError)
    assert ingester.poll().job_ids == {JOB_ID}
    assert ingester.trouble is None


def test_a_record_that_cannot_be_read_for_days_does_not_hold_up_others(
    history: History, home: Home, run: RecordedRun, monkeypatch: pytest.MonkeyPatch
):
    (home.run("a-broken").directory / "events.jsonl").mkdir()
    clock = HandClock()
    ingester = home.ingester(history, clock)
    with monkeypatch.context() as refusing:
        tries = refuse(refusing, OSError("no such device"))
        while len(tries) < 3000:
            ingester.poll()
            clock.now_s += 8
    run.event("submitted")
    assert ingester.poll().job_ids == {JOB_ID}


def test_a_record_that_fails_by_itself_rests_for_a_minute(
    history: History, home: Home, run: RecordedRun, monkeypatch: pytest.MonkeyPatch
):
    run.event("submitted")
    clock = HandClock()
    ingester = home.ingester(history, clock)
    tries = refuse(monkeypatch, KeyError("unforeseen"))
    ingester.poll()
    clock.now_s += 59
    ingester.poll()
    assert len(tries) == 1
    clock.now_s += 1
    ingester.poll()
    assert len(tries) == 2


def test_a_run_whose_folder_is_gone_troubles_no_longer(
    history: History, home: Home, run: RecordedRun, monkeypatch: pytest.MonkeyPatch
):
    run.event("submitted")
    ingester = home.ingester(history)
    refuse(monkeypatch, HistoryError("no room"))
    ingester.poll()
    assert ingester.trouble == "no room"
    run.directory.rename(run.directory.parent.parent / "elsewhere")
    ingester.poll()
    assert ingester.trouble is None


def test_a_run_that_has_ended_is_glanced_at_until_its_folder_changes(
    history: History, home: Home, run: RecordedRun
):
    clock = HandClock()
    run.event("submitted").end(STOPPED)
    ingester = home.ingester(history, clock)
    ingester.catch_up()
    run.steps(1)  # a file is made
    assert ingester.poll().job_ids == {JOB_ID}
    run.event("epoch")  # a line is added
    assert ingester.poll().job_ids == frozenset()
    clock.now_s += 60
    assert ingester.poll().job_ids == {JOB_ID}
    clock.now_s += 60
    assert ingester.poll().job_ids == frozenset()


def test_a_long_file_is_read_in_slices(history: History, home: Home, run: RecordedRun):
    run.event("submitted").steps(*range(1, 30))
    ingester = home.ingester(history, slice_bytes=1500)
    assert ingester.poll().has_more
    ingester.catch_up()
    assert steps_of(history) == [*range(1, 30)]


def test_an_end_is_not_known_before_the_events_that_lead_to_it(
    history: History, home: Home, run: RecordedRun
):
    for _ in range(30):
        run.event("note", "n" * 100)
    run.end(STOPPED).publish("stopped", ending=asdict(STOPPED))
    ingester = home.ingester(history, slice_bytes=1500)
    while ingester.poll().has_more:
        assert not history.jobs.get(JOB_ID).job.is_finished
    assert history.jobs.get(JOB_ID).job.state is RunState.STOPPED
    assert history.jobs.get(JOB_ID).status["state"] == "stopped"
