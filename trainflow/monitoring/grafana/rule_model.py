"""Write the alerts as Grafana's own rules, for its provisioning API.

A rule of Prometheus fires for each series that its query answers with, whatever the value; one of
Grafana, where a number is not zero. So a second stage makes a one of whatever there is.

A rule has no uid here: Grafana before 11.5.2 takes none of one that isn't there yet, and gives it
one of its own (https://github.com/grafana/grafana/issues/98283).

Pure.
"""

from typing import Any

from trainflow.monitoring.alerts.rule import AlertRule, write_duration
from trainflow.monitoring.alerts.rules import RULES

Json = dict[str, Any]

INTERVAL_S = 60
"""Seconds between two looks at a rule: Grafana takes multiples of ten."""

_LOOKS_BACK_S = 600
_QUERY, _CONDITION = "A", "B"
_THERE = f"is_number(${_QUERY}) || is_inf(${_QUERY}) || is_nan(${_QUERY})"


def describe_groups(folder: str, source: str) -> dict[str, Json]:
    """Return each group of rules, by name.

    Args:
        folder: uid of the folder that they belong to.
        source: uid of the Prometheus that is asked.
    """
    return {name: _describe_group(name, folder, source) for name in RULES}


def _describe_group(name: str, folder: str, source: str) -> Json:
    rules = [_describe_rule(rule, name, folder, source) for rule in RULES[name]]
    return {"title": name, "folderUid": folder, "interval": INTERVAL_S, "rules": rules}


def _describe_rule(rule: AlertRule, group: str, folder: str, source: str) -> Json:
    texts = {name: _rewrite(text) for name, text in rule.annotations.items()}
    return {
        "title": rule.name,
        "folderUID": folder,
        "ruleGroup": group,
        "condition": _CONDITION,
        "data": [_describe_query(rule.query, source), _describe_condition()],
        "for": write_duration(rule.for_s),
        "noDataState": "OK",
        "execErrState": "Error",
        "labels": rule.labels,
        "annotations": texts,
        "isPaused": False,
    }


def _rewrite(template: str) -> str:
    """Return a template of Prometheus as one of Grafana, where `$value` is a text of all values."""
    return template.replace("$value", f"$values.{_QUERY}.Value")


def _describe_query(query: str, source: str) -> Json:
    model = {"refId": _QUERY, "expr": query, "instant": True, "range": False}
    looks_back = {"from": _LOOKS_BACK_S, "to": 0}
    return {
        "refId": _QUERY,
        "datasourceUid": source,
        "relativeTimeRange": looks_back,
        "model": model,
    }


def _describe_condition() -> Json:
    asked = {"type": "__expr__", "uid": "__expr__"}
    model = {"refId": _CONDITION, "type": "math", "expression": _THERE, "datasource": asked}
    nothing: Json = {"from": 0, "to": 0}
    return {
        "refId": _CONDITION,
        "datasourceUid": "__expr__",
        "relativeTimeRange": nothing,
        "model": model,
    }
