"""The files that Prometheus and Grafana read, as they are made from the tables. Pure."""

from collections.abc import Mapping

from trainflow.monitoring.alerts.rules_file import render_rules
from trainflow.monitoring.dashboards.catalog import DASHBOARDS
from trainflow.monitoring.dashboards.grafana_model import render_dashboard

RULES_FILE = "prometheus/rules/trainflow.yml"
DASHBOARDS_FOLDER = "grafana/dashboards"


def render_files() -> Mapping[str, str]:
    """Return the content of each, by its path below the folder ``dashboards``."""
    drawn = {f"{DASHBOARDS_FOLDER}/{each.uid}.json": render_dashboard(each) for each in DASHBOARDS}
    return {RULES_FILE: render_rules(), **drawn}
