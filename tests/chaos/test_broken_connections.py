"""Connections from the head to a worker that lives, broken as by a firewall that forgets them."""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.chaos.harness import RunUnderTest, events_of, wait_until
from tests.chaos.test_recovery import expect_as_undisturbed
from trainflow.coordination.local_cluster import LocalCluster

pytestmark = [
    pytest.mark.ray,
    pytest.mark.chaos,
    pytest.mark.slow,
    pytest.mark.skipif(
        shutil.which("ss") is None or os.geteuid() != 0, reason="breaks connections: ss and root"
    ),
]

Pair = tuple[int, int]
"""The ports of a connection, the coordinator's first."""


def find_connections(coordinator: int, worker: int, *, accepted: bool) -> set[Pair]:
    """Return those that a coordinator has to a worker.

    Args:
        coordinator: its process.
        worker: likewise.
        accepted: those of calls; else those to its presence port, which nobody accepts.
    """
    theirs = psutil.Process(worker).net_connections("tcp")
    listening = {each.laddr.port for each in theirs if each.status == psutil.CONN_LISTEN}
    taken = {(each.raddr.port, each.laddr.port) for each in theirs if each.raddr}
    pairs = {
        (each.laddr.port, each.raddr.port)
        for each in psutil.Process(coordinator).net_connections("tcp")
        if each.raddr and each.raddr.port in listening and each.status == psutil.CONN_ESTABLISHED
    }
    return {pair for pair in pairs if (pair in taken) == accepted}


def break_connections(pairs: set[Pair]) -> None:
    for ours, theirs in pairs:
        command = ["ss", "-K", "sport", "=", f":{ours}", "dport", "=", f":{theirs}"]
        subprocess.run(command, check=True, capture_output=True)


@pytest.mark.parametrize(
    "calls",
    [pytest.param(False, id="presence"), pytest.param(True, id="calls", marks=pytest.mark.soak)],
)
def test_a_worker_whose_connections_break_keeps_its_rank_and_is_watched_on(
    cluster: LocalCluster, tmp_path: Path, undisturbed: str, *, calls: bool
) -> None:
    run = RunUnderTest.start(cluster, tmp_path, spares=1, sleep_s=0.1)
    status = run.wait_training(step=10, spares=1)
    pids = run.pids()
    coordinator = run.coordinator_pid()
    assert coordinator is not None

    def find() -> set[Pair]:
        return find_connections(coordinator, pids[1], accepted=calls)

    for _ in range(3):
        broken = find()
        assert broken
        break_connections(broken)
        wait_until(lambda before=broken: bool(find() - before), lambda: "none was made anew")
        status = run.wait_training(step=status["step"] + 10)
    assert run.pids() == pids
    assert events_of(status, "failure") == []
    run.kill(1)
    told = _only_failure(run.wait_recovered())
    assert told["data"]["rank"] == 1
    expect_as_undisturbed(run, undisturbed)


def _only_failure(status: dict[str, Any]) -> dict[str, Any]:
    (failure,) = events_of(status, "failure")
    return failure
