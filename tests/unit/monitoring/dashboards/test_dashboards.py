"""Each dashboard is made from the code, asks what can be answered, and is laid out as it should."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.dashboard.modules.reporter import reporter_agent

from trainflow.monitoring.alerts.rules import ALL_RULES
from trainflow.monitoring.dashboards.catalog import DASHBOARDS
from trainflow.monitoring.dashboards.cluster import RAY_METRICS
from trainflow.monitoring.dashboards.grafana_model import describe_dashboard
from trainflow.monitoring.dashboards.panel import WIDTH, Chart, Dashboard, Panel
from trainflow.monitoring.deployment_files import DASHBOARDS_FOLDER, render_files
from trainflow.monitoring.metric import Kind
from trainflow.monitoring.metrics import METRICS

FOLDER = Path(__file__).parents[4] / "dashboards"
PANELS = [(d, p) for d in DASHBOARDS for p in d.panels]
MOST_SERIES = 100

STRINGS = re.compile(r'"[^"]*"')
LABELS = re.compile(r"\{[^}]*\}|\b(by|on|group_left) \([^)]*\)")
DURATIONS = re.compile(r"\[[^\]]*\]|offset \S+")
NAMES = re.compile(r"\b[a-zA-Z_]\w*\b(?! *\()")
OPERATORS = {"and", "or", "unless", "by", "on", "group_left"}
VARIABLES = {"$__rate_interval": "1m", "$__range": "3h", "$job": ".+"}


def names_in(query: str) -> set[str]:
    """Return the metrics that a query names."""
    bare = DURATIONS.sub(" ", LABELS.sub(" ", STRINGS.sub('""', query)))
    return set(NAMES.findall(bare)) - OPERATORS


def known_names() -> set[str]:
    """Return what Prometheus has: by the table, and of Ray's own what `RAY_METRICS` names."""
    known = {f"ray_{name}" for name in RAY_METRICS} | {"up"}
    for metric in METRICS:
        suffixes = ("_bucket", "_sum", "_count") if metric.kind is Kind.HISTOGRAM else ("",)
        known |= {metric.shown_name + suffix for suffix in suffixes}
    return known


def fill(query: str) -> str:
    """Return a query as Grafana sends it."""
    for name, value in VARIABLES.items():
        query = query.replace(name, value)
    return query


def queries() -> Iterator[str]:
    yield from (rule.query for rule in ALL_RULES)
    yield from (each.query for _, panel in PANELS for each in panel.curves)


def title(value: Any) -> str:
    return value.title if isinstance(value, Dashboard | Panel) else str(value)


def test_the_files_are_made_from_the_code():
    made = {FOLDER / name: content for name, content in render_files().items()}
    written = {path: path.read_text(encoding="utf-8") for path in made if path.exists()}
    assert written == made, "trainflow dashboards write dashboards"
    assert {*(FOLDER / DASHBOARDS_FOLDER).iterdir()} <= made.keys()


def test_every_query_asks_for_what_there_is():
    unknown = {query: names_in(query) - known_names() for query in queries()}
    assert {query: names for query, names in unknown.items() if names} == {}


def test_names_are_found_in_a_query():
    query = 'sum by (job, le) (rate(a_bucket{x="b"}[5m] offset 1h)) / on (job) (c unless d) > 0'
    assert names_in(query) == {"a_bucket", "c", "d"}


def test_ray_has_its_metrics():
    assert set(RAY_METRICS) <= reporter_agent.METRICS_GAUGES.keys()


def test_every_metric_is_drawn():
    asked = set().union(*(names_in(each.query) for _, panel in PANELS for each in panel.curves))
    bare = {re.sub(r"_(bucket|sum|count)$", "", name) for name in asked} | asked
    undrawn = {metric.shown_name for metric in METRICS} - bare
    # Drawn exactly, by the counter of the same seconds.
    assert undrawn == {"ray_trainflow_phase_duration_seconds"}


