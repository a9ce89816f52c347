"""Every rank holds what no other does; ranks, nodes and all of them at once die."""

from pathlib import Path

import pytest

from tests.chaos.harness import RunUnderTest, events_of, shard_digests
from trainflow.checkpointing.store import CheckpointStore
from trainflow.checkpointing.verification import verify
from trainflow.coordination.local_cluster import LocalCluster

pytestmark = [pytest.mark.ray, pytest.mark.chaos, pytest.mark.slow]

FSDP = {"parallel": {"mode": "fsdp"}}
NODE_CPUS = 2
EVERY_STEPS = 20
# Until the test lets it hurry: a new worker arrives before the end.
SLOW = {"sleep_s": 0.25, "sleep_from": 10}


@pytest.fixture
def run(cluster: LocalCluster, tmp_path: Path) -> RunUnderTest:
    """Start a sharded run with a spare."""
    return RunUnderTest.start(cluster, tmp_path, minimum=3, spares=1, **FSDP)


@pytest.fixture
def well_staffed(cluster: LocalCluster, tmp_path: Path) -> RunUnderTest:
    """Start one with two spares, on two nodes: for two deaths, or one of a whole node."""
    return RunUnderTest.start(cluster, tmp_path, minimum=3, spares=2, **FSDP)


def remove_chunks(store: CheckpointStore) -> int:
    """Remove what checkpoints are made of; returns how many files that were."""
    chunks = [path for path in (Path(store.url) / "chunks").rglob("*") if path.is_file()]
    for path in chunks:
        path.unlink()
    return len(chunks)


def test_a_killed_rank_is_replaced_and_no_step_is_lost(
    run: RunUnderTest, smooth: list[str]
) -> None:
    run.wait_training(step=30, spares=1)
    pids = run.pids()
    run.kill(1)
    (recovered,) = events_of(run.wait_recovered(), "recovered")
    assert recovered["data"]["steps_lost"] == 0
    assert [run.pids()[rank] for rank in (0, 2)] == [pids[0], pids[2]], "survivors stay"
    assert run.finish()["state"] == "succeeded"
    assert shard_digests(run) == smooth
    assert run.used_samples() == run.expected_samples()


@pytest.mark.soak
@pytest.mark.parametrize(
    "parallel", [{"mode": "zero1"}, {"mode": "zero2", "activation_checkpointing": "full"}]
)
def test_so_it_is_where_layers_stay_gathered_and_are_computed_again(
    cluster: LocalCluster, tmp_path: Path, smooth: list[str], parallel: dict[str, str]
) -> None:
    run = RunUnderTest.start(cluster, tmp_path, minimum=3, spares=1, parallel=parallel)
    run.wait_training(step=30, spares=1)
    run.kill(1)
    (recovered,) = events_of(run.wait_recovered(), "recovered")
    assert recovered["data"]["steps_lost"] == 0
    assert run.finish()["state"] == "succeeded"
    assert shard_digests(run) == smooth


