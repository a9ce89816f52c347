"""What is told of the cluster that jobs run on, without a Ray."""

from typing import Any

import pytest

from trainflow.clock import SYSTEM_CLOCK
from trainflow.service.on_ray import ray_cluster
from trainflow.service.on_ray.ray_cluster import RayCluster

GROUP = "1f2e" * 9
OWN = {"CPU": 4.0, "memory": 2.0, "my_group_a": 1.0}
RAYS = {
    "node:127.0.0.1": 1.0,
    f"CPU_group_{GROUP}": 2.0,
    f"CPU_group_0_{GROUP}": 1.0,
    f"bundle_group_{GROUP}": 1000.0,
    f"bundle_group_1_{GROUP}": 1000.0,
}


@pytest.fixture
def _ray(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cluster of one node, on which a job has reserved bundles."""
    node: dict[str, Any] = {
        "NodeID": "a",
        "NodeManagerAddress": "127.0.0.1",
        "Alive": True,
        "Resources": OWN | RAYS,
    }
    monkeypatch.setattr(ray_cluster.ray, "nodes", lambda: [node])
    monkeypatch.setattr(ray_cluster.ray, "cluster_resources", lambda: OWN | RAYS)
    monkeypatch.setattr(ray_cluster.ray, "available_resources", lambda: OWN | RAYS)


@pytest.mark.usefixtures("_ray")
def test_what_ray_counts_for_itself_is_not_told():
    told = RayCluster(SYSTEM_CLOCK).describe()
    assert [told.total, told.available, told.nodes[0].resources] == [OWN] * 3
