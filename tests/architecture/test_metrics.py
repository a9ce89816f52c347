"""Nothing is measured, or named in the docs, that the table of metrics doesn't have."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainflow.monitoring import metrics
from trainflow.monitoring.metric import Metric
from trainflow.monitoring.metrics import METRICS
from trainflow.monitoring.metrics_page import render_page

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "trainflow/monitoring/metrics.py"
EXPORT = ROOT / "trainflow/coordination/metric_export.py"
PAGE = ROOT / "docs/metrics.md"

ELSEWHERE = sorted({*(ROOT / "trainflow").rglob("*.py")} - {TABLE, EXPORT})
NAMING = [
    path
    for folder in ("dashboards", "docs", "tests", "benchmarks", "trainflow", "jobs")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in {".md", ".py", ".json", ".yml", ".yaml"} and path != Path(__file__)
]
MAKERS = {"Metric", "Counter", "Gauge", "Histogram", "Summary"}
OF_A_HISTOGRAM = re.compile(r"_(bucket|sum|count)$")
SHOWN = re.compile(r"\bray_trainflow_\w+")


def made_in(source: str) -> Iterator[str]:
    """Yield what makes a metric outside the table: of Ray, of Prometheus, or as a line of it."""
    if not re.search(r"ray\.util\.metrics|prometheus_client|monitoring\.metrics?\b", source):
        return
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else None
            name = node.func.id if isinstance(node.func, ast.Name) else name
            if name in MAKERS:
                yield name


def unknown_in(text: str) -> list[str]:
    """Return the names that Prometheus has no metric for, of those that a text has."""
    known = {metric.shown_name for metric in METRICS}
    found = set(SHOWN.findall(text))
    return sorted(each for each in found if {each, OF_A_HISTOGRAM.sub("", each)}.isdisjoint(known))


def test_no_metric_is_made_outside_the_table():
    made = {str(path): list(made_in(path.read_text(encoding="utf-8"))) for path in ELSEWHERE}
    assert {path: names for path, names in made.items() if names} == {}


@pytest.mark.parametrize(
    "source",
    [
        "from ray.util.metrics import Counter\nCounter('trainflow_x_total')",
        "from ray.util import metrics  # ray.util.metrics\nmetrics.Gauge('x')",
        "import prometheus_client\nprometheus_client.Summary('x')",
        "from trainflow.monitoring.metric import Metric\nMetric('x')",
    ],
)
def test_one_that_is_made_elsewhere_is_seen(source: str):
    assert list(made_in(source))


def test_every_metric_of_the_table_is_exported():
    code = "".join(p.read_text() for p in (ROOT / "trainflow/coordination").rglob("*.py"))
    constants = [name for name, value in vars(metrics).items() if isinstance(value, Metric)]
    assert [name for name in constants if not re.search(rf"\bmetrics\.{name}\b", code)] == []


def test_every_metric_that_is_named_is_in_the_table():
    unknown = {str(path): unknown_in(path.read_text(encoding="utf-8")) for path in NAMING}
    assert {path: names for path, names in unknown.items() if names} == {}


def test_one_that_is_not_in_the_table_is_seen():
    text = "rate(ray_trainflow_step_duration_seconds_bucket[1m]), ray_trainflow_lost, ray_up"
    assert unknown_in(text) == ["ray_trainflow_lost"]


def test_the_page_is_made_from_the_table():
    made = render_page()
    assert PAGE.read_text(encoding="utf-8") == made, (
        "python -m trainflow.monitoring.metrics_page > docs/metrics.md"
    )
