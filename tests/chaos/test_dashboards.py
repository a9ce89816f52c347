"""A real Prometheus scrapes a real run with a kill and a spike: panels answer, alerts fire."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from tests.chaos.harness import RunUnderTest
from tests.chaos.test_monitoring import ABSENT
from tests.testbed.daemons import wait_for
from tests.testbed.prometheus_server import (
    WINDOW,
    Alertmanager,
    PrometheusServer,
    require_programs,
    told,
)
from tests.unit.monitoring.webhook.servers import Server
from trainflow.coordination.local_cluster import LocalCluster
from trainflow.monitoring import metrics
from trainflow.monitoring.dashboards.catalog import DASHBOARDS
from trainflow.monitoring.metric import Metric

pytestmark = [pytest.mark.ray, pytest.mark.chaos, pytest.mark.slow]

WITHIN_S = 120.0
SPIKE_AT = (150, 151)
# What this run has none of, beside what it shows nothing of: devices, and sums that fail.
NONE_HERE = ("ray_node_gpus", "ray_node_gram", 'cause="collective"')
THERE = {metrics.ANOMALIES, metrics.RUNS_ENDED}  # but here; or its panel answers without
ENDLESS = 100_000


@pytest.fixture
def receiver() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture
def prometheus(
    cluster: LocalCluster, receiver: Server, tmp_path: Path
) -> Iterator[PrometheusServer]:
    require_programs()
    folder = tmp_path / "prometheus"
    folder.mkdir()
    alertmanager = Alertmanager(folder / "alertmanager", receiver.url.partition("/secret-path")[0])
    nodes = [node for node in ray.nodes() if node["Alive"]]
    targets = [f"{node['NodeManagerAddress']}:{node['MetricsExportPort']}" for node in nodes]
    server = PrometheusServer(folder, targets, alertmanager.port)
    try:
        alertmanager.start()
        server.start()
        yield server
    finally:
        server.stop()
        alertmanager.stop()


class Panels:
    """Which queries of panels have answered so far; some do for a while only."""

    def __init__(self, prometheus: PrometheusServer, job_id: str):
        self._prometheus = prometheus
        absent = [metric.shown_name for metric in ABSENT - THERE]
        self._silent = {
            f"{dashboard.title}: {panel.title}: {each.legend}": self._fill(each.query, job_id)
            for dashboard in DASHBOARDS
            for panel in dashboard.panels
            for each in panel.curves
            if not any(name in each.query for name in (*absent, *NONE_HERE))
        }

    def have_answered(self) -> bool:
        """Ask those that have not."""
        for name, query in tuple(self._silent.items()):
            if self._prometheus.query(query):
                del self._silent[name]
        return not self._silent

    def silent(self) -> list[str]:
        return sorted(self._silent)

    def _fill(self, query: str, job_id: str) -> str:
        filled = query.replace("$__rate_interval", WINDOW).replace("$__range", WINDOW)
        return filled.replace("$job", job_id)


@pytest.mark.soak
def test_every_panel_answers_and_alerts_fire_and_resolve(
    cluster: LocalCluster, prometheus: PrometheusServer, receiver: Server, tmp_path: Path
):
    checkpoint = {"url": str(tmp_path / "store"), "every_steps": 10}
    run = RunUnderTest.start(
        cluster, tmp_path, checkpoint=checkpoint, spike_at=SPIKE_AT, max_steps=ENDLESS
    )
    panels = Panels(prometheus, run.run.job_id)
    run.wait_training(step=20, spares=2)
    run.kill(1)
    run.wait_recovered()
    try:
        wait_for(panels.have_answered, WITHIN_S, "answer")
    except TimeoutError:
        assert panels.silent() == []
    assert prometheus.unwell_rules() == []
    expected = {("TrainFlowLossAnomaly", "firing"), ("TrainFlowLossAnomaly", "resolved")}
    wait_for(lambda: expected <= told(receiver.documents), WITHIN_S, "word of the spike")
    # Nobody hears of what needs nobody; it fires all the same.
    assert prometheus.query('ALERTS{alertname="TrainFlowWorkerLost"}[10m]')
    wait_for(lambda: "TrainFlowWorkerLost" not in prometheus.firing(), WITHIN_S, "end of the loss")
    looked, ended = metrics.COORDINATOR_TIMESTAMP.shown_name, metrics.RUNS_ENDED.shown_name
    assert prometheus.query(f"last_over_time({looked}[{WINDOW}]) and on (instance) up")
    run.run.stop()
    assert run.finish()["state"] == "stopped"
    wait_for(lambda: prometheus.query(f'{ended}{{state="stopped"}}'), WITHIN_S, "word of the end")
    assert not {"TrainFlowCoordinatorSilent", "TrainFlowRunFailed"} & prometheus.firing()


@pytest.mark.soak
def test_counters_go_on_when_the_coordinator_dies_with_a_rank(
    cluster: LocalCluster, prometheus: PrometheusServer, tmp_path: Path
):
    run = RunUnderTest.start(cluster, tmp_path, spares=1, sleep_s=0.1, max_steps=ENDLESS)

    def count(metric: Metric) -> float:
        """Return what a counter has come to, over all coordinators; 0 if there is none."""
        found = prometheus.query(f'sum({metric.shown_name}{{job="{run.run.job_id}"}})')
        return float(found[0]["value"][1]) if found else 0.0

    run.wait_training(step=20, spares=1)
    wait_for(lambda: count(metrics.STEPS_COMMITTED) >= 20, WITHIN_S, "steps")
    victim, coordinator = run.pids()[1], run.coordinator_pid()
    assert coordinator is not None
    counted = count(metrics.STEPS_COMMITTED)
    os.kill(coordinator, signal.SIGKILL)
    os.kill(victim, signal.SIGKILL)
    run.wait_recovered()
    wait_for(lambda: count(metrics.FAILURES) == 1, WITHIN_S, "word of the failure")
    wait_for(lambda: count(metrics.RECOVERIES) == 1, WITHIN_S, "word of the recovery")
    begun_at = run.run.status()["step"]
    run.wait_training(step=begun_at + 50)
    wait_for(lambda: count(metrics.STEPS_COMMITTED) >= counted + 50, WITHIN_S, "steps after it")
    assert count(metrics.STEPS_COMMITTED) <= run.run.status()["step"], "steps were counted twice"
    run.run.stop()
    assert run.finish()["state"] == "stopped"
