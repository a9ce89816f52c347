"""A rank of a sharded model dies in each phase of a step, and a Keeper in the middle of a copy."""

from pathlib import Path

import pytest
import ray

from tests.chaos.deaths import AT_TIME, die_while_streaming
from tests.chaos.harness import RunUnderTest, events_of, shard_digests, wait_until
from tests.chaos.test_sharded import FSDP
from trainflow.coordination import names
from trainflow.coordination.local_cluster import LocalCluster
from trainflow.epochs import ShardId

pytestmark = [pytest.mark.ray, pytest.mark.chaos, pytest.mark.slow, pytest.mark.soak]

STEP = 25


@pytest.mark.parametrize("phase", AT_TIME)
def test_a_death_in_each_phase_of_a_step_loses_none(
    cluster: LocalCluster, tmp_path: Path, smooth: list[str], phase: str
) -> None:
    at = {"rank": 1, "step": STEP, "phase": phase}
    run = RunUnderTest.start(cluster, tmp_path, minimum=3, spares=1, sleep_s=0.0, die_at=at, **FSDP)
    status = run.finish()
    assert status["state"] == "succeeded", status["ending"]
    (failure,) = events_of(status, "failure")
    assert failure["data"]["rank"] == 1
    (recovered,) = events_of(status, "recovered")
    assert recovered["data"]["steps_lost"] == 0
    assert shard_digests(run) == smooth
    assert run.used_samples() == run.expected_samples()


def test_a_keeper_that_dies_while_it_streams_a_copy_goes_on_with_it(
    cluster: LocalCluster, tmp_path: Path, smooth: list[str]
) -> None:
    """The rank whose shards it was to copy dies with it."""
    # Longer than a Keeper takes to be back: a node that is given up has no memory to go on from.
    lease = {"lease_s": 25.0}
    slow = {"sleep_s": 0.4, "sleep_from": STEP}
    run = RunUnderTest.start(cluster, tmp_path, minimum=3, failures=lease, **slow, **FSDP)
    run.wait_training(step=STEP, spares=2)
    keeper = run.keeper_of(1)
    assert keeper is not None
    actor = keeper_on(run, run.members()[1]["node_id"])
    actor.__ray_call__.remote(die_while_streaming)
    keeper.wait(timeout=30.0)
    run.kill(1)
    status = run.wait_recovered()
    (recovered,) = events_of(status, "recovered")
    assert recovered["data"]["steps_lost"] == 0
    step = status["step"]
    wait_until(lambda: newest_copy(run, rank=1) > step, lambda: "no copies since")
    assert run.finish()["state"] == "succeeded"
    assert shard_digests(run) == smooth
    assert run.used_samples() == run.expected_samples()


def keeper_on(run: RunUnderTest, node_id: str) -> ray.actor.ActorHandle:
    return ray.get_actor(names.keeper_name(run.run.job_id, node_id), names.NAMESPACE)


def newest_copy(run: RunUnderTest, *, rank: int) -> int:
    """Return the newest step of which another node has a rank's shards; -1 if none has any."""
    members = run.members()
    shard = ShardId(rank, len(members))
    # A node that has no member, but a spare, may be where they go.
    nodes = {worker["node_id"] for worker in run.run.workers()}
    others = nodes - {None, members[rank]["node_id"]}
    held = [pair for node in others for pair in ray.get(keeper_on(run, node).held.remote()).held]
    return max((version.step for version, each in held if each == shard), default=-1)
