"""Jobs that have lost their cluster."""

import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.service.fakes import FakeClock, FakeCluster
from trainflow.clock import SYSTEM_CLOCK
from trainflow.config import JobConfig
from trainflow.coordination.line_file import LineFile
from trainflow.coordination.names import run_directory
from trainflow.coordination.resumptions import count_resumptions
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.run_state import RunState
from trainflow.errors import CoordinationError, HistoryError, UnreachableError
from trainflow.service.cluster import DriverState
from trainflow.service.documents import SubmitRequest
from trainflow.service.history.history import History
from trainflow.service.history.ingest import Ingester
from trainflow.service.history.submissions import Submissions
from trainflow.service.job_desk import JobDesk
from trainflow.service.resumption_watch import Lost, ResumptionWatch, decide_resumption, find_limit

LOST = {
    "silent_s": 61.0,
    "has_coordinator": False,
    "driver": DriverState.UNKNOWN,
    "num_resumed": 0,
    "at_most": 1,
}


@pytest.mark.parametrize(
    ("changes", "goes_on"),
    [
        ({}, True),
        ({"driver": DriverState.ENDED}, True),
        ({"num_resumed": 2, "at_most": 3}, True),
        ({"silent_s": 59.0}, False),
        ({"silent_s": 8 * 86_400.0}, False),
        ({"has_coordinator": True}, False),
        ({"driver": DriverState.RUNNING}, False),
        ({"driver": DriverState.PENDING}, False),
        ({"num_resumed": 1}, False),
        ({"at_most": 0}, False),
    ],
)
def test_what_is_lost_is_gone_on_with_some_times(changes: dict[str, Any], *, goes_on: bool):
    assert decide_resumption(Lost(**(LOST | changes))) == goes_on


class Scene:
    """A job that the service has submitted, on a cluster that is about to be lost."""

    def __init__(
        self, history: History, cluster: FakeCluster, clock: FakeClock, config: dict[str, Any]
    ):
        self.history, self.cluster, self.clock = history, cluster, clock
        clock.now_s = SYSTEM_CLOCK.unix_s()
        self.desk = JobDesk(history, cluster, (), clock)
        self.watch = ResumptionWatch(history, cluster, self.desk, clock)
        self.ingester = Ingester(history.database, clock=clock)
        found, _ = self.desk.submit(SubmitRequest(config=config), None)
        self.job_id = found.job.job_id
        self.config = config

    def begin(self) -> None:
        """Its coordinator begins to write its record."""
        record = self.open_record()
        record.keep_job(self.job_id, JobConfig.model_validate(self.config), ())
        record.begin_attempt(self.job.attempt)
        record.add_event("submitted", "4 workers are asked for")
        self.ingester.catch_up()

    def open_record(self) -> RunRecord:
        return RunRecord(run_directory(self.job_id), SYSTEM_CLOCK)

    def lose_cluster(self, silent_s: float = 120.0) -> None:
        self.cluster.drivers.clear()
        self.cluster.coordinators.clear()
        self.clock.now_s += silent_s

    @property
    def num_resumed(self) -> int:
        """How many attempts were told of."""
        return count_resumptions(self.job_id, self.job.attempt + 1)

    @property
    def job(self) -> Any:
        return self.history.jobs.get(self.job_id).job


@pytest.fixture
def make_scene(
    history: History, cluster: FakeCluster, clock: FakeClock, job_config: dict[str, Any]
) -> Callable[..., Scene]:
    def make(times: int = 1) -> Scene:
        failures = {"max_lost_clusters": times}
        return Scene(history, cluster, clock, job_config | {"failures": failures})

    return make


def test_a_lost_job_goes_on_as_its_next_attempt_and_says_so(make_scene: Callable[..., Scene]):
    scene = make_scene()
    scene.begin()
    scene.watch.look()
    assert scene.job.attempt == 1  # it is heard of
    scene.lose_cluster()
    scene.watch.look()
    assert (scene.job.attempt, scene.job.state) == (2, RunState.PENDING)
    driver = scene.cluster.drivers[f"{scene.job_id}-a2"]
    assert driver.command.endswith("--attempt 2 --resume auto")
    scene.ingester.catch_up()
    told = scene.history.events.after(scene.job_id, 0)[-1]
    assert told.kind == "resuming"
    assert told.data == {"attempt": 2, "times": 1, "at_most": 1}
    assert scene.job.state is RunState.PENDING


def test_it_does_so_as_often_as_it_may(make_scene: Callable[..., Scene]):
    scene = make_scene(times=2)
    scene.begin()
    for attempt in (2, 3, 3):
        scene.lose_cluster()
        scene.watch.look()
        assert scene.job.attempt == attempt
        if attempt > scene.num_resumed:
            scene.begin()
    assert scene.num_resumed == 2


