"""Logs of drivers that were killed, while their jobs go on."""

import os
from pathlib import Path

import pytest

from tests.unit.service.fakes import FakeClock, FakeCluster
from tests.unit.service.history.records import RecordedRun
from trainflow.coordination.names import run_directory
from trainflow.service.cluster import DriverState
from trainflow.service.history.history import History
from trainflow.service.history.ingest import Ingester
from trainflow.service.history.records import Submission
from trainflow.service.silent_drivers import SilentDriverWatch

LINE = b"step 12\n"


@pytest.fixture
def run(history: History, home: Path) -> RecordedRun:
    """A run that was submitted, trains, and has just told so."""
    del home  # the run is under it
    history.submissions.begin(Submission("job-1", "job", {"name": "job"}, "/runs/job-1"))
    run = RecordedRun(run_directory("job-1")).keep_job()
    run.event("submitted").event("epoch").publish("running")
    Ingester(history.database).catch_up()
    return run


@pytest.fixture
def log(run: RecordedRun) -> Path:
    path = run.directory / "driver.log"
    path.write_bytes(LINE)
    return path


@pytest.fixture
def watch(
    history: History, cluster: FakeCluster, clock: FakeClock, run: RecordedRun
) -> SilentDriverWatch:
    clock.now_s = run.clock.now_s
    cluster.states["job-1-a1"] = DriverState.ENDED
    return SilentDriverWatch(history, cluster, clock)


def fall_silent(log: Path, run: RecordedRun, for_s: float = 40.0) -> None:
    os.utime(log, times=(run.clock.now_s - for_s, run.clock.now_s - for_s))


def test_its_log_says_once_that_it_is_gone(watch: SilentDriverWatch, log: Path, run: RecordedRun):
    for _ in range(2):
        fall_silent(log, run)
        watch.look()
    note = b"the driver of attempt 1 is gone and prints no more; the job goes on"
    assert log.read_bytes().startswith(LINE + b"\n" + note)
    assert log.read_bytes().count(note) == 1


def test_one_that_lives_or_has_just_printed_is_not_gone(
    watch: SilentDriverWatch, log: Path, run: RecordedRun, cluster: FakeCluster
):
    fall_silent(log, run, for_s=20.0)
    watch.look()
    fall_silent(log, run)
    cluster.states["job-1-a1"] = DriverState.RUNNING
    watch.look()
    del cluster.states["job-1-a1"]
    watch.look()
    assert log.read_bytes() == LINE


def test_a_job_of_which_nothing_is_heard_may_not_go_on(
    watch: SilentDriverWatch, log: Path, run: RecordedRun, clock: FakeClock
):
    fall_silent(log, run)
    clock.now_s += 10.0
    watch.look()
    assert log.read_bytes() == LINE


def test_one_that_stops_has_a_driver_that_may_leave(
    watch: SilentDriverWatch, log: Path, run: RecordedRun, history: History
):
    run.event("stopping").publish("stopping")
    Ingester(history.database).catch_up()
    fall_silent(log, run)
    watch.look()
    assert log.read_bytes() == LINE
