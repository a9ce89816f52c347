"""One cluster of three simulated nodes for all chaos tests, and runs that nothing disturbs."""

from collections.abc import Generator
from pathlib import Path

import pytest
import ray

from tests.chaos.harness import (
    STARTED,
    RunUnderTest,
    end_run,
    remove_remains,
    shard_digests,
)
from tests.testbed.s3_server import S3Server
from trainflow.coordination.driver import connect
from trainflow.coordination.local_cluster import LocalCluster
from trainflow.coordination.sites import Loopback


@pytest.fixture(scope="session")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, s3_if_any: S3Server | None
) -> Generator[LocalCluster]:
    patch = pytest.MonkeyPatch()
    for name, value in (s3_if_any.environment if s3_if_any else {}).items():
        patch.setenv(name, value)  # where every process of the cluster finds it
    patch.setenv("TRAINFLOW_HOME", str(tmp_path_factory.mktemp("home")))
    sites = Loopback(["r1", "r1", "r2"])
    with LocalCluster.start(head_cpus=0, num_nodes=3, sites=sites) as started:
        connect(started.address)
        yield started
        ray.shutdown()
    remove_remains()
    patch.undo()


@pytest.fixture(autouse=True)
def no_run_goes_on() -> Generator[None]:
    """End what a test that failed has started on the cluster that all of them share."""
    num_before = len(STARTED)
    yield
    if ray.is_initialized():
        for job_id in STARTED[num_before:]:
            end_run(job_id)


@pytest.fixture(scope="session")
def undisturbed(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the digest of the weights of a run in which nothing fails."""
    work_dir = tmp_path_factory.mktemp("undisturbed")
    test = RunUnderTest.start(cluster, work_dir, spares=0, sleep_s=0.0)
    status = test.finish()
    assert status["state"] == "succeeded", status["ending"]
    digests = test.final_digests()
    assert len(digests) == 1, "ranks end with different weights"
    assert test.used_samples() == test.expected_samples()
    return digests.pop()


@pytest.fixture(scope="session")
def smooth(cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the digests of the shards of a run in which nothing fails, by rank."""
    work_dir, parallel = tmp_path_factory.mktemp("smooth"), {"mode": "fsdp"}
    test = RunUnderTest.start(cluster, work_dir, spares=0, sleep_s=0.0, parallel=parallel)
    status = test.finish()
    assert status["state"] == "succeeded", status["ending"]
    assert test.used_samples() == test.expected_samples()
    return shard_digests(test)


@pytest.fixture
def run(cluster: LocalCluster, tmp_path: Path) -> RunUnderTest:
    """Start a run with a spare, long enough for what is killed to be back before its end."""
    return RunUnderTest.start(cluster, tmp_path, spares=1)


@pytest.fixture
def well_staffed(cluster: LocalCluster, tmp_path: Path) -> RunUnderTest:
    """Start a run with two spares, on two nodes: for two deaths, or one of a whole node."""
    return RunUnderTest.start(cluster, tmp_path, spares=2)
