"""The world grows beyond its target where there is room, and by nodes that join."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.harness import RunUnderTest, events_of
from trainflow.coordination.local_cluster import LocalCluster

pytestmark = [pytest.mark.ray, pytest.mark.chaos, pytest.mark.slow]

NODE_CPUS = 2
SLOW = {"sleep_s": 0.4, "sleep_from": 5, "max_steps": 150}  # until the test lets it hurry


def expect_grown(run: RunUnderTest, before: dict[int, int], world_size: int) -> None:
    """The first ranks have kept their processes, each step came once, and nobody died."""
    after = run.pids()
    assert len(after) == world_size
    assert {rank: after[rank] for rank in before} == before, "a survivor lost its process"
    status = run.finish()
    assert status["state"] == "succeeded", status["ending"]
    steps = [step["step"] for step in status["steps"]]
    assert steps == list(range(1, len(steps) + 1))
    assert run.used_samples() == run.expected_samples()
    assert not events_of(status, "failure")
    assert len({step["lr"] for step in status["steps"]}) == 1


@pytest.mark.parametrize(
    "parallel",
    [
        pytest.param({}, id="ddp"),
        pytest.param({"mode": "fsdp"}, id="fsdp", marks=pytest.mark.soak),
    ],
)
def test_the_world_grows_beyond_its_target_and_keeps_a_spare(
    cluster: LocalCluster, tmp_path: Path, parallel: dict[str, Any]
) -> None:
    workers = {"target": 2, "spares": 1, "workers": {"maximum": 4}}
    run = RunUnderTest.start(cluster, tmp_path, parallel=parallel, **workers, **SLOW)
    run.wait_training(step=1)
    before = run.pids()
    run.wait(lambda s: s["world_size"] == 4 and s["spares"] == 1 and s["state"] == "running")
    expect_grown(run, before, 4)


@pytest.mark.soak
def test_a_node_that_joins_gives_it_another_member(cluster: LocalCluster, tmp_path: Path) -> None:
    resources = {"maximum": 4, "resources": {"CPU": 2}}
    run = RunUnderTest.start(cluster, tmp_path, spares=0, workers=resources, **SLOW)
    run.wait_training(step=5)
    before = run.pids()
    assert len(before) == 3
    node = cluster.add_node(NODE_CPUS)
    try:
        run.wait(lambda s: s["world_size"] == 4 and s["state"] == "running")
        assert run.members()[3]["host"] == node.host
        expect_grown(run, before, 4)
    finally:
        cluster.nodes.remove(node)
        node.kill()
        shutil.rmtree(node.temp_dir, ignore_errors=True)
