"""Commands about jobs, asked of a service that really listens; of a cluster, see test_main."""

import errno
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer import Exit

from tests.unit.cli.conftest import CallMain
from tests.unit.client.conftest import JOB, Service, service
from tests.unit.service.runs import RecordedRun
from trainflow.cli.exit_codes import ExitCode
from trainflow.cli.following import followed
from trainflow.cli.service_jobs import describe_age, is_lost
from trainflow.client import TrainFlowClient
from trainflow.client.problems import Problem, as_error
from trainflow.client.requests import LogPiece, unreachable
from trainflow.clock import SYSTEM_CLOCK
from trainflow.coordination.log_segments import append_to_log
from trainflow.coordination.run_state import RunState
from trainflow.service.cluster import DriverState
from trainflow.service.documents import JobDetails, describe_briefly
from trainflow.service.history.records import Job
from trainflow.service.record_documents import WorkersDocument

__all__ = ["service"]

ID = "tiny-abcdef"
Captured = pytest.CaptureFixture[str]


@pytest.fixture
def ready(service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Service:
    """A service that the environment names, with a token."""
    path = tmp_path / "token"
    path.write_text(service.token)
    monkeypatch.setenv("TRAINFLOW_SERVER", service.url)
    monkeypatch.setenv("TRAINFLOW_TOKEN_FILE", str(path))
    return service


def publish(service: Service, run: RecordedRun, as_of_s: float, **status: Any) -> None:
    """Have a run's coordinator publish that it runs."""
    told = {"state": "running", "as_of_s": as_of_s, "ending": None} | status
    (run.directory / "status.json").write_text(json.dumps({"status": told, "workers": []}))
    service.ingester.catch_up()


def record(service: Service, job_id: str = ID, state: RunState | None = None) -> RecordedRun:
    run = service.record(job_id)
    run.train(range(1, 4))
    if state is not None:
        run.end(state)
    service.ingester.catch_up()
    return run


def test_a_job_is_submitted_once_by_its_key_and_what_comes_next_is_said(
    ready: Service, call_main: CallMain, job_file: Path, capsys: Captured
):
    options = ["--set", "training.max_steps=7", "--idempotency-key", "one"]
    assert call_main("submit", job_file, *options) == ExitCode.SUCCESS
    captured = capsys.readouterr()
    job_id = captured.out.strip()
    assert f"trainflow events {job_id} -f\n" in captured.err
    assert ready.history.jobs.get(job_id).job.config["training"]["max_steps"] == 7
    call_main("submit", job_file, *options, "-o", "json")
    assert json.loads(capsys.readouterr().out)["job_id"] == job_id
    assert len(ready.cluster.drivers) == 1


@pytest.mark.parametrize("key", ["", " "])
def test_a_key_that_is_empty_is_no_key(
    key: str, ready: Service, call_main: CallMain, job_file: Path, capsys: Captured
):
    assert call_main("submit", job_file, f"--idempotency-key={key}") == ExitCode.USAGE
    assert "--idempotency-key: got an empty one" in capsys.readouterr().err
    assert len(ready.cluster.drivers) == 0


def test_a_job_may_have_numbers_and_dates_that_json_lacks(
    ready: Service, call_main: CallMain, tmp_path: Path, capsys: Captured
):
    file = tmp_path / "job.toml"
    file.write_text(
        'name = "tiny"\nentrypoint = "tiny_job:train"\ndata = {dataset = "tiny_job:points"}\n'
        "training = {max_steps = 1, global_batch_size = 8, microbatch_size = 2}\n"
        "workers = {minimum = 1, target = 2}\nargs = {most = inf, since = 2026-01-02}\n"
    )
    assert call_main("submit", file) == ExitCode.SUCCESS
    sent = tmp_path / "home" / "submissions" / capsys.readouterr().out.strip() / "job.json"
    assert json.loads(sent.read_text())["args"] == {"most": math.inf, "since": "2026-01-02"}


def lose_answers(monkeypatch: pytest.MonkeyPatch, loss: BaseException) -> None:
    """Have the service take jobs, and its answers lost."""

    class Losing(TrainFlowClient):
        def submit(self, *given: Any, **options: Any) -> JobDetails:
            super().submit(*given, **options)
            raise loss

    monkeypatch.setattr("trainflow.client.TrainFlowClient", Losing)


@pytest.mark.parametrize(
    ("loss", "code"),
    [
        (unreachable("http://here", OSError("reset")), ExitCode.UNREACHABLE),
        (as_error(Problem("cluster-unreachable", 503, "no")), ExitCode.UNREACHABLE),
        (as_error(Problem("too-many-requests", 429, "not now")), ExitCode.UNREACHABLE),
        (as_error(Problem("internal", 500, "oh")), ExitCode.FAILED),
        (as_error(Problem("", 504, "a proxy's")), ExitCode.UNREACHABLE),
        (KeyboardInterrupt(), ExitCode.DETACHED),
    ],
)
def test_a_job_that_may_have_been_taken_is_submitted_again_by_the_key_that_is_told(
    loss: BaseException,
    code: ExitCode,
    ready: Service,
    call_main: CallMain,
    job_file: Path,
    capsys: Captured,
):
    with pytest.MonkeyPatch.context() as patch:
        lose_answers(patch, loss)
        assert call_main("submit", job_file) == code
    captured = capsys.readouterr()
    told = re.search(r"submit it again as before, with (--idempotency-key) (\S+)\n", captured.err)
    assert captured.out == ""
    assert told is not None
    assert call_main("submit", job_file, *told.groups()) == ExitCode.SUCCESS
    assert len(ready.cluster.drivers) == 1
    assert capsys.readouterr().out.strip() in str(list(ready.cluster.drivers))


def test_the_key_that_was_given_is_told_again(
    ready: Service,
    call_main: CallMain,
    job_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Captured,
):
    lose_answers(monkeypatch, KeyboardInterrupt())
    call_main("submit", job_file, "--idempotency-key", "mine")
    assert "with --idempotency-key mine\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    "refusal",
    [
        Problem("invalid-configuration", 422, "no"),
        Problem("idempotency-key-reused", 409, "no"),
        Problem("cluster-refused", 502, "no"),
        Problem("forbidden", 403, "no"),
        Problem("", 404, "none of TrainFlow's"),
    ],
)
def test_of_a_job_that_was_refused_no_key_is_told(
    refusal: Problem,
    ready: Service,
    call_main: CallMain,
    job_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Captured,
):
    lose_answers(monkeypatch, as_error(refusal))
    assert call_main("submit", job_file) != ExitCode.SUCCESS
    assert "idempotency-key" not in capsys.readouterr().err


