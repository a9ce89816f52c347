"""A node that is to go is emptied between two steps: by a notice in a file, and by Ray's drain."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.harness import RunUnderTest, events_of, shard_digests
from tests.chaos.test_error_feedback import FED_BACK
from tests.chaos.test_recovery import expect_as_undisturbed
from trainflow.checkpointing.store import CheckpointStore
from trainflow.coordination.local_cluster import LocalCluster
from trainflow.coordination.ray_drains import find_draining_nodes

pytestmark = [pytest.mark.ray, pytest.mark.chaos, pytest.mark.slow]

NODE_CPUS = 2
SLOW = {"sleep_s": 0.12}  # until the test lets it hurry


def start(cluster: LocalCluster, work_dir: Path, **settings: Any) -> RunUnderTest:
    notice = {"preemption_notice": str(work_dir / "notice-{host}")}
    return RunUnderTest.start(cluster, work_dir, failures=notice, **SLOW | settings)


def give_notice(run: RunUnderTest, rank: int, text: str) -> Path:
    """Tell a member's node that its machine is to be taken back."""
    path = run.work_dir / f"notice-{run.members()[rank]['host']}"
    path.write_text(text)
    return path


def wait_drained(run: RunUnderTest) -> dict[str, Any]:
    status = run.wait(lambda s: bool(events_of(s, "drained")))
    assert not events_of(status, "failure")
    return status


def expect_no_step_twice(status: dict[str, Any]) -> None:
    steps = [step["step"] for step in status["steps"]]
    assert steps == list(range(1, len(steps) + 1))
    assert not events_of(status, "recovered")
    assert not events_of(status, "residuals_lost")


def expect_rank_elsewhere(run: RunUnderTest, before: dict[int, dict[str, Any]], rank: int) -> None:
    after = run.members()
    pids = {each: member["pid"] for each, member in before.items()}
    others = {each: member["pid"] for each, member in after.items() if each != rank}
    assert others == {each: pids[each] for each in pids if each != rank}, "a survivor was restarted"
    assert after[rank]["pid"] != pids[rank]
    assert before[rank]["host"] not in {member["host"] for member in after.values()}


def test_a_notice_in_a_file_empties_the_node_before_it_goes(
    cluster: LocalCluster, tmp_path: Path, undisturbed: str
) -> None:
    run = start(cluster, tmp_path)
    run.wait_training(step=10, spares=2)
    before, node = run.members(), run.node_of(1)
    give_notice(run, 1, "60")
    status = wait_drained(run)
    expect_rank_elsewhere(run, before, 1)
    (drain,), (drained,) = events_of(status, "drain"), events_of(status, "drained")
    assert drain["data"]["ranks"] == drained["data"]["ranks"] == [1]
    assert drain["data"]["host"] == before[1]["host"]
    assert 30 < drained["data"]["left_s"] < 60
    node.kill()
    run.empty_shared_memory(before[1]["node_id"])
    status = run.wait(lambda s: bool(events_of(s, "failure")))
    run.wait_training(step=status["step"] + 3)
    cluster.replace(node, cpus=NODE_CPUS)
    expect_no_step_twice(expect_as_undisturbed(run, undisturbed))


@pytest.mark.soak
def test_sharded_state_goes_with_the_rank(
    cluster: LocalCluster, tmp_path: Path, smooth: list[str]
) -> None:
    run = start(cluster, tmp_path, minimum=3, parallel={"mode": "fsdp"})
    run.wait_training(step=10, spares=2)
    before = run.members()
    give_notice(run, 0, "60")
    wait_drained(run)
    expect_rank_elsewhere(run, before, 0)
    status = run.finish()
    assert status["state"] == "succeeded", status["ending"]
    assert shard_digests(run) == smooth
    assert run.used_samples() == run.expected_samples()
    expect_no_step_twice(status)


