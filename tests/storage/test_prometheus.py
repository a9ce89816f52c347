"""Every panel and every rule, over a real Prometheus that scrapes every metric there is."""

import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import product
from typing import Any

import pytest

from tests.testbed.daemons import wait_for
from tests.testbed.prometheus_server import (
    WINDOW,
    Alertmanager,
    PrometheusServer,
    require_programs,
    shorten,
    told,
)
from tests.unit.monitoring.webhook.servers import Server
from trainflow.monitoring import metrics
from trainflow.monitoring.alerts.rules import ALL_RULES
from trainflow.monitoring.dashboards.catalog import DASHBOARDS
from trainflow.monitoring.dashboards.cluster import RAY_METRICS
from trainflow.monitoring.metric import Kind, Metric
from trainflow.monitoring.metrics import METRICS

pytestmark = [pytest.mark.storage, pytest.mark.slow, pytest.mark.timeout(240)]

WITHIN_S = 90.0
JOBS = ("lm-abc234", "lm-xyz765")
# The first value of a counter of losses; Prometheus has seen the series begin.
BEGINS = {metrics.FAILURES, metrics.ANOMALIES, metrics.RUNS_ENDED}


class Page:
    """What a Ray node shows of two jobs; counters grow with each scrape.

    Attributes:
        is_odd: whether a loss that is no number has been found.
        gone: jobs whose coordinators are: of these counters are left.
        failed: jobs whose coordinators have told that their runs have failed.
    """

    def __init__(self) -> None:
        self.is_odd = False
        self.gone: set[str] = set()
        self.failed: set[str] = set()
        self._num_scrapes = 0
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._make_handler())
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    @property
    def target(self) -> str:
        return f"127.0.0.1:{self._server.server_port}"

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def _write(self) -> str:
        self._num_scrapes += 1
        lines = [line for job in JOBS for metric in METRICS for line in self._samples(metric, job)]
        lines += [f'ray_{name}{{instance="node{n}"}} {n}' for name in RAY_METRICS for n in (1, 2)]
        return "\n".join([*lines, ""])

    def _samples(self, metric: Metric, job: str) -> Iterator[str]:
        if metric.kind is Kind.GAUGE and job in self.gone:
            return
        for values in product(*metric.labels.values()):
            pairs = zip(("job", *metric.labels), (job, *values), strict=True)
            labels = ",".join(f'{name}="{value}"' for name, value in pairs)
            if metric.kind is Kind.HISTOGRAM:
                yield from self._buckets(metric, labels)
            elif metric in BEGINS:
                is_odd = self.is_odd and "not_finite" in values
                if is_odd or (
                    metric is metrics.RUNS_ENDED and job in self.failed and "failed" in values
                ):
                    yield f"{metric.shown_name}{{{labels}}} 1"
            else:
                yield f"{metric.shown_name}{{{labels}}} {self._value(metric)}"

    def _buckets(self, metric: Metric, labels: str) -> Iterator[str]:
        for bound in (*metric.buckets, "+Inf"):
            yield f'{metric.shown_name}_bucket{{{labels},le="{bound}"}} {self._num_scrapes}'
        yield f"{metric.shown_name}_count{{{labels}}} {self._num_scrapes}"
        yield f"{metric.shown_name}_sum{{{labels}}} {self._num_scrapes}"

    def _value(self, metric: Metric) -> float:
        if metric is metrics.ANOMALY_ACTIVE:  # what is found is over with the next step
            return 0.0
        grows = metric.kind is Kind.COUNTER or metric is metrics.COORDINATOR_TIMESTAMP
        return self._num_scrapes if grows else 1.0

    def _make_handler(self) -> type[BaseHTTPRequestHandler]:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                text = outer._write().encode()
                self.send_response(200)
                self.send_header("Content-Type", "text/plain; version=0.0.4")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: Any) -> None:
                """Say nothing."""

        return Handler


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    page = Page()
    yield page
    page.close()


@pytest.fixture(scope="module")
def receiver() -> Iterator[Server]:
    server = Server()
    yield server
    server.close()


@pytest.fixture(scope="module")
def prometheus(
    page: Page, receiver: Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PrometheusServer]:
    require_programs()
    folder = tmp_path_factory.mktemp("prometheus")
    address = receiver.url.partition("/secret-path")[0]
    alertmanager = Alertmanager(folder / "alertmanager", address)
    server = PrometheusServer(folder, [page.target], alertmanager.port)
    try:
        alertmanager.start()
        server.start()
        yield server
    finally:
        server.stop()
        alertmanager.stop()


