"""A detector that fails stops nothing, and nobody believes that it still looks."""

import asyncio
from collections.abc import Callable

import pytest

from tests.unit.coordination.fakes import FakeClock, guard_of, settle
from trainflow.coordination.detector_guard import DetectorGuard
from trainflow.coordination.run_record import RunRecord
from trainflow.monitoring.detectors import DUTIES, Detector

SURE = [each for each in Detector if DUTIES[each].well_after_s is None]
TRIED_AGAIN = [each for each in Detector if DUTIES[each].well_after_s is not None]


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def guard(record: RunRecord, clock: FakeClock) -> DetectorGuard:
    return guard_of(record, clock)


def fail() -> None:
    raise KeyError("unforeseen")


def kinds(record: RunRecord) -> list[str]:
    return [each["kind"] for each in record.events_since(0)]


def look(guard: DetectorGuard, detector: Detector, act: Callable[[], None], times: int = 1) -> None:
    for _ in range(times):
        guard.look(detector, act)


def test_every_detector_has_a_duty():
    assert DUTIES.keys() == set(Detector)


@pytest.mark.parametrize("detector", Detector)
def test_one_that_fails_is_told_of_once_with_what_nobody_looks_for(
    guard: DetectorGuard, record: RunRecord, detector: Detector
):
    look(guard, detector, fail, times=3)
    (event,) = record.events_since(0)
    unwatched = DUTIES[detector].unwatched
    assert event["kind"] == "detector_off"
    assert event["text"].startswith(f"nobody looks for {unwatched}, until ")
    assert event["text"].endswith(": KeyError: 'unforeseen'")
    assert guard.describe() == [event["data"]]
    assert event["data"] == {
        "detector": detector.value,
        "unwatched": unwatched,
        "error": "KeyError: 'unforeseen'",
    }


@pytest.mark.parametrize("detector", SURE)
def test_one_whose_knowledge_may_be_wrong_is_asked_no_more(
    guard: DetectorGuard, detector: Detector
):
    asked: list[int] = []
    look(guard, detector, fail)
    look(guard, detector, lambda: asked.append(1), times=100)
    assert asked == []
    assert len(guard.describe()) == 1


@pytest.mark.parametrize("detector", TRIED_AGAIN)
def test_one_that_only_looks_is_asked_again_and_its_recovery_told(
    guard: DetectorGuard, record: RunRecord, clock: FakeClock, detector: Detector
):
    well_after_s = DUTIES[detector].well_after_s
    assert well_after_s is not None
    look(guard, detector, fail)
    if well_after_s:
        clock.now_s += well_after_s - 0.1
        look(guard, detector, lambda: None, times=1000)
    assert kinds(record) == ["detector_off"]
    assert len(guard.describe()) == 1
    clock.now_s += 0.2
    look(guard, detector, lambda: None)
    assert kinds(record) == ["detector_off", "detector_on"]
    assert guard.describe() == []


def test_one_that_fails_in_a_part_of_what_it_does_is_not_told_of_each_time(
    guard: DetectorGuard, record: RunRecord, clock: FakeClock
):
    """As where every node's heartbeat is looked at, and what is done twice a second fails."""
    for _ in range(100):
        look(guard, Detector.DRAINS, fail)
        look(guard, Detector.DRAINS, lambda: None, times=1000)
        clock.now_s += 0.5
    assert kinds(record) == ["detector_off"]


def test_one_that_fails_leaves_the_others_alone(guard: DetectorGuard):
    asked: list[int] = []
    look(guard, Detector.STRAGGLERS, fail)
    look(guard, Detector.NETWORK, lambda: asked.append(1))
    assert asked == [1]


def test_tasks_that_fail_are_told_of_too(guard: DetectorGuard, record: RunRecord):
    async def fail_later() -> None:
        fail()

    async def main() -> None:
        guard.start(Detector.DRAINS, fail_later)
        guard.background_of(Detector.NETWORK).start(fail_later())
        await settle()

    asyncio.run(main())
    off = [(each["detector"], each["error"]) for each in guard.describe()]
    assert sorted(off) == [
        ("drains", "KeyError: 'unforeseen'"),
        ("network", "KeyError: 'unforeseen'"),
    ]


def test_one_that_follows_the_record_and_is_left_out_is_off(
    guard: DetectorGuard, record: RunRecord
):
    record.add_event("monitoring_failed", "SinkFeed is left out", follower="SinkFeed")
    assert guard.describe() == []
    for name in ("AnomalyWatch", "RunMetrics.tick", "GoodputWatch"):
        record.add_event("monitoring_failed", f"{name} is left out", follower=name)
    assert [(off["detector"], off["error"]) for off in guard.describe()] == [
        ("anomalies", "AnomalyWatch is left out"),
        ("metrics", "RunMetrics.tick is left out"),
        ("goodput", "GoodputWatch is left out"),
    ]


def test_a_new_coordinator_looks_again_and_says_so(guard: DetectorGuard, record: RunRecord):
    look(guard, Detector.STRAGGLERS, fail)
    asked: list[int] = []
    new = guard_of(record)
    assert kinds(record) == ["detector_off", "detector_on"]
    look(new, Detector.STRAGGLERS, lambda: asked.append(1))
    assert asked == [1]
    guard_of(record)
    assert kinds(record) == ["detector_off", "detector_on"], "told once"