@pytest.mark.soak
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="ddp"),
        pytest.param({"parallel": {"mode": "fsdp"}}, id="fsdp"),
        pytest.param({"communication": FED_BACK}, id="error feedback"),
    ],
)
def test_without_a_spare_the_world_is_smaller_until_the_notice_is_taken_back(
    cluster: LocalCluster, tmp_path: Path, settings: dict[str, Any]
) -> None:
    slow = {"sleep_s": 0.25, "sleep_from": 10, "max_steps": 100}
    run = start(cluster, tmp_path, spares=0, minimum=2, **slow, **settings)
    run.wait_training(step=10)
    before = run.pids()
    path = give_notice(run, 1, "")
    status = wait_drained(run)
    assert status["world_size"] == 2
    assert set(run.pids().values()) == {before[0], before[2]}
    path.unlink()
    status = run.wait(lambda s: s["world_size"] == 3)
    assert set(run.pids().values()) == set(before.values()), "nobody was restarted"
    assert events_of(status, "drain_over")
    status = run.finish()
    assert status["state"] == "succeeded", status["ending"]
    assert run.used_samples() == run.expected_samples()
    expect_no_step_twice(status)
    assert {step["world_size"] for step in status["steps"]} == {2, 3}


def drain_by_ray(cluster: LocalCluster, node_id: str, within_s: int) -> None:
    """Do what an autoscaler does."""
    command = [sys.executable, "-m", "ray.scripts.scripts", "drain-node"]
    command += [f"--address={cluster.address}", f"--node-id={node_id}"]
    command += ["--reason=DRAIN_NODE_REASON_PREEMPTION", "--reason-message=a test"]
    command += [f"--deadline-remaining-seconds={within_s}"]
    subprocess.run(command, check=True, capture_output=True, timeout=60)


@pytest.mark.soak
def test_a_node_that_ray_drains_is_emptied_before_it_goes(
    cluster: LocalCluster, tmp_path: Path, undisturbed: str
) -> None:
    run = RunUnderTest.start(cluster, tmp_path, **SLOW)
    run.wait_training(step=10, spares=2)
    before, node = run.members(), run.node_of(2)
    assert before[2]["node_id"] not in find_draining_nodes()
    drain_by_ray(cluster, before[2]["node_id"], within_s=60)
    try:
        node_id = before[2]["node_id"]
        deadline_at_s = find_draining_nodes()[node_id]
        status = wait_drained(run)
        expect_rank_elsewhere(run, before, 2)
        (drain,) = events_of(status, "drain")
        assert (drain["data"]["node"], drain["data"]["deadline_at_s"]) == (node_id, deadline_at_s)
        assert events_of(status, "drained")[0]["data"]["left_s"] > 0
    finally:
        node.kill()
        run.empty_shared_memory(before[2]["node_id"])
        cluster.replace(node, cpus=NODE_CPUS)
    expect_no_step_twice(expect_as_undisturbed(run, undisturbed))


@pytest.mark.soak
def test_where_all_nodes_are_to_go_ranks_stay_and_the_state_is_in_storage_before(
    cluster: LocalCluster, tmp_path: Path, undisturbed: str
) -> None:
    store = CheckpointStore(str(tmp_path / "checkpoints"))
    seldom = {"url": store.url, "every_steps": 1000}
    run = start(cluster, tmp_path, spares=0, minimum=3, checkpoint=seldom)
    noticed_after = run.wait_training(step=5)["step"]
    before = run.members()
    for rank in before:
        give_notice(run, rank, "16")
    status = run.wait(lambda s: len(events_of(s, "checkpoint")) == 2)
    (told,) = events_of(status, "nowhere_to_go")
    assert told["data"]["hosts"] == sorted(member["host"] for member in before.values())
    first, second = events_of(status, "checkpoint")
    assert noticed_after < first["data"]["step"] < second["data"]["step"]
    assert second["at_s"] < told["data"]["deadline_at_s"]
    assert store.committed_steps()[-1] >= second["data"]["step"]
    assert run.pids() == {rank: member["pid"] for rank, member in before.items()}
    status = expect_as_undisturbed(run, undisturbed)
    expect_no_step_twice(status)
    assert {step["world_size"] for step in status["steps"]} == {3}
    assert not events_of(status, "drained")
