"""Two hosts that lose each other alone, while both reach the head, in network namespaces.

Their ranks can't be brought together: one of the two gives its own up until the link is mended.
"""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.net_run import NetRun
from tests.chaos.harness import find_expected, find_used, make_job
from tests.chaos.net_waits import has_trained, wait_for_staff
from trainflow.cli.exit_codes import ExitCode
from trainflow.config.job import JobConfig
from trainflow.coordination.chaos.net_hosts import NetHosts
from trainflow.coordination.local_cluster import LocalCluster

pytestmark = [pytest.mark.ray, pytest.mark.chaos, pytest.mark.slow, pytest.mark.soak]

NUM_NODES = 4  # one more than ranks, for the spare


def job_of(work_dir: Path, *, spares: int = 1) -> JobConfig:
    return make_job(
        work_dir,
        max_steps=100_000,
        minimum=2,
        target=3,
        spares=spares,
        failures={"lease_s": 30.0, "hang_timeout_s": 5.0},
    )


def test_a_spare_takes_the_rank_of_one_of_them(
    hosts: NetHosts, net: LocalCluster, tmp_path: Path
) -> None:
    """Both reach the head all the while: only their ranks can't be brought together."""
    job = job_of(tmp_path)
    run = NetRun(hosts, net, tmp_path, job)
    try:
        run.wait(lambda: has_trained(run, 10))
        before = wait_for_staff(run, num_warm=1)
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
        wait_for_staff(run, num_warm=2)
        assert run.stop() == ExitCode.STOPPED
        lost = [each for each in run.events("failure") if "worker" in each["data"]]
        assert [each["data"]["worker"] for each in lost] == [before[2]["worker_id"]]
        used = find_used(tmp_path)
        assert used == find_expected(job, max(used))
    finally:
        run.kill()


def refuse(hosts: NetHosts, one: int, other: int) -> None:
    hosts.refuse_between(one, other)


def unroute(hosts: NetHosts, one: int, other: int) -> None:
    hosts.unroute_between(one, other)


@pytest.mark.parametrize("cut", [refuse, unroute])
def test_those_who_are_refused_are_told_apart_as_soon_as_they_stand_still(
    hosts: NetHosts, net: LocalCluster, tmp_path: Path, cut: Callable[[NetHosts, int, int], None]
) -> None:
    """Nobody waits there: each attempt to form an epoch fails at once."""
    job = job_of(tmp_path)
    run = NetRun(hosts, net, tmp_path, job)
    try:
        run.wait(lambda: has_trained(run, 10))
        before = wait_for_staff(run, num_warm=1)
        one, other = (hosts.number_of(before[rank]["host"]) for rank in (1, 2))
        cut(hosts, one, other)
        run.wait(lambda: run.events("link_cut"))
        assert run.events("link_cut")[0]["data"]["ranks"] == [2]
        num_steps = len(run.read("metrics"))
        run.wait(lambda: has_trained(run, num_steps + 10))
        after = run.workers()
        assert [each["pid"] for each in after[:2]] == [each["pid"] for each in before[:2]]
        assert after[2]["worker_id"] == before[3]["worker_id"]
        assert run.stop() == ExitCode.STOPPED
        used = find_used(tmp_path)
        assert used == find_expected(job, max(used))
    finally:
        run.kill()


def test_without_a_spare_the_world_is_smaller_until_the_link_is_mended(
    hosts: NetHosts, net: LocalCluster, tmp_path: Path
) -> None:
    job = job_of(tmp_path, spares=0)
    run = NetRun(hosts, net, tmp_path, job)
    try:
        run.wait(lambda: has_trained(run, 10))
        before = wait_for_staff(run, num_warm=0, spares=0)
        one, other = (hosts.number_of(before[rank]["host"]) for rank in (0, 1))
        hosts.cut_between(one, other)
        run.wait(lambda: run.events("link_cut"))
        (cut,) = run.events("link_cut")
        assert cut["data"]["ranks"] == [1], "rank 0 stays"
        num_steps = len(run.read("metrics"))
        run.wait(lambda: has_trained(run, num_steps + 10))
        hosts.mend_between(one, other)
        run.wait(lambda: run.events("link_cut_over"))
        after = wait_for_staff(run, num_warm=1, spares=0)
        assert {before[0]["pid"], before[2]["pid"]} < {each["pid"] for each in after}
        assert run.stop() == ExitCode.STOPPED
        used = find_used(tmp_path)
        assert used == find_expected(job, max(used))
    finally:
        run.kill()


def test_a_spare_that_does_not_reach_a_member_does_not_keep_the_rank(
    hosts: NetHosts, net: LocalCluster, tmp_path: Path
) -> None:
    """The link was gone before anybody needed it: nobody has looked."""
    job = job_of(tmp_path)
    run = NetRun(hosts, net, tmp_path, job)
    try:
        run.wait(lambda: has_trained(run, 10))
        before = wait_for_staff(run, num_warm=1)
        member, spare = (hosts.number_of(before[place]["host"]) for place in (0, 3))
        hosts.cut_between(member, spare)
        os.kill(before[2]["pid"], signal.SIGKILL)
        run.wait(lambda: run.events("link_cut"))
        (cut,) = run.events("link_cut")
        assert cut["data"]["ranks"] == [2], "rank 0 stays"
        num_steps = len(run.read("metrics"))
        run.wait(lambda: has_trained(run, num_steps + 10))
        after = run.workers()
        assert [each["pid"] for each in after[:2]] == [each["pid"] for each in before[:2]]
        assert run.stop() == ExitCode.STOPPED
        used = find_used(tmp_path)
        assert used == find_expected(job, max(used))
    finally:
        run.kill()
