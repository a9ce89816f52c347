"""How long each member computes, as it is shown with the workers."""

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.coordination.fakes import FakePool, FakeWorker
from tests.unit.coordination.test_run_record import STEP
from trainflow.coordination.rank_times import RankTimes
from trainflow.epochs import EpochId

IDS = ("slot0-1.0", "slot1-1.1")
EPOCH = EpochId(1, 1)


class Control:
    members = IDS
    epoch = EPOCH


class Scene:
    def __init__(self) -> None:
        self.pool: Any = FakePool([FakeWorker(each, None) for each in (*IDS, "slot2-1.2")])
        self.control: Any = Control()
        self.times = RankTimes(self.pool, self.control)

    def step(self, *compute_s: float, at_s: float = 1000.0, **others: Any) -> None:
        report = replace(STEP, epoch=EPOCH, rank=0, committed_at_s=at_s, compute_by_rank=compute_s)
        self.times.on_step(replace(report, **others))

    def noted(self) -> list[float | None]:
        return [entry.compute_s for entry in self.pool.entries.values()]


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_members_have_a_time_and_others_have_none(scene: Scene):
    assert scene.noted() == [None, None, None]
    scene.step(0.2, 0.4)
    assert scene.noted() == [0.2, 0.4, None]


def test_it_follows_the_newest_steps_once_a_second(scene: Scene):
    scene.step(0.2, 0.4)
    scene.step(9.0, 9.0, at_s=1000.9)
    assert scene.noted() == [0.2, 0.4, None]
    scene.step(0.6, 0.4, at_s=1001.0)
    assert scene.noted() == [pytest.approx(0.3), pytest.approx(0.4), None]
    for second in range(2, 60):
        scene.step(0.6, 0.4, at_s=1000.0 + second)
    assert scene.noted() == [pytest.approx(0.6, rel=0.01), pytest.approx(0.4), None]


@pytest.mark.parametrize(
    "others", [{"rank": 1}, {"epoch": EpochId(1, 2)}, {"compute_by_rank": (0.1,)}]
)
def test_what_is_not_of_all_members_now_is_left_out(scene: Scene, others: dict[str, Any]):
    scene.step(0.2, 0.4, **others)
    assert scene.noted() == [None, None, None]


def test_one_that_is_lost_just_then_is_left_out(scene: Scene):
    del scene.pool.entries[IDS[1]]
    scene.step(0.2, 0.4)
    assert scene.noted() == [0.2, None]