def ask(query: str, job: str = ".+") -> str:
    """Return a panel's query as Grafana sends it, with short windows."""
    filled = query.replace("$__rate_interval", WINDOW).replace("$__range", WINDOW)
    return filled.replace("$job", job)


def unanswered(prometheus: PrometheusServer) -> list[str]:
    """Return the panels of which some query answers nothing, but for those of what has not been."""
    quiet = {metric.shown_name for metric in BEGINS - {metrics.RUNS_ENDED}}
    return [
        f"{dashboard.title}: {panel.title}: {each.legend}"
        for dashboard in DASHBOARDS
        for panel in dashboard.panels
        for each in panel.curves
        if not any(name in each.query for name in quiet) and not prometheus.query(ask(each.query))
    ]


def test_every_panel_answers(prometheus: PrometheusServer):
    wait_for(lambda: not unanswered(prometheus), WITHIN_S, f"answer of {unanswered(prometheus)}")


def test_a_panel_of_one_job_answers_of_that_alone(prometheus: PrometheusServer):
    wait_for(lambda: not unanswered(prometheus), WITHIN_S, "answer of all panels")
    for dashboard in DASHBOARDS[1:-1]:
        for panel in dashboard.panels:
            for each in panel.curves:
                found = prometheus.query(ask(each.query, JOBS[0]))
                assert {series["metric"].get("job", JOBS[0]) for series in found} <= {JOBS[0]}


def test_every_rule_can_be_evaluated(prometheus: PrometheusServer):
    wait_for(lambda: not unanswered(prometheus), WITHIN_S, "answer of all panels")
    for rule in ALL_RULES:
        prometheus.query(shorten(rule.query))
    assert prometheus.unwell_rules() == []


def test_an_alert_is_told_of_when_it_fires_and_when_it_is_over(
    prometheus: PrometheusServer, page: Page, receiver: Server
):
    alert = "TrainFlowLossNotFinite"
    wait_for(lambda: not unanswered(prometheus), WITHIN_S, "answer of all panels")
    assert alert not in prometheus.firing()
    page.is_odd = True
    wait_for(lambda: (alert, "firing") in told(receiver.documents), WITHIN_S, "word of the alert")
    assert alert in prometheus.firing()
    assert receiver.headers["Authorization"] == "Bearer token-of-the-receiver"
    wait_for(lambda: (alert, "resolved") in told(receiver.documents), WITHIN_S, "word of its end")
    assert alert not in prometheus.firing()


def hasten(query: str) -> str:
    """Return a query whose windows are a twelfth as long, and stand to each other as they did."""
    lengths = {"m": 5, "h": 300}
    return re.sub(
        r"(?<=\[)(\d+)([mh])(?=\])|(?<=offset )(\d+)([mh])",
        lambda f: f"{int(f[1] or f[3]) * lengths[f[2] or f[4]]}s",
        query,
    )


def jobs_found(prometheus: PrometheusServer, suffix: str) -> set[str]:
    """Return the jobs for which an alert would fire."""
    rule = next(rule for rule in ALL_RULES if rule.suffix == suffix)
    return {each["metric"]["job"] for each in prometheus.query(hasten(rule.query))}


def test_of_coordinators_that_are_gone_the_one_is_missed_that_told_no_end(
    prometheus: PrometheusServer, page: Page
):
    ended, lost = JOBS
    wait_for(lambda: not unanswered(prometheus), WITHIN_S, "answer of all panels")
    assert jobs_found(prometheus, "CoordinatorSilent") == set()
    page.failed, page.gone = {ended}, {ended, lost}
    wait_for(lambda: jobs_found(prometheus, "RunFailed") == {ended}, WITHIN_S, "the failure")
    wait_for(lambda: jobs_found(prometheus, "CoordinatorSilent") == {lost}, WITHIN_S, "the loss")
    page.gone = set()
    wait_for(lambda: not jobs_found(prometheus, "RunFailed"), WITHIN_S, "its resumption")
    wait_for(lambda: not jobs_found(prometheus, "CoordinatorSilent"), WITHIN_S, "its return")