def test_the_environment_changes_a_submitted_job_as_it_does_one_that_is_run(
    ready: Service,
    call_main: CallMain,
    job_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Captured,
):
    monkeypatch.setenv("TRAINFLOW__TRAINING__SEED", "11")
    assert call_main("submit", job_file) == ExitCode.SUCCESS
    job = ready.history.jobs.get(capsys.readouterr().out.strip()).job
    assert job.config["training"]["seed"] == 11


def test_a_bad_job_is_refused_before_anybody_is_asked(
    call_main: CallMain, job_file: Path, capsys: Captured
):
    nowhere = "--server=http://127.0.0.1:9"
    assert call_main("submit", job_file, nowhere, "--set", "workers.minimum=0") == ExitCode.USAGE
    assert "workers.minimum: got 0" in capsys.readouterr().err
    assert call_main("submit", "absent.yaml", nowhere) == ExitCode.USAGE


def test_a_folder_that_is_not_allowed_says_what_to_change(
    ready: Service, call_main: CallMain, job_file: Path, capsys: Captured
):
    assert call_main("submit", job_file, "--working-directory", ".") == ExitCode.USAGE
    error = capsys.readouterr().err
    assert f"working_directory: got '{job_file.parent}'" in error
    assert "add its folder to roots" in error


def test_jobs_are_listed_as_asked(ready: Service, call_main: CallMain, capsys: Captured):
    record(ready, "old-abcdef", RunState.STOPPED)
    record(ready)
    assert call_main("list") == ExitCode.SUCCESS
    heading, *rows = capsys.readouterr().out.splitlines()
    assert heading.split()[:3] == ["JOB_ID", "STATE", "STEP"]
    assert {row.split()[0] for row in rows} == {ID, "old-abcdef"}
    call_main("list", "--state", "stopped", "-o", "json")
    assert [row["job_id"] for row in json.loads(capsys.readouterr().out)] == ["old-abcdef"]
    call_main("list", "--limit", "1", "-o", "yaml")
    assert len(yaml.safe_load(capsys.readouterr().out)) == 1
    call_main("list", "--label", "team=other", "-o", "json")
    assert json.loads(capsys.readouterr().out) == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--state", "asleep"], "expected one of pending, running"),
        (["--label", "team"], "--label: got 'team'"),
        (["--label", "a=1", "--label", "a=2"], "each key once"),
        (["--server", "here"], "expected a URL"),
        (["--server", "http://a", "--address", "b:1"], "expected one of them"),
    ],
)
def test_wrong_filters_are_refused(
    options: list[str], said: str, home: Path, call_main: CallMain, capsys: Captured
):
    assert call_main("list", *options) == ExitCode.USAGE
    assert said in capsys.readouterr().err


