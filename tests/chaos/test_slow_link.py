"""A host whose link falls to a tenth of its speed is named, on hosts in network namespaces."""

from pathlib import Path

import pytest

from benchmarks.net_run import NetRun
from tests.chaos.harness import make_job
from trainflow.cli.exit_codes import ExitCode
from trainflow.coordination.chaos.net_hosts import NetHosts
from trainflow.coordination.local_cluster import LocalCluster

pytestmark = [pytest.mark.ray, pytest.mark.chaos, pytest.mark.slow]

NUM_NODES = 3
SLOW_HOST = 2
RATE, TENTH = "200mbit", "20mbit"
USUAL_FOR_S = 12.0
"""For so long training shows what is usual: some windows in a row."""


@pytest.mark.soak
def test_a_host_whose_link_falls_to_a_tenth_of_its_speed_is_named_and_nobody_before(
    hosts: NetHosts, net: LocalCluster, tmp_path: Path
) -> None:
    hosts.shape(RATE)
    job = make_job(
        tmp_path,
        max_steps=100_000,
        sleep_s=0.01,
        minimum=NUM_NODES,
        target=NUM_NODES,
        spares=0,
        hidden=4000,
        failures={"hang_timeout_s": 60.0, "lease_s": 30.0},
    )
    run = NetRun(hosts, net, tmp_path, job)
    try:
        run.wait(lambda: run.has_trained_for(USUAL_FOR_S))
        assert run.events("slow_network") == []
        hosts.shape(TENTH, SLOW_HOST)
        run.wait(lambda: run.events("slow_network"))
        (event,) = run.events("slow_network")
        (link,) = event["data"]["links"]
        assert link["hosts"] == [hosts.address(SLOW_HOST)]
        assert len(link["node_ids"]) == len(link["ranks"]) == 1
        assert 3 * link["speed"]["bytes_per_s"] <= link["others"]["bytes_per_s"]
        hosts.shape(RATE, SLOW_HOST)
        run.wait(lambda: run.events("slow_network_over"))
        (over,) = run.events("slow_network_over")
        assert over["data"]["cause"] == "usual"
        assert run.stop() == ExitCode.STOPPED
        assert run.events("failure", "slow_network") == [event]
    finally:
        run.kill()
