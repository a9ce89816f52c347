"""The server of Ray's head stands still for longer than a lease, and a rank dies meanwhile."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.chaos.harness import RunUnderTest, events_of
from trainflow.coordination.local_cluster import LocalCluster

pytestmark = [pytest.mark.ray, pytest.mark.chaos, pytest.mark.slow]

STEP_S, LEASE_S = 0.2, 4.0
ENDLESS = 100_000


@contextmanager
def standing_still(cluster: LocalCluster) -> Iterator[None]:
    head = psutil.Process(cluster.head.pid).children(recursive=True)
    (server,) = (each for each in head if each.name() == "gcs_server")
    server.suspend()
    try:
        yield
    finally:
        server.resume()


@pytest.mark.soak
def test_a_rank_that_dies_meanwhile_is_replaced_and_costs_nobody_else(
    cluster: LocalCluster, tmp_path: Path
):
    slow = {"sleep_s": STEP_S, "sleep_from": 1, "max_steps": ENDLESS}
    run = RunUnderTest.start(cluster, tmp_path, spares=2, failures={"lease_s": LEASE_S}, **slow)
    run.wait_training(step=20, spares=2)
    before = run.pids()
    with standing_still(cluster):
        (victim,) = run.kill(1)
        status = run.wait_recovered()
        status = run.wait_training(step=status["step"] + int(2 * LEASE_S / STEP_S))
        after = run.pids()
    assert (after[0], after[2]) == (before[0], before[2])
    assert after[1] != victim
    status = run.wait_training(step=status["step"], spares=2)
    assert len(events_of(status, "failure")) == 1
    assert events_of(status, "lease_ended") == []
    run.run.stop()
    assert run.finish()["state"] == "stopped"