def test_two_who_watch_make_one_attempt(make_scene: Callable[..., Scene]):
    scene = make_scene(times=5)
    scene.begin()
    scene.lose_cluster()
    others = [
        ResumptionWatch(scene.history, scene.cluster, scene.desk, scene.clock) for _ in range(4)
    ]
    threads = [threading.Thread(target=each.look) for each in others]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert scene.job.attempt == 2
    assert scene.num_resumed == 1
    assert len(scene.cluster.drivers) == 1


def test_without_the_setting_people_go_on_with_it(make_scene: Callable[..., Scene]):
    scene = make_scene(times=0)
    scene.begin()
    scene.lose_cluster()
    scene.watch.look()
    assert scene.job.attempt == 1


def test_one_that_was_asked_to_stop_is_left_alone(make_scene: Callable[..., Scene]):
    scene = make_scene()
    scene.begin()
    scene.open_record().add_event("stopping", "asked to stop")
    scene.ingester.catch_up()
    scene.lose_cluster()
    scene.watch.look()
    assert scene.job.attempt == 1


def test_one_that_never_began_is_left_alone(make_scene: Callable[..., Scene]):
    scene = make_scene()
    scene.lose_cluster()
    scene.watch.look()
    assert scene.job.attempt == 1


def test_one_that_others_have_begun_is_left_alone(make_scene: Callable[..., Scene]):
    scene = make_scene()
    scene.job_id = "other-abcdef"
    record = scene.open_record()
    record.keep_job(scene.job_id, JobConfig.model_validate(scene.config), ())
    record.add_event("submitted", "by trainflow run")
    scene.ingester.catch_up()
    assert find_limit(scene.job) == 1
    scene.lose_cluster()
    scene.watch.look()
    assert scene.job.attempt == 1


def test_a_cluster_that_is_not_there_yet_is_waited_for(make_scene: Callable[..., Scene]):
    scene = make_scene()
    scene.begin()
    scene.lose_cluster()
    scene.cluster.error = UnreachableError("no answer")
    scene.watch.look()
    assert scene.job.attempt == 1
    scene.cluster.error = None
    scene.watch.look()
    assert scene.job.attempt == 2


def test_what_can_t_be_gone_on_with_is_left_to_people_and_told_once(
    make_scene: Callable[..., Scene],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    scene = make_scene(times=9)
    scene.begin()
    scene.lose_cluster()

    def refuse(*_: object) -> None:
        raise CoordinationError("no such runtime")

    monkeypatch.setattr(scene.cluster, "submit", refuse)
    scene.watch.look()
    scene.watch.look()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert scene.num_resumed == 1


@pytest.mark.parametrize(
    "error", [HistoryError("database is locked"), OSError(28, "No space left on device")]
)
def test_what_fails_for_a_while_is_tried_again_and_counts_once(
    make_scene: Callable[..., Scene], monkeypatch: pytest.MonkeyPatch, error: Exception
):
    scene = make_scene(times=1)
    scene.begin()
    scene.lose_cluster()

    def fail(*_: object, **_named: object) -> None:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(Submissions, "begin", fail)
        scene.watch.look()
        scene.watch.look()
    assert (scene.job.attempt, scene.num_resumed) == (1, 1)
    scene.watch.look()
    assert (scene.job.attempt, scene.num_resumed) == (2, 1)
    scene.begin()
    scene.lose_cluster()
    scene.watch.look()
    assert scene.job.attempt == 2, "once was all it may"


def test_one_that_publishes_is_not_lost_though_the_history_is_behind(
    make_scene: Callable[..., Scene],
):
    scene = make_scene()
    scene.begin()
    scene.lose_cluster()
    directory = run_directory(scene.job_id)
    document = {"status": {"as_of_s": scene.clock.now_s - 1.0}, "workers": []}
    (directory / "status.json").write_text(json.dumps(document))
    scene.watch.look()
    assert scene.job.attempt == 1
    scene.clock.now_s += 120.0
    scene.watch.look()
    assert scene.job.attempt == 2


def test_what_can_t_be_counted_is_not_done(
    make_scene: Callable[..., Scene], monkeypatch: pytest.MonkeyPatch
):
    scene = make_scene()
    scene.begin()
    scene.lose_cluster()

    def keep_waiting(file: LineFile, line: dict[str, Any]) -> OSError:
        file.waiting.append(repr(line).encode())
        return OSError(28, "No space left on device")

    monkeypatch.setattr(LineFile, "append", keep_waiting)
    scene.watch.look()
    assert scene.job.attempt == 1
    assert scene.cluster.drivers == {}
