"""Runs whose checkpoints go to a real object store, or over a network, that fails in between."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.harness import RunUnderTest, events_of, wait_until
from tests.chaos.scraping import scrape
from tests.testbed.network_file_system import NetworkFileSystem
from tests.testbed.s3_server import S3Server
from trainflow.checkpointing.store import CheckpointStore
from trainflow.checkpointing.verification import verify
from trainflow.coordination.local_cluster import LocalCluster

pytestmark = [pytest.mark.ray, pytest.mark.chaos, pytest.mark.slow, pytest.mark.storage]

EVERY_STEPS = 7


@pytest.fixture
def start(cluster: LocalCluster, tmp_path: Path) -> Callable[[str], RunUnderTest]:
    def start(url: str) -> RunUnderTest:
        checkpoint = {"url": url, "every_steps": EVERY_STEPS}
        # Slow steps: a server is back after ten seconds or more, and is asked again after at most
        # ten; the run is not to be over by then.
        return RunUnderTest.start(
            cluster, tmp_path, minimum=3, spares=0, checkpoint=checkpoint, sleep_s=0.8
        )

    return start


def newest(status: dict[str, Any]) -> int:
    return status["checkpoint"] or 0


def break_off(run: RunUnderTest, stop: Callable[[], None], go_on: Callable[[], None]) -> None:
    """Take the store away behind a checkpoint, until others have been left out for that."""
    before = run.wait(lambda s: newest(s) >= EVERY_STEPS)
    acknowledged = [event["data"]["step"] for event in events_of(before, "checkpoint")]
    stop()
    run.wait(lambda s: s["checkpoints_skipped"] > before["checkpoints_skipped"])
    go_on()
    run.wait(lambda s: newest(s) > acknowledged[-1])


def require_skips_shown(run: RunUnderTest) -> None:
    """Wait until Prometheus is shown as many checkpoints left out as the status counts."""

    def counts() -> tuple[float, float]:
        shown = scrape("ray_trainflow_checkpoints_skipped_total", job=run.run.job_id)
        return shown, run.run.status()["checkpoints_skipped"]

    wait_until(lambda: len(set(counts())) == 1, counts)


def lose_everything(run: RunUnderTest) -> None:
    """Kill every worker and every Keeper, and empty the nodes' memory."""
    keepers = [run.keeper_of(rank) for rank in run.members()]
    nodes = run.kill_all()
    for node_id in nodes:
        run.empty_shared_memory(node_id)
    for keeper in keepers:
        if keeper is not None:
            keeper.kill()


def require_good_end(run: RunUnderTest, url: str, undisturbed: str) -> None:
    assert run.finish()["state"] == "succeeded"
    assert run.final_digests() == {undisturbed}
    store = CheckpointStore(url)
    steps = store.committed_steps()
    assert steps[-1] == run.job.training.max_steps
    assert [verify(store, step).flaws for step in steps] == [()] * len(steps)


def test_an_s3_server_killed_in_mid_run_costs_nothing_that_was_acknowledged(
    start: Any, s3: S3Server, bucket: str, undisturbed: str
) -> None:
    url = f"s3://{bucket}/run"
    run = start(url)
    break_off(run, s3.kill, s3.start_again)
    lose_everything(run)
    (resumed,) = events_of(run.wait_recovered(), "resumed")
    assert resumed["data"]["source"].endswith(url)
    require_good_end(run, url, undisturbed)


@pytest.mark.soak
def test_a_file_server_that_freezes_holds_nobody_up(
    start: Any, running_mount: NetworkFileSystem, shared: Path, undisturbed: str
) -> None:
    run = start(str(shared))
    break_off(run, running_mount.freeze, running_mount.thaw)
    require_skips_shown(run)
    require_good_end(run, str(shared), undisturbed)
