"""Whatever a run writes, and whenever it is read: the history is as if all was read at once.

A run commits steps, goes back, is given another coordinator, and its files are cut off in the
middle of a line, while passes of several ingesters fall in between, some of which crash before they
commit.
"""

import itertools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, example, given, settings

from tests.unit.service.history.conftest import MakeUrl, empty
from tests.unit.service.history.records import JOB_ID, Home, tell
from trainflow.coordination.run_state import SUCCESS
from trainflow.service.history import downsampling
from trainflow.service.history.draft import Draft
from trainflow.service.history.history import History, open_history
from trainflow.service.history.ingest import Ingester

KEPT_SINGLY = 12  # instead of ten thousand, so that short runs become coarse
# And how many of their lines are never torn: when a job was first heard of is not forgotten.
LINE_FILES = {"events.jsonl": 1, "metrics.jsonl": 0}


class Life:
    """A run, and those who read what it writes."""

    def __init__(self, home: Home, history: History):
        self.run = home.run().keep_job().event("submitted").event("epoch")
        self.step = 0
        self.epochs = itertools.count(2)
        self.epoch = (1, 1)
        self.ingesters = [home.ingester(history, slice_bytes=size) for size in (1000, 2**20)]

    def commit(self, num_steps: int) -> None:
        for _ in range(num_steps):
            self.step += 1
            self.run.steps(self.step, epoch=self.epoch)

    def go_back(self, num_steps: int) -> None:
        self.step = max(0, self.step - num_steps)
        self.epoch = (next(self.epochs), 1)
        self.run.go_back(self.step, self.epoch)

    def go_back_unheard(self, num_steps: int) -> None:
        """The event waits in memory, and is written with the next one."""
        path = self.run.directory / "events.jsonl"
        before = path.read_bytes()
        self.go_back(num_steps)
        written = path.read_bytes()
        path.write_bytes(before)
        self.commit(1)
        self.read(0)
        path.write_bytes(written)

    def make_checkpoint(self, _: int) -> None:
        self.run.event("checkpoint", step=self.step, num_bytes=100, num_bytes_written=50)

    def remove_checkpoint(self, _: int) -> None:
        self.run.event("checkpoints_removed", steps=[self.step])

    def tear(self, num_bytes: int) -> None:
        """A crash leaves the newest line in pieces; a new coordinator goes on after it."""
        for file, num_whole in LINE_FILES.items():
            path = self.run.directory / file
            lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
            if len(lines) > num_whole:
                kept = lines[-1][: -1 - num_bytes]
                path.write_bytes(b"".join(lines[:-1]) + kept)
                self.read(0)
        self.run = self.run.again()
        self.step = self.run.record.last_step
        self.epoch = (next(self.epochs), 1)

    def publish(self, _: int) -> None:
        self.run.publish(step=self.step)

    def read(self, which: int) -> None:
        self.ingesters[which % 2].poll()

    def crash(self, which: int) -> None:
        """A pass does everything, and dies before it commits."""

        def die(*_: Any) -> None:
            raise KeyboardInterrupt

        self.run.event("epoch")
        with patch.object(Draft, "save", die), pytest.raises(KeyboardInterrupt):
            self.ingesters[which % 2].poll()


ACTS: list[Callable[[Life, int], None]] = [
    Life.commit,
    Life.commit,
    Life.go_back,
    Life.go_back_unheard,
    Life.make_checkpoint,
    Life.remove_checkpoint,
    Life.tear,
    Life.publish,
    Life.read,
    Life.read,
    Life.crash,
]

acts = st.lists(
    st.tuples(st.sampled_from(range(len(ACTS))), st.integers(0, 40)), min_size=5, max_size=25
)


@pytest.fixture(autouse=True)
def coarse_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downsampling, "KEPT_SINGLY", KEPT_SINGLY)


@pytest.fixture
def pair(make_url: MakeUrl) -> Iterator[tuple[History, History]]:
    with open_history(make_url()) as one, open_history(make_url()) as other:
        yield one, other


def settle(ingester: Ingester) -> None:
    ingester.catch_up()
    assert ingester.poll().job_ids == frozenset()


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@example([(0, 1), (3, 1), (6, 1)])  # of a step that was read, and is torn later
@example([(0, 22), (8, 1), (3, 13), (6, 1)])  # the same, when points of several steps were void
@given(acts)
def test_many_passes_come_to_the_same_as_one(
    pair: tuple[History, History], plan: list[tuple[int, int]]
):
    piecemeal, at_once = pair
    for history in pair:
        empty(history)
    with tempfile.TemporaryDirectory() as folder:
        home = Home(Path(folder))
        life = Life(home, piecemeal)
        for act, argument in plan:
            ACTS[act](life, argument)
        life.run.end(SUCCESS)
        for ingester in life.ingesters:
            settle(ingester)
        settle(home.ingester(at_once))
        assert tell(piecemeal) == tell(at_once)
        assert_counts(at_once, life)


def assert_counts(history: History, life: Life) -> None:
    """Every step that the run has behind it is in one point, and no other is."""
    points = history.series.since(life.run.directory.name, max_points=10_000)
    ends = [(point.first_step, point.last_step) for point in points]
    assert all(before[1] < after[0] for before, after in itertools.pairwise(ends))
    assert sum(point.num_steps for point in points) <= life.step
    assert points == () or points[-1].last_step == life.step


def test_a_crash_leaves_nothing_of_its_pass(history: History, home: Home):
    life = Life(home, history)
    life.commit(3)
    life.crash(0)
    assert history.jobs.list().jobs == ()
    settle(life.ingesters[0])
    assert history.jobs.get(JOB_ID).job.last_step == 3


def test_going_back_into_a_point_of_many_steps_reads_the_file_again(history: History, home: Home):
    run = home.run().event("submitted")
    ingester = home.ingester(history)
    run.steps(*range(1, 51))
    settle(ingester)
    points = history.series.since(JOB_ID)
    assert [point.last_step for point in points][:4] == [10, 20, 30, 31]
    run.go_back(15, (2, 1)).steps(16, 17, epoch=(2, 1), loss=9.0)
    settle(ingester)
    points = history.series.since(JOB_ID)
    assert [point.last_step for point in points] == [10, 11, 12, 13, 14, 15, 16, 17]
    assert points[-1].values["loss"].mean == 9.0