UNHEARD = (
    "s old: its newest attempt has not begun, and this is of the one before; or the job's "
    "coordinator restarts"
)


def test_a_status_is_told_with_its_age(ready: Service, call_main: CallMain, capsys: Captured):
    run = record(ready)
    run.train(range(4, 8))
    publish(ready, run, 1000.0, step=3, max_steps=10, goodput={"ratio": 0.931})
    assert call_main("status") == ExitCode.SUCCESS
    captured = capsys.readouterr()
    assert "max_steps    10" in captured.out
    assert "goodput      93.1%" in captured.out
    assert "step         7\n" in captured.out, "as in a list, where the status lags behind"
    assert f"{UNHEARD}, can't write its record" in captured.err
    call_main("status", ID, "-o", "json")
    assert json.loads(capsys.readouterr().out)["status"]["max_steps"] == 10
    ready.cluster.coordinators.add(ID)
    assert call_main("stop", ID) == ExitCode.SUCCESS
    captured = capsys.readouterr()
    assert "stops at its next step boundary" in captured.out
    assert UNHEARD in captured.err, "nobody may be there to stop"
    call_main("list")
    heading, row = (line.split() for line in capsys.readouterr().out.splitlines())
    assert float(row[heading.index("STALE_S")]) > 60


def test_a_status_tells_how_earlier_attempts_ended(
    ready: Service, call_main: CallMain, capsys: Captured
):
    run = record(ready)
    call_main("status")
    assert "EARLIER" not in capsys.readouterr().out
    run.record.begin_attempt(2)
    ready.ingester.catch_up()
    assert call_main("status") == ExitCode.SUCCESS
    heading, row = capsys.readouterr().out.splitlines()[-2:]
    assert heading.split() == ["EARLIER", "STATE", "BEGAN", "ENDED", "EXIT_CODE", "REASON"]
    assert re.match(r"1 +lost +\d{4}-.*Z +\d{4}-.*Z +- +its cluster died before it had ended", row)
    call_main("status", ID, "-o", "json")
    attempts = json.loads(capsys.readouterr().out)["attempts"]
    assert [each["state"] for each in attempts] == ["lost", None]