@pytest.mark.soak
def test_a_group_goes_on_with_a_spare_and_else_another_alone(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """Two groups of two: they hold the same, and end with the same, whoever was replaced."""
    parallel = {"mode": "hsdp", "shard": 2, "gather": "fp8"}
    groups = {"target": 4, "minimum": 2, "parallel": parallel}
    run = RunUnderTest.start(cluster, tmp_path, spares=1, **groups, **SLOW)
    run.wait_training(step=10, spares=1)
    run.wait(lambda status: status["steps"][-1]["copy_lag"] is not None)
    held_apart = {shard for shard in (0, 1) if run.rack_of(shard) != run.rack_of(shard + 2)}
    assert held_apart.isdisjoint(run.shards_sent()), "what members elsewhere hold was sent"
    run.kill(1)
    (recovered,) = events_of(run.wait_recovered(), "recovered")
    assert recovered["data"]["steps_lost"] == 0
    assert recovered["data"]["world_size"] == 4
    run.wait_training(step=20)
    run.kill(0, 2)
    run.wait_recovered(count=2)
    run.wait(lambda status: status["world_size"] == 4)
    assert run.finish()["state"] == "succeeded"
    digests = [(tmp_path / f"final-{rank}.txt").read_text() for rank in range(4)]
    assert digests[0] != digests[1]
    assert digests[:2] == digests[2:]
    assert run.used_samples() == run.expected_samples()


@pytest.mark.soak
def test_two_ranks_killed_at_once(well_staffed: RunUnderTest, smooth: list[str]) -> None:
    run = well_staffed
    run.wait_training(step=30, spares=2)
    run.kill(0, 2)
    run.wait_recovered()
    assert run.finish()["state"] == "succeeded"
    assert shard_digests(run) == smooth
    assert run.used_samples() == run.expected_samples()


def test_what_a_lost_node_held_another_has(
    well_staffed: RunUnderTest, cluster: LocalCluster, smooth: list[str]
) -> None:
    run = well_staffed
    run.wait_training(step=30, spares=2)
    node = run.node_of(1)
    node.kill()
    status = run.wait_recovered()
    cluster.replace(node, cpus=NODE_CPUS)
    assert not events_of(status, "failed")
    assert run.finish()["state"] == "succeeded"
    assert shard_digests(run) == smooth


@pytest.mark.soak
def test_every_worker_killed_goes_on_from_memory(run: RunUnderTest, smooth: list[str]) -> None:
    run.wait_training(step=30)
    run.kill_all()
    run.wait_recovered()
    assert run.finish()["state"] == "succeeded"
    assert shard_digests(run) == smooth


@pytest.mark.soak
def test_a_keeper_killed_too_finds_what_it_held(run: RunUnderTest, smooth: list[str]) -> None:
    run.wait_training(step=30, spares=1)
    keeper = run.keeper_of(1)
    assert keeper is not None
    run.kill(1)
    keeper.kill()
    run.wait_recovered()
    run.kill_all()
    recovered = events_of(run.wait_recovered(count=2), "recovered")
    assert [event["data"]["steps_lost"] for event in recovered] == [0, 0]
    assert run.finish()["state"] == "succeeded"
    assert shard_digests(run) == smooth
    assert run.used_samples() == run.expected_samples()


@pytest.mark.soak
def test_shards_lost_with_every_copy_go_on_from_storage(
    cluster: LocalCluster, tmp_path: Path, smooth: list[str]
) -> None:
    store = CheckpointStore(str(tmp_path / "checkpoints"))
    checkpoint = {"url": store.url, "every_steps": EVERY_STEPS}
    # From the first on an interval takes seconds, and bringing them less.
    slow = {"sleep_s": 0.2, "sleep_from": EVERY_STEPS, "spares": 0}
    run = RunUnderTest.start(cluster, tmp_path, minimum=3, checkpoint=checkpoint, **slow, **FSDP)
    run.wait_checkpoint(40)
    run.lose_all()
    status = run.wait_recovered()
    (resumed,) = events_of(status, "resumed")
    assert "checkpoint" in resumed["data"]["source"]
    assert resumed["data"]["step"] >= 40
    assert events_of(status, "recovered")[0]["data"]["steps_lost"] <= EVERY_STEPS
    assert run.finish()["state"] == "succeeded"
    assert shard_digests(run) == smooth
    assert verify(store, run.job.training.max_steps).flaws == ()


@pytest.mark.soak
@pytest.mark.parametrize("world", [3, 2])
def test_the_world_shrinks_and_grows_back_from_memory(
    cluster: LocalCluster, tmp_path: Path, world: int
) -> None:
    """There is a checkpoint, and it can't be read."""
    store = CheckpointStore(str(tmp_path / "checkpoints"))
    settings = {
        "target": world,
        "spares": 0,
        "max_steps": 2 * EVERY_STEPS - 1,  # no other checkpoint but that of the end
        "checkpoint": {"url": store.url, "every_steps": EVERY_STEPS},
        "sleep_from": EVERY_STEPS,
        "sleep_s": 1.0,
    }
    run = RunUnderTest.start(cluster, tmp_path, **settings, **FSDP)
    run.wait_checkpoint(EVERY_STEPS)
    assert remove_chunks(store) > 0
    run.kill(1)
    run.wait(lambda status: status["world_size"] == world - 1)
    run.wait(lambda status: status["world_size"] == world)
    status = run.finish()
    assert status["state"] == "succeeded", status["ending"]
    (recovered,) = events_of(status, "recovered")
    assert recovered["data"]["steps_lost"] == 0
    assert not events_of(status, "resumed"), "from an older state"
    assert not events_of(status, "checkpoint_unusable")
    assert run.used_samples() == run.expected_samples()
    shard_digests(run)


@pytest.mark.soak
def test_a_rank_that_stands_still_is_told_from_those_that_wait_for_its_parameters(
    cluster: LocalCluster, tmp_path: Path, smooth: list[str]
) -> None:
    run = RunUnderTest.start(
        cluster, tmp_path, minimum=3, spares=1, sleep_s=0.1, hang_at=25, **FSDP
    )
    run.wait_training(step=20, spares=1)
    worker = run.members()[1]["worker_id"]
    hangs = events_of(run.wait_recovered(), "hang")
    assert [event["text"].split(":")[0] for event in hangs] == [worker]
    assert run.finish()["state"] == "succeeded"
    assert shard_digests(run) == smooth
