"""What a real run with a kill in it shows: to Prometheus, and of where its time went."""

from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.harness import RunUnderTest, events_of, wait_until
from tests.chaos.scraping import scrape
from trainflow.coordination.local_cluster import LocalCluster
from trainflow.monitoring import metrics
from trainflow.monitoring.metric import Kind, Metric
from trainflow.monitoring.metrics import METRICS

pytestmark = [pytest.mark.ray, pytest.mark.chaos, pytest.mark.slow]

# What this run has none of: it has no GPU, nothing is compressed, sharded, or brought to sinks, its
# model is no known transformer, no checkpoint is late, no rank straggles, no detector has failed,
# and it goes on.
ABSENT = {
    metrics.ANOMALIES,
    metrics.ANOMALY_ACTIVE,
    metrics.CHECKPOINTS_SKIPPED,
    metrics.COPY_LAG,
    metrics.DEVICE_BUSY,
    metrics.DEVICE_MEMORY,
    metrics.DETECTOR_OFF,
    metrics.HFU,
    metrics.MFU,
    metrics.POSTS_DROPPED,
    metrics.RESIDUAL,
    metrics.REWINDS,
    metrics.RUNS_ENDED,
    metrics.SINK_DROPPED,
    metrics.STEPS_LOST,
    metrics.STEPS_SKIPPED,
    metrics.STRAGGLER,
    metrics.TOKENS,
}
MAY_BE_ZERO = {metrics.SLOW_KERNELS, metrics.SLOW_NODE_RANK, metrics.SHORTEST_WAIT}
TOLERANCE = 0.01


def shown(run: RunUnderTest, metric: Metric, **labels: str) -> float:
    suffix = "_count" if metric.kind is Kind.HISTOGRAM else ""
    return scrape(metric.shown_name + suffix, job=run.run.job_id, **labels)


def missing(run: RunUnderTest) -> list[str]:
    absent = {each.name for each in ABSENT | MAY_BE_ZERO}
    return [e.name for e in METRICS if e.name not in absent and not shown(run, e)]


def test_every_metric_of_a_run_with_a_kill_is_shown(cluster: LocalCluster, tmp_path: Path):
    checkpoint = {"url": str(tmp_path / "store"), "every_steps": 10}
    slow = {"spares": 1, "sleep_s": 0.4, "sleep_from": 20}  # gauges go with the run
    run = RunUnderTest.start(cluster, tmp_path, checkpoint=checkpoint, **slow)
    run.wait_training(step=20, spares=1)
    run.kill(1)
    run.wait_recovered()
    wait_until(lambda: not missing(run), lambda: missing(run))
    assert shown(run, metrics.FAILURES, cause="died") == 1
    assert shown(run, metrics.RECOVERIES) == 1
    assert shown(run, metrics.WORLD_SIZE) == 3
    assert run.finish()["state"] == "succeeded"
    # Its coordinator is gone; what that told last reaches the node's page a moment later.
    wait_until(lambda: shown(run, metrics.RUNS_ENDED, state="succeeded") == 1, lambda: "its end")


def lives(events: list[dict[str, Any]], end_s: float) -> dict[str, float]:
    """Return how long each worker was there, by the events that tell of it alone."""
    submitted = next(e["at_s"] for e in events if e["kind"] == "submitted")
    launched = next(e["data"]["workers"] for e in events if e["kind"] == "launched")
    begun = dict.fromkeys(launched, submitted)
    begun |= {e["data"]["worker"]: e["at_s"] for e in events if e["kind"] == "respawned"}
    failures = [e for e in events if e["kind"] == "failure" and "worker" in e["data"]]
    lost = {e["data"]["worker"]: e["at_s"] for e in failures}
    return {worker: lost.get(worker, end_s) - since for worker, since in begun.items()}


def test_the_ledger_is_the_workers_time(cluster: LocalCluster, tmp_path: Path):
    slow = {"spares": 1, "sleep_s": 0.3, "sleep_from": 20}  # a new spare is warm before the end
    run = RunUnderTest.start(cluster, tmp_path, **slow)
    run.wait_training(step=20, spares=1)
    run.kill(1)
    run.wait_recovered()
    run.wait_training(step=40, spares=1)
    run.kill(2)
    run.wait_recovered(2)
    status = run.finish()
    (told,) = events_of(status, "goodput")
    seconds = told["data"]["seconds"]
    lived_s = sum(lives(status["events"], told["at_s"]).values())
    assert sum(seconds.values()) == pytest.approx(lived_s, rel=TOLERANCE)
    assert {"productive", "start", "recovery_died", "idle"} <= seconds.keys()
    recovered = events_of(status, "recovered")
    recovery_s = sum(e["data"]["committed_at_s"] - e["data"]["noticed_at_s"] for e in recovered)
    assert 0 < seconds["recovery_died"] <= 3 * recovery_s * (1 + TOLERANCE)
    phases = set(chain.from_iterable(step["phases_s"] for step in status["steps"]))
    assert {"data", "compute", "communicate", "commit", "optimizer", "snapshot", "user"} <= phases
