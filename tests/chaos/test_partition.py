"""Hosts that the network loses, whole or in one direction, on hosts in network namespaces."""

from pathlib import Path

import psutil
import pytest

from benchmarks.net_run import NetRun
from tests.chaos.harness import find_expected, find_used, make_job, wait_until
from tests.chaos.net_waits import has_trained, wait_for_staff
from trainflow.cli.exit_codes import ExitCode
from trainflow.coordination.chaos.net_hosts import NetHosts
from trainflow.coordination.local_cluster import LocalCluster

pytestmark = [pytest.mark.ray, pytest.mark.chaos, pytest.mark.slow, pytest.mark.soak]

NUM_NODES = 4  # one more than ranks, for the spare


def test_a_host_that_is_cut_off_in_any_direction_is_made_up_for(
    hosts: NetHosts, net: LocalCluster, tmp_path: Path
) -> None:
    """Its worker ends itself meanwhile; once the link is mended, the host has a spare again."""
    job = make_job(
        tmp_path,
        max_steps=100_000,
        sleep_s=0.1,  # leaves a new spare the cores to start on
        target=3,
        spares=1,
        failures={"lease_s": 4.0, "hang_timeout_s": 60.0},
    )
    run = NetRun(hosts, net, tmp_path, job)
    directions = [(False, False), (True, False), (False, True)]
    lost: list[dict[str, int]] = []
    try:
        for number, (sends, hears) in enumerate(directions, start=1):
            run.wait(lambda count=number: has_trained(run, 10 * count))
            before = wait_for_staff(run, num_warm=number)
            # A spare is on the node of before again: what its Keeper has ended is heard, once.
            assert [each["data"]["workers"] for each in run.events("lease_ended")] == lost
            victim = before[1]
            lost.append({victim["worker_id"]: 1})
            host = hosts.number_of(victim["host"])
            hosts.cut(host, sends=sends, hears=hears)
            run.wait(lambda count=number: len(run.events("recovered")) == count)
            (*_, told) = run.events("failure")
            assert victim["worker_id"] in told["text"]
            if not sends:  # else the end of its worker is heard
                assert "its node has not been heard within its lease" in told["text"]
            wait_until(lambda pid=victim["pid"]: not psutil.pid_exists(pid), lambda: "it lives")
            after = run.workers()
            assert (after[0]["pid"], after[2]["pid"]) == (before[0]["pid"], before[2]["pid"])
            hosts.shape(None, host)
        assert run.stop() == ExitCode.STOPPED
        assert len(run.events("failure")) == len(directions)
        used = find_used(tmp_path)
        assert used == find_expected(job, max(used))
    finally:
        run.kill()
