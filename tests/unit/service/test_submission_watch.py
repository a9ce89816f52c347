"""Attempts whose driver came to nothing."""

from pathlib import Path

import pytest

from tests.unit.service.fakes import FakeClock, FakeCluster
from trainflow.coordination.run_state import RunState
from trainflow.errors import UnreachableError
from trainflow.service.cluster import DriverState
from trainflow.service.history.history import History
from trainflow.service.history.records import Submission
from trainflow.service.submission_watch import Silence, SubmissionWatch, decide_failure


@pytest.mark.parametrize(
    ("silence", "has_failed"),
    [
        (Silence(5.0, DriverState.UNKNOWN, None), False),
        (Silence(61.0, DriverState.UNKNOWN, None), True),
        (Silence(10_000.0, DriverState.PENDING, None), False),
        (Silence(10_000.0, DriverState.RUNNING, None), False),
        (Silence(5.0, DriverState.ENDED, 0.0), False),
        (Silence(5.0, DriverState.ENDED, 10.1), True),
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


def test_a_driver_that_never_arrived_is_told(
    watch: SubmissionWatch, history: History, clock: FakeClock
):
    watch.look()
    clock.now_s += 61
    watch.look()
    assert state(history) is RunState.FAILED


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
