"""Write the alerts as Prometheus reads them. Pure."""

from typing import Any

import yaml

from trainflow.monitoring.alerts.rule import AlertRule, write_duration
from trainflow.monitoring.alerts.rules import RULES

_HEAD = """\
# Made from trainflow/monitoring/alerts by `trainflow dashboards write dashboards`; a test fails
# while the two differ.
"""
_WIDTH = 100


def render_rules() -> str:
    """Return the file, as YAML."""
    groups = [
        {"name": name, "interval": "30s", "rules": [_describe(rule) for rule in rules]}
        for name, rules in RULES.items()
    ]
    return _HEAD + yaml.safe_dump({"groups": groups}, sort_keys=False, width=_WIDTH)


def _describe(rule: AlertRule) -> dict[str, Any]:
    return {
        "alert": rule.name,
        "expr": rule.query,
        "for": write_duration(rule.for_s),
        "labels": rule.labels,
        "annotations": rule.annotations,
    }
