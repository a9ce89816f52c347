"""Attempts whose driver came to nothing."""

from datetime import datetime
from pathlib import Path

import pytest

from tests.unit.service.fakes import FakeClock, FakeCluster
from tests.unit.service.history.records import RecordedRun
from trainflow.coordination.names import run_directory
from trainflow.coordination.run_state import RunState
from trainflow.errors import UnreachableError
from trainflow.service.cluster import DriverState
from trainflow.service.history.history import History
from trainflow.service.history.ingest import Ingester
from trainflow.service.history.records import Submission
from trainflow.service.on_ray.ray_cluster import read_session_begin_s
from trainflow.service.submission_watch import Silence, SubmissionWatch, decide_failure


@pytest.mark.parametrize(
    ("silence", "has_failed"),
    [
        (Silence(599.0, None, DriverState.UNKNOWN, None), False),
        (Silence(601.0, None, DriverState.UNKNOWN, None), True),
        (Silence(599.0, 600.0, DriverState.UNKNOWN, None), False),
        (Silence(59.0, 10.0, DriverState.UNKNOWN, None), False),
        (Silence(61.0, 10.0, DriverState.UNKNOWN, None), True),
        (Silence(10_000.0, 10.0, DriverState.PENDING, None), False),
        (Silence(10_000.0, 10.0, DriverState.RUNNING, None), False),
        (Silence(5.0, None, DriverState.ENDED, 0.0), False),
        (Silence(5.0, None, DriverState.ENDED, 10.1), True),
        (Silence(5.0, None, DriverState.STOPPED, 10.1), True),
    ],
)
def test_an_attempt_has_failed_once_nobody_can_begin_it(silence: Silence, *, has_failed: bool):
    assert (decide_failure(silence) is not None) == has_failed


@pytest.fixture
def watch(history: History, cluster: FakeCluster, clock: FakeClock) -> SubmissionWatch:
    history.submissions.begin(Submission("job-1", "job", {"name": "job"}, "/runs/job-1"))
    return SubmissionWatch(history, cluster, clock)


def state(history: History) -> RunState:
    return history.jobs.get("job-1").job.state


def test_a_driver_that_ended_without_a_word_is_told_after_a_while(
    watch: SubmissionWatch, history: History, cluster: FakeCluster, clock: FakeClock
):
    cluster.states["job-1-a1"] = DriverState.ENDED
    watch.look()
    assert state(history) is RunState.PENDING
    clock.now_s += 11
    watch.look()
    job = history.jobs.get("job-1").job
    assert job.state is RunState.FAILED
    assert job.reason == "its driver ended before the job began: as it says"


def test_a_driver_that_was_stopped_by_who_did_not_live_to_tell_it_is_told_as_that(
    watch: SubmissionWatch, history: History, cluster: FakeCluster, clock: FakeClock
):
    cluster.states["job-1-a1"] = DriverState.STOPPED
    cluster.coordinators.add("job-1")
    for _ in range(2):
        watch.look()
        clock.now_s += 11
    assert state(history) is RunState.PENDING, "its coordinator may have yet to begin"
    cluster.coordinators.clear()
    for _ in range(2):
        watch.look()
        clock.now_s += 11
    assert state(history) is RunState.STOPPED


def test_a_driver_that_never_arrived_is_told(
    watch: SubmissionWatch, history: History, clock: FakeClock
):
    for later_s, expected in ((590, RunState.PENDING), (11, RunState.FAILED)):
        clock.now_s += later_s
        watch.look()
        assert state(history) is expected


def test_a_driver_that_was_lost_with_its_cluster_is_told_within_minutes(
    watch: SubmissionWatch, history: History, cluster: FakeCluster, clock: FakeClock
):
    clock.now_s += 61
    cluster.begin_s = clock.now_s - 5
    watch.look()
    assert state(history) is RunState.FAILED


@pytest.mark.parametrize("numbered", [True, False])
def test_a_driver_that_begins_after_it_was_given_up_has_not_failed(
    watch: SubmissionWatch, history: History, clock: FakeClock, home: Path, *, numbered: bool
):
    del home  # the run is under it
    clock.now_s += 601
    watch.look()
    assert state(history) is RunState.FAILED
    run = RecordedRun(run_directory("job-1"))
    run.clock.now_s = clock.now_s + 1
    run.keep_job()
    if numbered:
        run.event("attempt", attempt=1)
    run.event("submitted").event("epoch")
    Ingester(history.database).catch_up()
    job, (attempt,) = history.jobs.get("job-1").job, history.jobs.attempts("job-1")
    assert (job.state, job.attempt, job.reason) == (RunState.RUNNING, 1, None)
    assert (job.ended_at_s, job.exit_code) == (None, None)
    assert (attempt.submission_id, attempt.submitted_at_s) == ("job-1-a1", 1000.0)
    assert (attempt.started_at_s is not None, attempt.ended_at_s) == (True, None)
    assert (attempt.state, attempt.exit_code, attempt.reason) == (None, None, None)


def test_a_session_of_ray_tells_when_it_began():
    begin_s = read_session_begin_s("session_2026-01-31_12-00-00_250000_4242")
    assert begin_s == datetime(2026, 1, 31, 12, 0, 0, 250_000).astimezone().timestamp()
    assert read_session_begin_s("session_latest") is None


def test_a_cluster_that_does_not_answer_says_nothing(
    watch: SubmissionWatch, history: History, cluster: FakeCluster, clock: FakeClock
):
    cluster.error = UnreachableError("no answer")
    clock.now_s += 1000
    watch.look()
    assert state(history) is RunState.PENDING


def test_a_job_that_nobody_submitted_is_left_alone(
    history: History, cluster: FakeCluster, clock: FakeClock, home: Path
):
    SubmissionWatch(history, cluster, clock).look()
    assert history.jobs.list().jobs == ()