def test_of_several_jobs_that_go_on_one_is_to_be_named(
    ready: Service, call_main: CallMain, capsys: Captured
):
    assert call_main("status") == ExitCode.NOT_FOUND
    record(ready)
    record(ready, "other-abcdef")
    assert call_main("workers") == ExitCode.USAGE
    assert f"{ID}, other-abcdef" in capsys.readouterr().err.replace(
        "other-abcdef, " + ID, f"{ID}, other-abcdef"
    )
    assert call_main("workers", ID) == ExitCode.SUCCESS
    assert call_main("workers", "absent") == ExitCode.NOT_FOUND
    assert call_main("workers", "../cluster") == ExitCode.USAGE


def test_workers_of_a_job_that_ended_unheard_are_not_said_to_come_back(
    ready: Service, call_main: CallMain, capsys: Captured
):
    run = record(ready)
    publish(ready, run, as_of_s=SYSTEM_CLOCK.unix_s() - 60.0)
    run.end()
    ready.ingester.catch_up()
    assert call_main("workers", ID) == ExitCode.SUCCESS
    told = capsys.readouterr().err
    assert "s old when it ended" in told
    assert "restarts" not in told


def test_workers_are_written_for_programs_as_the_service_has_answered(
    ready: Service, call_main: CallMain, capsys: Captured
):
    publish(ready, record(ready), SYSTEM_CLOCK.unix_s())
    assert call_main("workers", ID, "-o", "json") == ExitCode.SUCCESS
    answer = json.loads(capsys.readouterr().out)
    assert answer.keys() == {"workers", "published_at_s", "stale_s", "history_problem"}
    assert answer["workers"] == []
    assert answer["published_at_s"] is not None


def record_an_hour_ago(service: Service, job_id: str) -> None:
    """Record a job of which nothing was heard for an hour."""
    run = service.record(job_id)
    path = run.directory / "events.jsonl"
    events = [json.loads(line) for line in path.read_text().splitlines()]
    at_s = SYSTEM_CLOCK.unix_s() - 3600
    path.write_text("".join(json.dumps(each | {"at_s": at_s - 1}) + "\n" for each in events))
    publish(service, run, at_s)


def test_a_job_that_has_lost_its_cluster_counts_where_no_other_one_goes_on(
    ready: Service, call_main: CallMain, capsys: Captured
):
    def choose() -> str:
        assert call_main("status", "-o", "json") == ExitCode.SUCCESS
        return json.loads(capsys.readouterr().out)["job_id"]

    record_an_hour_ago(ready, "lost-abcdef")
    assert choose() == "lost-abcdef"
    live = record(ready)
    publish(ready, live, SYSTEM_CLOCK.unix_s())
    assert choose() == ID
    record_an_hour_ago(ready, "newer-abcdef")
    assert choose() == ID


@pytest.mark.parametrize(
    ("state", "stale_s", "expected"),
    [
        (RunState.RUNNING, None, False),
        (RunState.RUNNING, 59.0, False),
        (RunState.RUNNING, 61.0, True),
        (RunState.STOPPING, 61.0, True),
        (RunState.PENDING, 61.0, False),
    ],
)
def test_a_job_is_lost_that_was_not_heard_of_for_a_minute(
    state: RunState, stale_s: float | None, *, expected: bool
):
    job = Job(ID, "tiny", state, {}, {}, 2, "/", 0.0, 0.0, None, None, None, 5, 0, None)
    assert is_lost(describe_briefly(job, stale_s)) == expected


def test_a_job_is_stopped_and_resumed(ready: Service, call_main: CallMain, capsys: Captured):
    with TrainFlowClient(ready.url, ready.token) as client:
        job_id = client.submit(JOB).job_id
    ready.cluster.coordinators.add(job_id)
    assert call_main("resume", job_id) == ExitCode.CONFLICT
    assert call_main("stop", job_id) == ExitCode.SUCCESS
    assert "stops at its next step boundary" in capsys.readouterr().out
    assert ready.cluster.stopped == [job_id]
    ready.cluster.coordinators.clear()
    ready.cluster.states[f"{job_id}-a1"] = DriverState.ENDED
    assert call_main("resume", job_id) == ExitCode.SUCCESS
    assert "goes on as attempt 2" in capsys.readouterr().out


