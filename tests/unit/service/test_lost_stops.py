"""Jobs that were asked to stop, and lost their cluster before they did."""

from pathlib import Path

import pytest

from tests.unit.service.fakes import FakeClock, FakeCluster
from tests.unit.service.history.records import RecordedRun
from trainflow.coordination.names import run_directory
from trainflow.coordination.run_state import RunState
from trainflow.service.cluster import DriverState
from trainflow.service.history.history import History
from trainflow.service.history.ingest import Ingester
from trainflow.service.history.records import Submission
from trainflow.service.lost_stops import LostStopWatch


@pytest.fixture
def watch(history: History, cluster: FakeCluster, clock: FakeClock, home: Path) -> LostStopWatch:
    """Look after a job that was told to stop, of which nothing was heard since."""
    del home  # the run is under it
    history.submissions.begin(Submission("job-1", "job", {"name": "job"}, "/runs/job-1"))
    run = RecordedRun(run_directory("job-1")).keep_job()
    run.event("submitted").event("epoch").event("stopping")
    Ingester(history.database).catch_up()
    clock.now_s = run.clock.now_s + 100
    return LostStopWatch(history, cluster, clock)


def look(watch: LostStopWatch, history: History) -> RunState:
    watch.look()
    Ingester(history.database).catch_up()
    return history.jobs.get("job-1").job.state


def test_a_job_that_is_on_no_cluster_any_more_has_stopped(watch: LostStopWatch, history: History):
    assert history.jobs.get("job-1").job.state is RunState.STOPPING
    assert look(watch, history) is RunState.STOPPED


def test_a_job_that_somebody_sees_to_goes_on_stopping(
    watch: LostStopWatch, history: History, cluster: FakeCluster
):
    cluster.coordinators.add("job-1")
    assert look(watch, history) is RunState.STOPPING
    cluster.coordinators.clear()
    cluster.states["job-1-a1"] = DriverState.RUNNING
    assert look(watch, history) is RunState.STOPPING


def test_a_job_that_was_heard_of_lately_goes_on_stopping(
    watch: LostStopWatch, history: History, clock: FakeClock
):
    clock.now_s -= 90
    assert look(watch, history) is RunState.STOPPING
