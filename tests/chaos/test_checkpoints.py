"""What is left when everybody who held the state is gone."""

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.chaos.harness import RunUnderTest, events_of, wait_until
from trainflow.checkpointing.store import CheckpointStore
from trainflow.coordination.local_cluster import LocalCluster

pytestmark = [pytest.mark.ray, pytest.mark.chaos, pytest.mark.slow]

EVERY_STEPS = 20


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(str(tmp_path / "checkpoints"))


@pytest.fixture
def start(cluster: LocalCluster, tmp_path: Path, store: CheckpointStore) -> Callable[..., Any]:
    """Start a run that checkpoints; several of one test share the folder."""

    def start(name: str = "first", **settings: Any) -> RunUnderTest:
        work_dir = tmp_path / name
        work_dir.mkdir()
        accept = ["args.work_dir"]  # of each run its own
        checkpoint = {"url": store.url, "every_steps": EVERY_STEPS, "accept": accept}
        fixed = {"minimum": 3, "spares": 0, "checkpoint": checkpoint}
        return RunUnderTest.start(cluster, work_dir, **fixed, **settings)

    return start


def test_every_worker_and_all_memory_lost_goes_on_from_storage(
    start: Any, undisturbed: str
) -> None:
    # From the first on an interval takes seconds, and bringing a checkpoint less.
    run = start(sleep_s=0.2, sleep_from=EVERY_STEPS)
    run.wait_checkpoint(40)
    run.lose_all()
    status = run.wait_recovered()
    (resumed,) = events_of(status, "resumed")
    assert "checkpoint" in resumed["data"]["source"]
    assert resumed["data"]["step"] >= 40
    assert events_of(status, "recovered")[0]["data"]["steps_lost"] <= EVERY_STEPS
    assert run.finish()["state"] == "succeeded"
    assert run.final_digests() == {undisturbed}


@pytest.mark.soak
def test_a_stopped_run_is_gone_on_with_by_another(
    start: Any, store: CheckpointStore, undisturbed: str
) -> None:
    first = start()
    first.wait_training(step=30)
    first.run.stop()
    stopped_at = first.finish()["step"]
    assert store.committed_steps()[-1] == stopped_at, "a stop makes a checkpoint"
    second = start("second")
    status = second.finish()
    assert status["state"] == "succeeded", status["ending"]
    assert events_of(status, "resumed")[0]["data"]["step"] == stopped_at
    assert second.final_digests() == {undisturbed}
    used = first.used_samples() | second.used_samples()
    assert used == first.expected_samples(), "each sample once over both runs"
    assert store.committed_steps()[-1] == first.job.training.max_steps, "the end makes one too"


@pytest.mark.soak
def test_a_run_whose_code_raises_keeps_the_checkpoint_that_is_on_its_way(
    start: Any, store: CheckpointStore
) -> None:
    run = start(raise_at=EVERY_STEPS + 1)
    assert run.finish()["state"] == "failed"
    assert store.committed_steps() == [EVERY_STEPS]


def test_a_damaged_checkpoint_is_left_for_the_one_before_it(
    start: Any, store: CheckpointStore, undisturbed: str
) -> None:
    first = start()
    first.wait_training(step=30)
    first.run.stop()
    first.finish()
    before, newest = store.committed_steps()[-2:]
    own = store.read_manifest(newest).chunks().keys() - store.read_manifest(before).chunks().keys()
    for chunk_id in own:
        path = Path(store.url) / "chunks" / chunk_id[:2] / chunk_id
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    second = start("second")
    status = second.finish()
    assert status["state"] == "succeeded", status["ending"]
    assert events_of(status, "checkpoint_unusable")[0]["data"]["step"] == newest
    assert events_of(status, "resumed")[-1]["data"]["step"] == before
    assert second.final_digests() == {undisturbed}


@pytest.mark.soak
def test_a_run_that_ends_during_a_drill_leaves_nothing_of_it_and_only_what_is_kept(
    cluster: LocalCluster, tmp_path: Path, store: CheckpointStore
) -> None:
    checkpoint = {"url": store.url, "every_steps": 4, "keep_last": 1, "drill_every_s": 0.05}
    run = RunUnderTest.start(cluster, tmp_path, spares=0, checkpoint=checkpoint)
    run.wait_checkpoint(20)
    pid = run.coordinator_pid()
    assert pid is not None
    drills: list[psutil.Process] = []

    def is_drilled() -> bool:
        drills[:] = drills_of(pid)
        return bool(drills)

    wait_until(is_drilled, lambda: "nothing is drilled")
    (drill,) = drills
    scratch = Path(drill.environ()["TMPDIR"])
    run.run.stop()
    status = run.finish()
    assert not drill.is_running()
    assert not scratch.exists()
    assert store.committed_steps() == [status["step"]]
    assert len(store.manifest_names()) == 1


def drills_of(pid: int) -> list[psutil.Process]:
    """Return what drills for a coordinator."""
    found: list[psutil.Process] = []
    for child in psutil.Process(pid).children():
        with suppress(psutil.NoSuchProcess):
            if "trainflow.computation.drill" in child.cmdline():
                found.append(child)
    return found
