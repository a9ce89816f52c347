"""``trainflow profile``, of a service that really listens, and of a cluster that isn't there."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli.conftest import CallMain
from tests.unit.cli.fakes import FakeCluster, FakeRun, make_event, make_status
from tests.unit.cli.test_job_commands import ID, ready, record, service
from tests.unit.client.conftest import Service
from tests.unit.coordination.fakes import SleepyClock
from trainflow.cli import profile_command
from trainflow.cli.exit_codes import ExitCode
from trainflow.cli.jobs import Profiled
from trainflow.cli.profile_command import wait_for_traces
from trainflow.computation.profile_order import ProfileFailed, ProfileTrace, trace_file
from trainflow.coordination.profile_list import Profile, Trace, TraceState
from trainflow.errors import ConflictError, JobNotFoundError

__all__ = ["ready", "service"]

Captured = pytest.CaptureFixture[str]
DATA = b"a trace"
ASKED: dict[str, Any] = {
    "number": 1,
    "num_steps": 5,
    "first_step": 8,
    "ranks": [{"rank": 0, "worker": "slot0-1.0"}, {"rank": 3, "worker": "slot3-1.3"}],
}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SleepyClock:
    clock = SleepyClock()
    monkeypatch.setattr(profile_command, "SYSTEM_CLOCK", clock)
    return clock


@pytest.fixture
def profiled(ready: Service) -> Path:
    """A job whose rank 3 has recorded its steps, and whose rank 0 couldn't; returns its folder."""
    run = record(ready)
    ready.cluster.coordinators.add(ID)
    run.record.add_event("profile", "asked", **ASKED)
    path = run.directory / trace_file(1, 3)
    path.parent.mkdir(parents=True)
    path.write_bytes(DATA)
    run.record.add_report(ProfileTrace(1, 3, trace_file(1, 3), len(DATA), 8, 12))
    run.record.add_report(ProfileFailed(1, 0, "it raised"))
    ready.ingester.catch_up()
    return run.directory


@pytest.mark.usefixtures("clock")
def test_traces_are_waited_for_and_shown_with_what_is_missing(
    ready: Service, profiled: Path, call_main: CallMain, capsys: Captured
):
    code = call_main("profile", ID, "--steps", "3", "--rank", "3", "--rank", "0")
    assert code == ExitCode.FAILED, "one rank has none to show"
    assert ready.cluster.profiles == [(ID, 3, (3, 0))]
    captured = capsys.readouterr()
    assert captured.err == f"{ID}: ranks 3, 0 of 3 steps from step 8, profile 1\n"
    heading, failed, written = captured.out.splitlines()
    assert heading.split() == ["RANK", "STATE", "STEPS", "BYTES", "TRACE"]
    assert failed.split() == ["0", "failed", "-", "-", "it", "raised"]
    where = f"{profiled}/profiles/1/rank-3.json.gz"
    assert written.split() == ["3", "written", "8-12", "7", where]


@pytest.mark.usefixtures("profiled", "clock")
def test_traces_are_copied_where_they_are_wanted(
    call_main: CallMain, tmp_path: Path, capsys: Captured
):
    folder = tmp_path / "a" / "b"
    call_main("profile", ID, "--number", "1", "--to", folder, "-o", "json")
    answer = json.loads(capsys.readouterr().out)
    assert (answer["job_id"], answer["number"]) == (ID, 1)
    path = folder / f"{ID}-profile-1-rank-3.json.gz"
    assert [each["at"] for each in answer["traces"]] == [None, str(path)]
    assert path.read_bytes() == DATA
    assert [each.name for each in folder.iterdir()] == [path.name]


