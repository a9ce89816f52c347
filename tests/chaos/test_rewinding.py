"""A run whose data has a bad stretch goes back before it, and goes on with what comes after it."""

from pathlib import Path
from typing import Any

import pytest

from tests.chaos.harness import GLOBAL_BATCH, RunUnderTest, events_of
from trainflow.checkpointing.store import CheckpointStore
from trainflow.coordination.local_cluster import LocalCluster

pytestmark = [pytest.mark.ray, pytest.mark.chaos, pytest.mark.slow]

BAD_STEP, BASE_STEP, LAST_STEP = 60, 50, 80
BAD_UNTIL = BAD_STEP * GLOBAL_BATCH
SETTINGS: dict[str, Any] = {
    "monitoring": {
        "anomalies": {"action": "rewind", "max_rewinds": 1, "stalled_after_steps": None}
    },
    "data": {"order": "sequential"},
    "max_steps": LAST_STEP,
    "bad_samples": (BAD_UNTIL - GLOBAL_BATCH, BAD_UNTIL),
}


def start(cluster: LocalCluster, tmp_path: Path, **settings: Any) -> RunUnderTest:
    checkpoint = {"url": str(tmp_path / "store"), "every_steps": 10, "keep_last": 9}
    return RunUnderTest.start(cluster, tmp_path, checkpoint=checkpoint, **SETTINGS | settings)


def assert_went_back(status: dict[str, Any]) -> None:
    (asked,) = events_of(status, "rewind")
    assert asked["data"] == {"to_step": BASE_STEP, "position": BAD_UNTIL}
    (done,) = events_of(status, "rewound")
    assert (done["data"]["to_step"], done["data"]["position"]) == (BASE_STEP, BAD_UNTIL)
    (resumed,) = events_of(status, "resumed")
    assert resumed["data"]["step"] == BASE_STEP
    assert events_of(status, "rewind_refused") == []


def assert_passed_over(run: RunUnderTest) -> None:
    """Each step after the base has the samples that come after the bad ones."""
    used = run.used_samples()
    for number in range(BASE_STEP + 1, LAST_STEP + 1):
        begin = BAD_UNTIL + (number - BASE_STEP - 1) * GLOBAL_BATCH
        wanted = sorted(position % 1500 for position in range(begin, begin + GLOBAL_BATCH))
        assert used[number] == wanted, number


@pytest.mark.parametrize("mode", ["ddp", "fsdp"])
def test_it_goes_back_and_passes_over_what_led_there(
    cluster: LocalCluster, tmp_path: Path, mode: str
):
    run = start(cluster, tmp_path, spares=0, parallel={"mode": mode})
    status = run.finish()
    assert status["state"] == "succeeded", status["ending"]
    assert_went_back(status)
    assert_passed_over(run)
    store = CheckpointStore(str(tmp_path / "store"))
    assert store.committed_steps() == [10, 20, 30, 40, 50, 60, 70, 80]
    for step in (60, 70, 80):
        assert store.read_manifest(step).attempt > store.read_manifest(50).attempt


def test_a_member_that_dies_right_after_it_costs_nothing_of_that(
    cluster: LocalCluster, tmp_path: Path
):
    run = start(cluster, tmp_path, spares=1, sleep_from=BASE_STEP, sleep_s=0.3)
    run.wait(lambda status: events_of(status, "rewound") != [])
    run.kill(1)
    run.wait_recovered()
    status = run.finish()
    assert status["state"] == "succeeded", status["ending"]
    assert_went_back(status)
    assert_passed_over(run)


def test_all_workers_and_memory_lost_right_after_it_go_on_at_the_same_samples(
    cluster: LocalCluster, tmp_path: Path
):
    run = start(cluster, tmp_path, spares=0, minimum=3, sleep_from=BASE_STEP, sleep_s=0.3)
    run.wait(lambda status: events_of(status, "rewound") != [])
    run.lose_all()
    run.wait_recovered()
    status = run.finish()
    assert status["state"] == "succeeded", status["ending"]
    assert_passed_over(run)
