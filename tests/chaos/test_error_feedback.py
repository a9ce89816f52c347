"""What compression leaves out is part of the run, on a real cluster too."""

from pathlib import Path

import pytest

from tests.chaos.harness import RunUnderTest, events_of, wait_until
from tests.chaos.scraping import scrape
from trainflow.coordination.local_cluster import LocalCluster
from trainflow.monitoring.metric import Metric
from trainflow.monitoring.metrics import GRADIENT_PLAIN_BYTES, GRADIENT_WIRE_BYTES

pytestmark = [pytest.mark.ray, pytest.mark.chaos, pytest.mark.slow]

FED_BACK = {"compression": "int8", "error_feedback": True}


def sent_bytes(run: RunUnderTest, metric: Metric) -> float:
    return scrape(metric.shown_name, job=run.run.job_id)


def test_a_spare_takes_over_what_compression_left_out(cluster: LocalCluster, tmp_path: Path):
    folders = [tmp_path / name for name in ("undisturbed", "killed")]
    for folder in folders:
        folder.mkdir()
    calm_settings = {"spares": 0, "sleep_s": 0.0}
    calm = RunUnderTest.start(cluster, folders[0], communication=FED_BACK, **calm_settings)
    assert calm.finish()["state"] == "succeeded"
    run = RunUnderTest.start(cluster, folders[1], communication=FED_BACK)
    run.wait_training(step=20, spares=2)
    run.kill(1)
    run.wait_recovered()
    run.kill(2)
    status = run.wait_recovered(2)
    assert not events_of(status, "residuals_lost")
    wait_until(
        lambda: (
            0 < sent_bytes(run, GRADIENT_WIRE_BYTES) < 0.6 * sent_bytes(run, GRADIENT_PLAIN_BYTES)
        ),
        lambda: "none",
    )
    status = run.finish()
    assert status["state"] == "succeeded", status["ending"]
    assert run.final_digests() == calm.final_digests()
    assert len(run.final_digests()) == 1
    assert run.used_samples() == run.expected_samples()


@pytest.mark.soak
def test_what_goes_with_a_node_is_said(cluster: LocalCluster, tmp_path: Path):
    run = RunUnderTest.start(cluster, tmp_path, communication=FED_BACK)
    run.wait_training(step=20, spares=2)
    member = run.members()[2]
    node = run.node_of(2)
    node.kill()
    run.empty_shared_memory(member["node_id"])
    status = run.wait_recovered()
    lost = events_of(status, "residuals_lost")
    assert [list(event["data"]["ranks"]) for event in lost] == [[2]]
    run.cluster.replace(node, cpus=2)
    assert run.finish()["state"] == "succeeded"
    assert len(run.final_digests()) == 1
