"""Hosts that the network loses, on hosts in network namespaces.

Whole, in one direction, or for one other alone.
"""

from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks.net_run import NetRun
from tests.chaos.harness import find_expected, find_used, make_job, wait_until
from trainflow.cli.exit_codes import ExitCode
from trainflow.coordination.chaos.net_hosts import NetHosts
from trainflow.coordination.local_cluster import LocalCluster

pytestmark = [pytest.mark.ray, pytest.mark.chaos, pytest.mark.slow]

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
    try:
        for number, (sends, hears) in enumerate(directions, start=1):
            run.wait(lambda count=number: has_trained(run, 10 * count))
            before = wait_for_spare(run, number)
            victim = before[1]
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


@pytest.mark.soak
def test_two_hosts_that_lose_each_other_alone_go_on_without_one_of_them(
    hosts: NetHosts, net: LocalCluster, tmp_path: Path
) -> None:
    """Both reach the head all the while: only their ranks can't be brought together."""
    job = make_job(
        tmp_path,
        max_steps=100_000,
        minimum=2,
        target=3,
        spares=1,
        failures={"lease_s": 30.0, "hang_timeout_s": 5.0},
    )
    run = NetRun(hosts, net, tmp_path, job)
    try:
        run.wait(lambda: has_trained(run, 10))
        before = wait_for_spare(run, 1)
        spare = before[3]
        one, other = (hosts.number_of(before[rank]["host"]) for rank in (1, 2))
        hosts.cut_between(one, other)
        run.wait(lambda: run.events("link_cut"))
        (cut,) = run.events("link_cut")
        assert set(cut["data"]["hosts"]) == {hosts.address(one), hosts.address(other)}
        assert cut["data"]["ranks"] == [2], "of two with one rank each the higher one goes"
        run.wait(lambda: run.workers()[2]["worker_id"] == spare["worker_id"])
        num_steps = len(run.read("metrics"))
        run.wait(lambda: has_trained(run, num_steps + 10))
        after = run.workers()
        assert [each["pid"] for each in after[:2]] == [each["pid"] for each in before[:2]]
        assert len(run.events("link_cut")) == 1
        hosts.mend_between(one, other)
        run.wait(lambda: run.events("link_cut_over"))
        wait_for_spare(run, 2)
        assert run.stop() == ExitCode.STOPPED
        lost = [each for each in run.events("failure") if "worker" in each["data"]]
        assert [each["data"]["worker"] for each in lost] == [before[2]["worker_id"]]
        used = find_used(tmp_path)
        assert used == find_expected(job, max(used))
    finally:
        run.kill()


def has_trained(run: NetRun, num_steps: int) -> bool:
    return len(run.read("metrics")) >= num_steps


def wait_for_spare(run: NetRun, num_warm: int) -> list[dict[str, Any]]:
    """Return the workers once so many have been warm, and one of them is a spare now.

    Before that nobody is asked, as this takes a core that the spare starts on.
    """
    found: list[dict[str, Any]] = []

    def look() -> bool:
        found[:] = run.workers()
        return [each["state"] for each in found] == ["member"] * 3 + ["spare"]

    run.wait(lambda: len(run.events("warm")) >= num_warm)
    run.wait(look)
    return found
