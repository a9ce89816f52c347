"""A node that fails again and again gets no ranks until it has shown that it is well."""

from pathlib import Path
from typing import Any

import pytest

from tests.chaos.harness import RunUnderTest, events_of, story_of
from trainflow.coordination.local_cluster import LocalCluster

pytestmark = [pytest.mark.ray, pytest.mark.chaos, pytest.mark.slow]

NODE_CPUS = 2


def starts_on(host: str, run: RunUnderTest, status: dict[str, Any]) -> list[float]:
    """Return when the workers were started that have come to be on a node."""
    there = {worker["worker_id"] for worker in run.run.workers() if worker["host"] == host}
    started = events_of(status, "respawned")
    return [each["at_s"] for each in started if each["data"]["worker"] in there]


@pytest.mark.soak
def test_a_flapping_node_takes_no_ranks_until_it_has_shown_that_it_is_well(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """Every CPU has a worker, so that the node's bundles have nowhere else to go."""
    failures = {"isolate_after": 2, "probe_after_s": 15.0}
    slow = {"sleep_s": 0.4, "sleep_from": 5, "max_steps": 150}  # until the test lets it hurry
    run = RunUnderTest.start(cluster, tmp_path, spares=3, failures=failures, **slow)
    run.wait_training(step=5, spares=3)
    before, node = run.members(), run.node_of(1)
    node.kill()
    run.empty_shared_memory(before[1]["node_id"])
    status = run.wait(lambda s: bool(events_of(s, "isolate")))
    cluster.replace(node, cpus=NODE_CPUS)
    (isolate,) = events_of(status, "isolate")
    assert isolate["data"]["host"] == before[1]["host"]
    status = run.wait(lambda s: bool(events_of(s, "readmit")))
    (readmit,) = events_of(status, "readmit")
    assert readmit["data"]["host"] == before[1]["host"]
    status = run.wait(lambda s: s["spares"] >= 3)
    probe, *others = starts_on(isolate["data"]["host"], run, status)
    assert isolate["data"]["probe_at_s"] <= probe < readmit["at_s"], story_of(status)
    assert all(at_s >= readmit["at_s"] for at_s in others), f"one is enough: {story_of(status)}"
    after = run.members()
    assert [after[rank]["pid"] for rank in (0, 2)] == [before[rank]["pid"] for rank in (0, 2)]
    assert after[1]["host"] != before[1]["host"]
    status = run.finish()
    assert status["state"] == "succeeded", status["ending"]
    assert run.used_samples() == run.expected_samples()
