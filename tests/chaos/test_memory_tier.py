"""Every rank is gone at once, and a node that is left has the state in memory."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.harness import STARTED, RunUnderTest, events_of, make_job, wait_until
from trainflow.config.job import SnapshotConfig
from trainflow.coordination.driver import start_run
from trainflow.coordination.local_cluster import LocalCluster

pytestmark = [pytest.mark.ray, pytest.mark.chaos, pytest.mark.slow]

NODE_CPUS = 2


@pytest.fixture
def run(cluster: LocalCluster, tmp_path: Path) -> RunUnderTest:
    """Start a run that waits for all its ranks: a smaller world ends with other weights."""
    return RunUnderTest.start(cluster, tmp_path, minimum=3, spares=0)


def resumed_from_memory(status: dict[str, Any]) -> dict[str, Any]:
    (resumed,) = events_of(status, "resumed")
    assert "memory" in resumed["data"]["source"]
    (recovered,) = events_of(status, "recovered")
    return recovered["data"]


@pytest.mark.soak
def test_every_worker_killed_loses_no_step(run: RunUnderTest, undisturbed: str) -> None:
    run.wait_training(step=30)
    run.kill_all()
    status = run.wait_recovered()
    assert resumed_from_memory(status)["steps_lost"] == 0
    assert run.finish()["state"] == "succeeded"
    assert run.final_digests() == {undisturbed}
    assert run.used_samples() == run.expected_samples()


def test_every_worker_and_the_coordinator_killed_loses_no_step(
    run: RunUnderTest, undisturbed: str
) -> None:
    run.wait_training(step=30)
    coordinator = run.run.coordinator_pid()
    run.kill_all()
    os.kill(coordinator, signal.SIGKILL)
    status = run.wait_recovered()
    (restarted,) = events_of(status, "coordinator_restarted")
    assert restarted["data"]["workers"] == []
    assert len(events_of(status, "submitted")) == 1, "nothing is launched anew"
    assert resumed_from_memory(status)["steps_lost"] == 0
    assert run.finish()["state"] == "succeeded"
    assert run.final_digests() == {undisturbed}
    assert run.used_samples() == run.expected_samples()


@pytest.mark.soak
def test_one_node_that_is_left_is_enough(
    run: RunUnderTest, cluster: LocalCluster, undisturbed: str
) -> None:
    run.wait_training(step=30)
    keeps = run.node_of(0)
    lost = [node for node in cluster.nodes if node is not keeps]
    run.kill_all()
    for node in lost:
        node.kill()
    for node in lost:
        cluster.replace(node, cpus=NODE_CPUS)
    status = run.wait_recovered()
    assert resumed_from_memory(status)["steps_lost"] == 0
    assert run.finish()["state"] == "succeeded"
    assert run.final_digests() == {undisturbed}


@pytest.mark.soak
def test_a_keeper_killed_too_finds_what_it_held(run: RunUnderTest, undisturbed: str) -> None:
    run.wait_training(step=30)
    keepers = [run.keeper_of(rank) for rank in range(3)]
    run.kill_all()
    for keeper in keepers:
        if keeper is not None:
            keeper.kill()
    status = run.wait_recovered()
    assert resumed_from_memory(status)["steps_lost"] == 0
    assert run.finish()["state"] == "succeeded"
    assert run.final_digests() == {undisturbed}


@pytest.mark.soak
def test_a_node_without_workers_holds_a_copy(cluster: LocalCluster, tmp_path: Path) -> None:
    """One worker, on one node: another node is sent each state, as the link allows."""
    # Six microbatches of 0.1 s: a step is long beside a copy, so that the bound tells of copies and
    # not of short steps. What may be missing is the step committed as the node died, and one whose
    # copy was on its way.
    run = RunUnderTest.start(cluster, tmp_path, target=1, spares=0, max_steps=30, sleep_s=0.1)
    run.wait_training(step=10)
    # A rack that is lost takes one with it.
    wait_until(lambda: run.racks_with_copies() == ["r1", "r2"], run.racks_with_copies)
    home = run.node_of(0)
    home.kill()
    cluster.replace(home, cpus=NODE_CPUS)
    status = run.wait_recovered()
    recovered = resumed_from_memory(status)
    assert recovered["steps_lost"] <= 2, "copies follow training closely"
    assert run.finish()["state"] == "succeeded"
    assert len(run.final_digests()) == 1


@pytest.mark.soak
def test_the_only_holders_keeper_is_killed_while_it_is_read_from(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """Its memory is still there, and served again once the Keeper is: nothing else is tried."""
    job = make_job(tmp_path, target=1, spares=0).model_copy(
        update={
            "entrypoint": "tests.chaos.held_read_job:train",
            "snapshot": SnapshotConfig(replicas=0),
        }
    )
    run = RunUnderTest(start_run(job), cluster, tmp_path, job)
    STARTED.append(run.run.job_id)
    run.wait_training(step=30)
    keeper = run.keeper_of(0)
    assert keeper is not None
    run.kill_all()
    run.wait_file("holding-*")
    keeper.kill()
    keeper.wait(timeout=10.0)
    (tmp_path / "release").touch()
    status = run.wait_recovered()
    assert events_of(status, "snapshot_unreachable")
    assert {"memory" in each["data"]["source"] for each in events_of(status, "resumed")} == {True}
    (recovered,) = events_of(status, "recovered")
    assert recovered["data"]["steps_lost"] == 0
    assert run.finish()["state"] == "succeeded"
    assert len(run.final_digests()) == 1
