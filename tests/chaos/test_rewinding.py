"""A run whose data has a bad stretch goes back before it, and goes on with what comes after it."""

from pathlib import Path
from typing import Any

import pytest

from tests.chaos.chaos_job import NUM_SAMPLES
from tests.chaos.harness import GLOBAL_BATCH, RunUnderTest, events_of
from trainflow.checkpointing.store import CheckpointStore
from trainflow.coordination.local_cluster import LocalCluster

pytestmark = [pytest.mark.ray, pytest.mark.chaos, pytest.mark.slow]

BAD_STEP, LAST_STEP = 60, 80
MARGIN = 2  # steps for which the data stays bad after that one
BAD_FROM, BAD_UNTIL = (BAD_STEP - 1) * GLOBAL_BATCH, (BAD_STEP + MARGIN) * GLOBAL_BATCH
SETTINGS: dict[str, Any] = {
    "monitoring": {
        "anomalies": {
            "action": "rewind",
            "max_rewinds": 1,
            "rewind_margin": MARGIN,
            "stalled_after_steps": None,
        }
    },
    "data": {"order": "sequential"},
    "max_steps": LAST_STEP,
    "bad_samples": (BAD_FROM, BAD_UNTIL),
    # So that the store takes a checkpoint shortly before: from an early one the run would come
    # to the bad samples again when it has gone through all.
    "sleep_from": BAD_STEP - 25,
    "sleep_s": 0.1,
}


def start(cluster: LocalCluster, tmp_path: Path, **settings: Any) -> RunUnderTest:
    checkpoint = {"url": str(tmp_path / "store"), "every_steps": 10, "keep_last": 9}
    return RunUnderTest.start(cluster, tmp_path, checkpoint=checkpoint, **SETTINGS | settings)


def find_base(status: dict[str, Any]) -> int:
    """Return the newest step of which there was a checkpoint when the run was to go back."""
    events = status["events"]
    asked = next(place for place, event in enumerate(events) if event["kind"] == "rewind")
    return max(event["data"]["step"] for event in events[:asked] if event["kind"] == "checkpoint")


def assert_went_back(status: dict[str, Any]) -> None:
    base = find_base(status)
    (asked,) = events_of(status, "rewind")
    assert asked["data"] == {"to_step": base, "position": BAD_UNTIL}
    (done,) = events_of(status, "rewound")
    assert (done["data"]["to_step"], done["data"]["position"]) == (base, BAD_UNTIL)
    assert {event["data"]["step"] for event in events_of(status, "resumed")} == {base}
    assert events_of(status, "rewind_refused") == []


def assert_passed_over(run: RunUnderTest, base: int) -> None:
    """Each step after the base has the samples that come after the bad ones."""
    used = run.used_samples(back_to=base)
    assert used.keys() == set(range(1, LAST_STEP + 1))
    for number, samples in used.items():
        first = BAD_UNTIL - base * GLOBAL_BATCH if number > base else 0
        begin = first + (number - 1) * GLOBAL_BATCH
        positions = range(begin, begin + GLOBAL_BATCH)
        assert samples == sorted(position % NUM_SAMPLES for position in positions), number


@pytest.mark.parametrize("mode", ["ddp", pytest.param("fsdp", marks=pytest.mark.soak)])
def test_it_goes_back_and_passes_over_what_led_there(
    cluster: LocalCluster, tmp_path: Path, mode: str
):
    run = start(cluster, tmp_path, spares=0, parallel={"mode": mode})
    run.wait(lambda status: events_of(status, "rewound") != [])
    status = run.finish()
    assert status["state"] == "succeeded", status["ending"]
    assert_went_back(status)
    base = find_base(status)
    assert_passed_over(run, base)
    store = CheckpointStore(str(tmp_path / "store"))
    steps = store.committed_steps()
    assert base in steps
    assert steps[-1] == LAST_STEP, "the end makes one"
    attempt = store.read_manifest(base).attempt
    assert all(store.read_manifest(step).attempt > attempt for step in steps if step > base)


@pytest.mark.soak
def test_a_member_that_dies_right_after_it_costs_nothing_of_that(
    cluster: LocalCluster, tmp_path: Path
):
    run = start(cluster, tmp_path, spares=1)
    run.wait(lambda status: events_of(status, "rewound") != [])
    run.kill(1)
    run.wait_recovered()
    status = run.finish()
    assert status["state"] == "succeeded", status["ending"]
    assert_went_back(status)
    assert_passed_over(run, find_base(status))


@pytest.mark.soak
def test_all_workers_and_memory_lost_right_after_it_go_on_at_the_same_samples(
    cluster: LocalCluster, tmp_path: Path
):
    run = start(cluster, tmp_path, minimum=3, spares=0)
    run.wait(lambda status: events_of(status, "rewound") != [])
    run.lose_all()
    run.wait_recovered()
    status = run.finish()
    assert status["state"] == "succeeded", status["ending"]
    assert_passed_over(run, find_base(status))