def test_prometheus_can_read_every_query(tmp_path: Path):
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("needs promtool (apt-get install prometheus)")
    rules = [{"record": f"q{n}", "expr": fill(query)} for n, query in enumerate(queries())]
    path = tmp_path / "rules.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "all", "rules": rules}]}))
    command = [promtool, "check", "rules", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr + done.stdout


@pytest.mark.parametrize(("dashboard", "panel"), PANELS, ids=title)
def test_a_panel_asks_a_question_of_few_series(dashboard: Dashboard, panel: Panel):
    assert "?" in panel.question
    assert panel.curves
    for each in panel.curves:
        assert re.search(r"by \(|topk|bottomk|quantile|m(in|ax)\(", each.query), "aggregate it"
        assert "rank=" not in each.query
        assert "$" not in fill(each.query), "unknown variable"


def test_a_job_draws_few_series():
    values = {name: len(v) for metric in METRICS for name, v in metric.labels.items()}
    for _, panel in PANELS:
        labels = {
            name for each in panel.curves for name in re.findall(r"\{\{(\w+)\}\}", each.legend)
        }
        assert sum(values.get(name, 1) for name in labels) <= MOST_SERIES


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=title)
def test_panels_are_laid_out_side_by_side(dashboard: Dashboard):
    drawn = describe_dashboard(dashboard)["panels"]
    places = [panel["gridPos"] for panel in drawn]
    assert all(p["x"] >= 0 and p["x"] + p["w"] <= WIDTH for p in places)
    for one, other in combinations(places, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        below = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or below, (one, other)
    ids = [panel["id"] for panel in drawn]
    assert len(ids) == len(set(ids))
    assert len({panel.title for panel in dashboard.panels}) == len(dashboard.panels)


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=title)
def test_a_source_and_a_job_are_chosen_at_the_top(dashboard: Dashboard):
    described = describe_dashboard(dashboard)
    source, job = described["templating"]["list"]
    assert (source["name"], source["type"], job["name"]) == ("datasource", "datasource", "job")
    used = {p["datasource"]["uid"] for p in described["panels"] if "datasource" in p}
    assert used == {"${datasource}"}


def test_what_is_told_as_a_number_is_asked_of_now_alone():
    """Of a range the newest value would stand there, however long ago the run has gone."""
    for dashboard in DASHBOARDS:
        drawn = {p["title"]: p for p in describe_dashboard(dashboard)["panels"]}
        for panel in dashboard.panels:
            is_newest = panel.look.chart in {Chart.NUMBER, Chart.BARS}
            for target in drawn[panel.title]["targets"]:
                assert (target["instant"], target["range"]) == (is_newest, not is_newest)
            assert drawn[panel.title]["options"].get("graphMode", "none") == "none"


def test_low_is_red_where_low_is_bad():
    shown = json.loads(render_files()[f"{DASHBOARDS_FOLDER}/trainflow-overview.json"])
    goodput, age = (
        p for p in shown["panels"] if p["title"] in {"Goodput", "Age of the newest checkpoint"}
    )
    steps = {
        p["title"]: p["fieldConfig"]["defaults"]["thresholds"]["steps"] for p in (goodput, age)
    }
    assert [step["color"] for step in steps["Goodput"]] == ["red", "yellow", "green"]
    assert [step["value"] for step in steps["Goodput"]] == [None, 0.7, 0.9]
    assert steps["Age of the newest checkpoint"][-1] == {"color": "red", "value": 3600}


def test_grafana_finds_the_files_and_their_source():
    provisioning = FOLDER / "grafana/provisioning"
    (source,) = yaml.safe_load((provisioning / "datasources/trainflow.yml").read_text())[
        "datasources"
    ]
    assert source["type"] == "prometheus"
    scrape = yaml.safe_load((FOLDER / "prometheus/prometheus.yml").read_text())["global"]
    assert source["jsonData"]["timeInterval"] == scrape["scrape_interval"]
    (provider,) = yaml.safe_load((provisioning / "dashboards/trainflow.yml").read_text())[
        "providers"
    ]
    assert provider["options"]["path"] == "/etc/grafana/dashboards"