@pytest.mark.usefixtures("profiled")
def test_a_profile_that_there_never_was_is_not_waited_for_for_ever(
    call_main: CallMain, clock: SleepyClock, capsys: Captured
):
    begun_s = clock.now_s
    assert call_main("profile", ID, "--number", "7") == ExitCode.NOT_FOUND
    assert "--number: got 7" in capsys.readouterr().err
    assert clock.now_s > begun_s


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--rank", "1", "--rank", "1"], "--rank: got 2 of them, expected at most 16, each once"),
        ([f"--rank={rank}" for rank in range(17)], "--rank: got 17 of them"),
        (["--number", "1", "--rank", "1"], "--number: got it beside"),
        (["--number", "1", "--steps", "5"], "--number: got it beside"),
        (["--steps", "51"], "'--steps': Input should be less than or equal to 50"),
        (["--rank", "-1"], "'--rank': Input should be greater than or equal to 0"),
    ],
)
def test_wrong_options_are_refused_before_anybody_is_asked(
    ready: Service, call_main: CallMain, options: Sequence[str], said: str, capsys: Captured
):
    assert call_main("profile", ID, *options) == ExitCode.USAGE
    assert said in capsys.readouterr().err
    assert ready.cluster.profiles == []


def test_what_the_job_refuses_is_told(ready: Service, call_main: CallMain, capsys: Captured):
    record(ready)
    ready.cluster.coordinators.add(ID)
    ready.cluster.error = ConflictError("the run is recovering: wait until its ranks train")
    assert call_main("profile", ID) == ExitCode.CONFLICT
    assert "recovering" in capsys.readouterr().err


class Waiting:
    """Jobs whose profile is over after some looks."""

    def __init__(self, *profiles: Profile | None):
        self._left = iter(profiles)

    def find_profile(self, job_id: str, number: int) -> Profiled:
        return Profiled(job_id, "/runs/x", next(self._left))


def profile_with(state: TraceState) -> Profile:
    return Profile(1, 1000.0, 5, 8, (Trace(0, "slot0-1.0", state),))


def test_it_is_looked_again_and_again_until_all_have_told():
    clock, over = SleepyClock(), profile_with(TraceState.WRITTEN)
    awaited = [profile_with(TraceState.AWAITED)] * 30
    jobs: Any = Waiting(None, None, *awaited, over)
    assert wait_for_traces(jobs, ID, 1, clock).profile == over
    assert clock.now_s == 1000.0 + 32
    late: Any = Waiting(*[None] * 30)
    with pytest.raises(JobNotFoundError):
        wait_for_traces(late, ID, 1, clock)


@pytest.fixture
def recorded(cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cluster's run that has recorded steps; its folder."""
    monkeypatch.setenv("TRAINFLOW_ADDRESS", "10.0.0.1:6379")
    events = [
        make_event(1, kind="profile", data=ASKED | {"ranks": ASKED["ranks"][1:]}),
        make_event(
            2,
            kind="profile_trace",
            data={
                "number": 1,
                "rank": 3,
                "file": trace_file(1, 3),
                "num_bytes": 7,
                "first_step": 8,
                "last_step": 9,
                "cut_short": "the epoch ended",
            },
        ),
    ]
    cluster.runs[ID] = FakeRun([make_status(directory=str(tmp_path), events=events)])
    path = tmp_path / trace_file(1, 3)
    path.parent.mkdir(parents=True)
    path.write_bytes(DATA)
    return tmp_path


@pytest.mark.usefixtures("clock")
def test_a_cluster_s_run_is_asked_itself(
    cluster: FakeCluster, recorded: Path, call_main: CallMain, capsys: Captured
):
    assert call_main("profile", "--rank", "3", "--to", recorded / "here") == ExitCode.SUCCESS
    assert cluster.runs[ID].calls[0] == "profile 5 steps of (3,)"
    row = capsys.readouterr().out.splitlines()[1]
    place = recorded / "here" / f"{ID}-profile-1-rank-3.json.gz"
    assert row.endswith(f"8-9    7      {place}; the epoch ended")
    assert place.read_bytes() == DATA


@pytest.mark.usefixtures("clock")
def test_a_folder_that_is_not_seen_here_says_what_to_do(
    recorded: Path, call_main: CallMain, capsys: Captured
):
    (recorded / trace_file(1, 3)).unlink()
    code = call_main("profile", ID, "--number", "1", "--to", recorded / "here")
    assert code == ExitCode.UNREACHABLE
    assert "does not see the folder of the job's record" in capsys.readouterr().err
    assert call_main("profile", ID, "--number", "1") == ExitCode.SUCCESS
    assert f"{recorded}/profiles/1/rank-3.json.gz" in capsys.readouterr().out