def test_a_job_that_nobody_is_at_work_on_has_stopped_at_once(
    ready: Service, call_main: CallMain, capsys: Captured
):
    with TrainFlowClient(ready.url, ready.token) as client:
        job_id = client.submit(JOB).job_id
    ready.cluster.states[f"{job_id}-a1"] = DriverState.ENDED
    assert call_main("stop", job_id) == ExitCode.SUCCESS
    assert f"{job_id} is stopped: nobody is at work on it" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("stale_s", "problem", "state", "said"),
    [
        (1.0, "the disk is full", "running", ""),
        (28.0, "the disk is full", "running", "28 s old. The history can't be kept up for now: t"),
        (28.0, None, "running", "restarts, can't write its record, or its cluster is gone"),
        (28.0, None, "succeeded", "was 28 s old when it ended"),
        (28.0, None, "pending", "28 s old: its newest attempt has not begun"),
        (None, "the disk is full", "pending", "of before it began. The history can't be kept up"),
        (None, None, "pending", "it has been submitted, and not begun"),
    ],
)
def test_what_is_old_says_why_as_far_as_that_is_known(
    stale_s: float | None, problem: str | None, state: str, said: str
):
    told = WorkersDocument(
        workers=[], published_at_s=None, stale_s=stale_s, history_problem=problem
    )
    notice = describe_age(told, RunState(state))
    assert said in notice
    assert bool(notice) == bool(said)


def test_events_are_printed_in_every_form(ready: Service, call_main: CallMain, capsys: Captured):
    run = service_run = record(ready)
    run.happen(2, "it \x1b[31mhappened\nand more")
    service_run.end()
    ready.ingester.catch_up()
    assert call_main("events", ID, "--after", "1") == ExitCode.SUCCESS
    lines = capsys.readouterr().out.splitlines()
    assert "    2  note: it \\x1b[31mhappened" in lines[0]
    assert len(lines) == 3
    call_main("events", ID, "-o", "json")
    assert [each["number"] for each in json.loads(capsys.readouterr().out)] == [1, 2, 3, 4]
    call_main("events", ID, "-f", "-o", "json")
    lines = capsys.readouterr().out.splitlines()
    assert [json.loads(line)["number"] for line in lines] == [1, 2, 3, 4]
    call_main("events", ID, "-f", "-o", "yaml")
    documents = list(yaml.safe_load_all(capsys.readouterr().out))
    assert [each["number"] for each in documents] == [1, 2, 3, 4]


def test_a_log_is_printed_as_it_is(ready: Service, call_main: CallMain, capsys: Captured):
    run = record(ready, state=RunState.SUCCEEDED)
    assert call_main("logs", ID) == ExitCode.NOT_FOUND
    (run.directory / "driver.log").write_bytes(b"line\n" * 3)
    capsys.readouterr()
    assert call_main("logs", ID) == ExitCode.SUCCESS
    assert call_main("logs", ID, "--offset", "10", "-f") == ExitCode.SUCCESS
    assert capsys.readouterr().out == "line\n" * 4
    assert call_main("logs", ID, "--offset", str(2**53 - 1)) == ExitCode.SUCCESS
    assert capsys.readouterr().out == ""
    assert call_main("logs", ID, "--offset", str(2**53)) == ExitCode.USAGE
    assert f"offset: got {2**53}, expected 0 to {2**53 - 1}" in capsys.readouterr().err


