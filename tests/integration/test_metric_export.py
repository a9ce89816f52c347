"""What Ray does with metrics, as it is relied on: gauges go unless they last, an end is brought."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

from tests.chaos.harness import wait_until
from tests.chaos.scraping import scrape, shows
from trainflow.clock import SYSTEM_CLOCK
from trainflow.coordination.driver import connect
from trainflow.coordination.local_cluster import LocalCluster
from trainflow.coordination.metric_export import RayExport
from trainflow.coordination.paced_export import PacedExport
from trainflow.monitoring import metrics

pytestmark = [pytest.mark.ray, pytest.mark.slow]

JOB = "lm-abc234"
LOSS, STEP = metrics.LOSS.shown_name, metrics.STEP.shown_name


class Shower:
    """Shows two gauges once: one that lasts, and one that is left to Ray."""

    def __init__(self) -> None:
        self._export = RayExport(JOB)
        self._gauges = PacedExport(self._export, SYSTEM_CLOCK)
        self._export.show(metrics.LOSS, 3.0)
        self._gauges.show(metrics.STEP, 7.0)

    def tick(self) -> None:
        self._gauges.tick()

    def count_and_go(self) -> None:
        self._export.add(metrics.RUNS_ENDED, state="failed")
        ray.kill(ray.get_runtime_context().current_actor, no_restart=True)


def start_head(interval_ms: int, tmp_path: Path, patch: pytest.MonkeyPatch) -> LocalCluster:
    patch.setenv("RAY_metrics_report_interval_ms", str(interval_ms))
    patch.setenv("TRAINFLOW_HOME", str(tmp_path / "home"))
    return LocalCluster.start(head_cpus=1)


@pytest.fixture
def shower(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Any]:
    """Start one on a cluster whose processes report as often as a test says."""
    with start_head(request.param, tmp_path, monkeypatch) as cluster:
        connect(cluster.address)
        yield ray.remote(num_cpus=0)(Shower).remote()
        ray.shutdown()


@pytest.mark.soak
@pytest.mark.parametrize("shower", [2000], indirect=True)  # each report then has it set again
def test_a_gauge_that_lasts_is_shown_for_longer_than_ray_remembers(shower: Any):
    def both() -> list[bool]:
        ray.get(shower.tick.remote())
        return [shows(LOSS, job=JOB), shows(STEP, job=JOB)]

    wait_until(lambda: both() == [True, True], both)
    wait_until(lambda: both() == [False, True], both)
    for _ in range(20):
        assert both() == [False, True]
        SYSTEM_CLOCK.sleep(0.2)
    assert scrape(STEP, job=JOB) == 7


@pytest.mark.parametrize("shower", [60_000], indirect=True)
def test_what_a_process_counts_as_it_is_killed_is_brought_to_the_agent_and_stays(shower: Any):
    name, labels = metrics.RUNS_ENDED.shown_name, {"job": JOB, "state": "failed"}
    shower.count_and_go.remote()
    wait_until(lambda: shows(name, **labels), lambda: "the end")
    for _ in range(20):
        assert scrape(name, **labels) == 1
        SYSTEM_CLOCK.sleep(0.2)
