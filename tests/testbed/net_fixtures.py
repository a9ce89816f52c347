"""Hosts in network namespaces and a Ray cluster on them, for the tests whose links are disturbed.

A module of such tests says how many nodes it wants: ``NUM_NODES``.
"""

from collections.abc import Generator
from contextlib import ExitStack
from pathlib import Path

import pytest

from trainflow.coordination.chaos.net_hosts import NetHosts, net_hosts
from trainflow.coordination.local_cluster import LocalCluster
from trainflow.errors import ConfigError


@pytest.fixture
def hosts(request: pytest.FixtureRequest) -> Generator[NetHosts]:
    """Make hosts; a test is skipped where there can be none."""
    with ExitStack() as until_done:
        try:
            made = until_done.enter_context(net_hosts(1 + request.module.NUM_NODES))
        except ConfigError as reason:
            pytest.skip(str(reason))
        yield made


@pytest.fixture
def net(
    request: pytest.FixtureRequest,
    hosts: NetHosts,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Generator[LocalCluster]:
    """Start a head and a node on each other host."""
    monkeypatch.setenv("TRAINFLOW_HOME", str(tmp_path / "home"))
    num_nodes = request.module.NUM_NODES
    with LocalCluster.start(head_cpus=0, num_nodes=num_nodes, node_cpus=1, sites=hosts) as cluster:
        yield cluster
        cluster.kill()  # Ray takes its time to end
