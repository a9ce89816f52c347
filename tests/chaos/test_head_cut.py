"""The head's own link is cut, while all other hosts reach each other, in network namespaces.

Nothing in a step needs the head, and the Keepers hear each other: training goes on without it.
"""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.net_run import NetRun
from tests.chaos.harness import find_expected, find_used, make_job
from tests.chaos.net_waits import has_trained, wait_for_staff
from trainflow.cli.exit_codes import ExitCode
from trainflow.computation.stamps import read_stamp
from trainflow.config.job import JobConfig
from trainflow.coordination import names
from trainflow.coordination.chaos.net_hosts import HEAD, NetHosts
from trainflow.coordination.local_cluster import LocalCluster

pytestmark = [pytest.mark.ray, pytest.mark.chaos, pytest.mark.slow, pytest.mark.soak]

NUM_NODES = 4  # one more than ranks, for the spare
LONG_LEASE_S, SHORT_LEASE_S = 110.0, 4.0
NUM_STEPS = 25
STAMPS = names.memory_directory()


def job_of(work_dir: Path, lease_s: float) -> JobConfig:
    return make_job(
        work_dir,
        max_steps=100_000,
        sleep_s=0.2,  # a step takes at least that: so many of them are so many seconds
        target=3,
        spares=1,
        failures={"lease_s": lease_s, "hang_timeout_s": 60.0},
    )


def step_of(worker: dict[str, Any]) -> int:
    """Return which step a worker is at, as it says itself: the head isn't asked."""
    (path,) = STAMPS.glob(f"*/{worker['node_id']}/{worker['worker_id']}.stamp")
    stamp = read_stamp(path)
    assert stamp is not None
    return stamp.step


def cut_until(hosts: NetHosts, run: NetRun, reached: Callable[[], bool]) -> tuple[float, float]:
    """Cut the head off until something is so; returns from when to when."""
    hosts.cut(HEAD)
    cut_at_s = time.time()
    try:
        run.wait(reached)
    finally:
        hosts.shape(None, HEAD)
    return cut_at_s, time.time()


def test_a_cut_that_is_shorter_than_the_lease_costs_nothing(
    hosts: NetHosts, net: LocalCluster, tmp_path: Path
) -> None:
    job = job_of(tmp_path, lease_s=LONG_LEASE_S)
    run = NetRun(hosts, net, tmp_path, job)
    try:
        run.wait(lambda: has_trained(run, 10))
        before = wait_for_staff(run, num_warm=1)
        first = step_of(before[0])
        from_s, to_s = cut_until(
            hosts, run, lambda: min(map(step_of, before[:3])) >= first + NUM_STEPS
        )
        assert 5.0 < to_s - from_s < LONG_LEASE_S
        reached = step_of(before[0])
        run.wait(lambda: has_trained(run, reached + 10))
        steps = run.read("metrics")
        assert [each["step"] for each in steps] == list(range(1, len(steps) + 1))
        during = [each for each in steps if from_s < each["committed_at_s"] < to_s]
        assert len(during) >= 20, "told once the link was there again"
        after = run.workers()
        assert [each["pid"] for each in after] == [each["pid"] for each in before]
        assert len(run.events("epoch")) == 1
        assert run.events("failure", "hang", "deadlock", "recovered", "keeper_away") == []
        assert run.stop() == ExitCode.STOPPED
        used = find_used(tmp_path)
        assert used == find_expected(job, max(used))
    finally:
        run.kill()


def test_after_one_that_is_longer_the_run_goes_on_from_where_it_had_come(
    hosts: NetHosts, net: LocalCluster, tmp_path: Path
) -> None:
    """All workers count as lost by then, and train on, as Keepers hear each other; it is kept.

    Much longer it can't be: after some 20 s Ray gives the nodes up.
    """
    job = job_of(tmp_path, lease_s=SHORT_LEASE_S)
    run = NetRun(hosts, net, tmp_path, job)
    try:
        run.wait(lambda: has_trained(run, 10))
        before = wait_for_staff(run, num_warm=1)
        known = len(run.read("metrics"))

        def are_lost_and_train() -> bool:
            are_lost = len(run.events("failure")) == len(before)
            return are_lost and min(map(step_of, before[:3])) >= known + NUM_STEPS

        cut_until(hosts, run, are_lost_and_train)
        reached = step_of(before[0])
        run.wait(lambda: run.read("metrics")[-1]["step"] >= reached + 10)
        lost = {
            each["data"]["worker"] for each in run.events("failure") if "worker" in each["data"]
        }
        assert lost == {each["worker_id"] for each in before}
        resumed = run.events("epoch")[1]
        assert int(resumed["data"]["base"].split("@")[0]) >= reached - 1, "no step was lost"
        assert run.stop() == ExitCode.STOPPED
        used = find_used(tmp_path)
        assert used == find_expected(job, max(used))
    finally:
        run.kill()