def test_workers_logs_are_printed_one_or_all(ready: Service, call_main: CallMain, capsys: Captured):
    run = record(ready, state=RunState.SUCCEEDED)
    append_to_log(run.directory / "logs" / "slot0-1.0", b"one\ntwo")
    append_to_log(run.directory / "logs" / "slot1-1.0", b"three\n")
    assert call_main("logs", ID, "--worker", "slot0-1.0", "--offset", "2") == ExitCode.SUCCESS
    assert capsys.readouterr().out == "e\ntwo"
    for follow in ((), ("-f",)):
        assert call_main("logs", ID, "-w", "all", *follow) == ExitCode.SUCCESS
        lines = capsys.readouterr().out.splitlines()
        assert lines == ["slot0-1.0| one", "slot1-1.0| three", "slot0-1.0| two"]
    assert call_main("logs", ID, "-w", "slot9-1.0") == ExitCode.NOT_FOUND
    assert call_main("logs", ID, "-w", "all", "--offset", "3") == ExitCode.USAGE


class Interrupted(TrainFlowClient):
    """A client at which Ctrl-C is pressed after the second thing that it yields."""

    def events(self, job_id: str, *, after: int = 0, follow: bool = True) -> Iterator[Any]:
        yield from self._first_two(super().events(job_id, after=after, follow=False))

    def log_pieces(self, job_id: str, **chosen: Any) -> Iterator[Any]:
        found = list(super().log_pieces(job_id, **(chosen | {"follow": False})))
        yield from self._first_two(iter([*found, LogPiece(3, b"de", found[-1].worker)]))

    def _first_two(self, found: Iterator[Any]) -> Iterator[Any]:
        yield next(found)
        yield next(found)
        raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("typed", "back"),
    [
        ("events", "-f --after 2\n"),
        ("events -o json", "-f --after 2 -o json\n"),
        ("events -o yaml", "-f --after 2 -o yaml\n"),
        ("logs", "-f --offset 5\n"),
        ("logs --worker 0", "--worker slot0-1.0 -f --offset 5\n"),
        ("logs --worker slot0-1.0", "--worker slot0-1.0 -f --offset 5\n"),
    ],
)
def test_ctrl_c_leaves_the_job_alone_and_says_how_to_come_back(
    typed: str,
    back: str,
    ready: Service,
    call_main: CallMain,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Captured,
):
    run = record(ready)
    run.happen(3)
    (run.directory / "driver.log").write_bytes(b"abc")
    append_to_log(run.directory / "logs" / "slot0-1.0", b"abc")
    run.form("slot0-1.0")
    ready.ingester.catch_up()
    monkeypatch.setattr("trainflow.client.TrainFlowClient", Interrupted)
    command, *options = typed.split()
    assert call_main(command, ID, "-f", *options) == ExitCode.DETACHED
    error = capsys.readouterr().err
    assert f"{ID} goes on. Come back with: trainflow {command} {ID} {back}" in error
    assert ready.cluster.stopped == []


@pytest.mark.parametrize(
    ("number", "expected"), [(errno.EPIPE, ExitCode.SUCCESS), (errno.ENOSPC, ExitCode.FAILED)]
)
def test_who_no_longer_listens_is_left(
    number: int, expected: ExitCode, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    with (tmp_path / "out").open("w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        with pytest.raises(Exit) as left, followed(ID, lambda: "never"):
            raise OSError(number, "no listener")
    assert left.value.exit_code == expected


def test_without_a_service_or_a_token_that_is_said(
    ready: Service, call_main: CallMain, monkeypatch: pytest.MonkeyPatch, capsys: Captured
):
    monkeypatch.delenv("TRAINFLOW_TOKEN_FILE")
    assert call_main("list") == ExitCode.TOKEN_REFUSED
    assert "token" in capsys.readouterr().err


def test_a_shell_completes_commands():
    called = "from trainflow.cli.main import main; main()"  # sys.argv doesn't name the command
    asked = {"_TRAINFLOW_COMPLETE": "complete_bash", "COMP_WORDS": "trainflow res"}
    result = subprocess.run(
        [sys.executable, "-c", called],
        env=os.environ | asked | {"COMP_CWORD": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout.split() == ["resume"]
