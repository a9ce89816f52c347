"""Write dashboards as Grafana reads them: its classic JSON model, which versions 10 to 13 take.

https://grafana.com/docs/grafana/latest/visualizations/dashboards/build-dashboards/view-dashboard-json-model

Pure.
"""

import json
from collections.abc import Iterator
from typing import Any

from trainflow.monitoring import metrics
from trainflow.monitoring.dashboards.panel import WIDTH, Chart, Dashboard, Look, Panel
from trainflow.monitoring.metric import JOB_LABEL

Json = dict[str, Any]

TAG = "trainflow"
"""What all dashboards and annotations are found by."""

MARKED = {"failure": ("Failures", "red"), "recovered": ("Recoveries", "green")}
"""Kinds of events that are drawn on every curve, where they are posted: their title and colour."""

_SCHEMA_VERSION = 39
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_GRAFANA = {"type": "grafana", "uid": "-- Grafana --"}
_JOB = "$job"
_NEWEST = {"calcs": ["lastNotNull"], "fields": "", "values": False}


def render_dashboard(dashboard: Dashboard) -> str:
    """Return a dashboard as JSON."""
    return json.dumps(describe_dashboard(dashboard), indent=1, ensure_ascii=False) + "\n"


def describe_dashboard(dashboard: Dashboard) -> Json:
    """Return a dashboard as JSON's values."""
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.purpose,
        "tags": [TAG],
        "schemaVersion": _SCHEMA_VERSION,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "timezone": "",
        "links": [_describe_links()],
        "annotations": {"list": [_describe_mark(kind, dashboard) for kind in MARKED]},
        "templating": {"list": list(_describe_variables(dashboard))},
        "panels": list(_place_panels(dashboard)),
    }


def _describe_links() -> Json:
    """Return links to the other dashboards, with the same time and job."""
    return {
        "title": "TrainFlow",
        "type": "dashboards",
        "tags": [TAG],
        "asDropdown": False,
        "includeVars": True,
        "keepTime": True,
        "targetBlank": False,
    }


def _describe_mark(kind: str, dashboard: Dashboard) -> Json:
    """Return which marks stand on the curves: those of the job that is looked at, if it is one."""
    name, colour = MARKED[kind]
    tags = [TAG, kind] if dashboard.may_show_all else [TAG, kind, _JOB]
    target = {"type": "tags", "tags": tags, "matchAny": False, "limit": 200}
    drawn = {"datasource": _GRAFANA, "enable": True, "iconColor": colour, "name": name}
    return drawn | {"target": target}


def _describe_variables(dashboard: Dashboard) -> Iterator[Json]:
    """Yield what is chosen at the top."""
    yield {
        "name": "datasource",
        "label": "Prometheus",
        "type": "datasource",
        "query": "prometheus",
        "refresh": 1,
        "hide": 0,
    }
    query = f"label_values({metrics.WORLD_SIZE.shown_name}, {JOB_LABEL})"
    job: Json = {
        "name": "job",
        "label": "Job",
        "type": "query",
        "datasource": _SOURCE,
        "definition": query,
        "query": {"query": query, "refId": "jobs"},
        "refresh": 2,
        "sort": 1,
        "multi": dashboard.may_show_all,
        "includeAll": dashboard.may_show_all,
    }
    if dashboard.may_show_all:
        job |= {"allValue": ".+", "current": {"text": "All", "value": "$__all"}}
    yield job


def _place_panels(dashboard: Dashboard) -> Iterator[Json]:
    """Yield each section's title and its panels, from left to right and from top to bottom."""
    number = y = 0
    for title, panels in dashboard.sections.items():
        number += 1
        place = {"x": 0, "y": y, "w": WIDTH, "h": 1}
        row = {"id": number, "type": "row", "title": title, "gridPos": place}
        yield row | {"collapsed": False, "panels": []}
        x, y, line = 0, y + 1, 0
        for panel in panels:
            number += 1
            if x + panel.look.width > WIDTH:
                x, y, line = 0, y + line, 0
            place = {"x": x, "y": y, "w": panel.look.width, "h": panel.look.height}
            yield _describe_panel(panel) | {"id": number, "gridPos": place}
            x, line = x + panel.look.width, max(line, panel.look.height)
        y += line


def _describe_panel(panel: Panel) -> Json:
    return {
        "type": panel.look.chart.value,
        "title": panel.title,
        "description": panel.question,
        "datasource": _SOURCE,
        "targets": list(_describe_targets(panel)),
        "fieldConfig": {"defaults": _describe_field(panel.look), "overrides": []},
        "options": _describe_options(panel.look),
    }


def _describe_targets(panel: Panel) -> Iterator[Json]:
    chart = panel.look.chart
    # Of a range the newest that there is would be shown, of a run that is gone as well.
    is_newest = chart in {Chart.NUMBER, Chart.BARS}
    for letter, each in zip("ABCDEFGH", panel.curves, strict=False):
        yield {
            "refId": letter,
            "datasource": _SOURCE,
            "expr": each.query,
            "legendFormat": each.legend,
            "format": "heatmap" if chart is Chart.DENSITY else "time_series",
            "range": not is_newest,
            "instant": is_newest,
        }


def _describe_field(look: Look) -> Json:
    field: Json = {"unit": look.unit.value, "noValue": look.absent}
    if look.chart is Chart.CURVES:
        scale: Json = {"type": "log", "log": 10} if look.is_logarithmic else {"type": "linear"}
        stacking = {"mode": "normal" if look.is_stacked else "none", "group": "A"}
        fill = 40 if look.is_stacked else 0
        drawn: Json = {"drawStyle": "line", "lineWidth": 1, "fillOpacity": fill}
        drawn |= {"spanNulls": False, "showPoints": "auto", "stacking": stacking}
        field["custom"] = drawn | {"scaleDistribution": scale}
    if look.limits is not None:
        field["thresholds"] = _describe_limits(look.limits.yellow, look.limits.red)
        field["color"] = {"mode": "thresholds"}
    return field


def _describe_limits(yellow: float, red: float) -> Json:
    colours: list[tuple[str, float | None]] = [("green", None), ("yellow", yellow), ("red", red)]
    if red < yellow:  # what is low is bad
        colours = [("red", None), ("yellow", red), ("green", yellow)]
    steps = [{"color": name, "value": value} for name, value in colours]
    return {"mode": "absolute", "steps": steps}


def _describe_options(look: Look) -> Json:
    match look.chart:
        case Chart.CURVES:
            legend = {"displayMode": "list", "placement": "bottom", "showLegend": True}
            tooltip = {"mode": "multi", "sort": "desc"}
            return {"legend": legend | {"calcs": []}, "tooltip": tooltip}
        case Chart.NUMBER:
            colour = "none" if look.limits is None else "value"
            return {"reduceOptions": _NEWEST, "colorMode": colour, "graphMode": "none"}
        case Chart.BARS:
            drawn = {"orientation": "horizontal", "displayMode": "basic"}
            return drawn | {"reduceOptions": _NEWEST, "showUnfilled": True}
        case Chart.DENSITY:
            colour = {"mode": "scheme", "scheme": "Oranges", "steps": 64}
            axis = {"unit": look.unit.value, "axisPlacement": "left"}
            return {"calculate": False, "color": colour, "yAxis": axis, "cellGap": 1}
