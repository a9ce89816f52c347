"""Dashboards are what Grafana's own types have, as its makers generate them from its schemas.

Those of version 10.1. Their reader drops what it doesn't know and takes any value, so it is looked
at what is left of a dashboard, and whether that is of its type.
"""

import inspect
import json
import typing
from collections.abc import Callable, Iterator
from copy import deepcopy
from enum import EnumType
from typing import Any

import pytest

from trainflow.monitoring.dashboards.catalog import DASHBOARDS
from trainflow.monitoring.dashboards.grafana_model import describe_dashboard
from trainflow.monitoring.dashboards.panel import Dashboard

Json = dict[str, Any]

# What Grafana's own editor of variables writes, and these types lack.
UNTYPED = {"/templating/list/definition"}


def read(described: Json) -> Any:
    """Return a dashboard as Grafana's types."""
    wanted = "needs grafana-foundation-sdk (pip install 'trainflow[dev]')"
    dashboards = pytest.importorskip("grafana_foundation_sdk.models.dashboard", reason=wanted)
    pytest.importorskip("grafana_foundation_sdk.cog.plugins").register_default_plugins()
    return dashboards.Dashboard.from_json(described)


def written(dashboard: Any) -> Any:
    return json.loads(json.dumps(dashboard, default=lambda each: each.to_json()))


def find_dropped(ours: Any, theirs: Any, path: str = "") -> Iterator[str]:
    """Yield where what was read lacks something, or has something else."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for name in ours:
            here = f"{path}/{name}"
            if name not in theirs:
                yield here
            else:
                yield from find_dropped(ours[name], theirs[name], here)
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for one, other in zip(ours, theirs, strict=True):
            yield from find_dropped(one, other, path)
    elif ours != theirs:
        yield path


def find_unfit(thing: Any, path: str = "") -> Iterator[str]:
    """Yield where a value is not of its type."""
    if isinstance(thing, list):
        for each in thing:
            yield from find_unfit(each, path)
    elif hasattr(thing, "to_json"):
        for name, hint in typing.get_type_hints(type(thing)).items():
            value = getattr(thing, name)
            if not fits(value, hint):
                yield f"{path}/{name}"
            yield from find_unfit(value, f"{path}/{name}")


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of a type, or may become of one as it is read."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is list:
        return isinstance(value, list) and all(fits(each, parts[0]) for each in value)
    if parts and origin not in {dict, typing.Literal}:
        return any(fits(value, part) for part in parts)
    if isinstance(hint, EnumType):
        return value in {member.value for member in hint}
    if hint in {int, float}:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    checked = inspect.isclass(origin or hint) and (origin or hint) is not object
    return not checked or isinstance(value, origin or hint)


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda dashboard: dashboard.title)
def test_grafana_knows_all_that_a_dashboard_says(dashboard: Dashboard):
    described = describe_dashboard(dashboard)
    understood = read(described)
    assert set(find_dropped(described, written(understood))) <= UNTYPED
    assert list(find_unfit(understood)) == []


def misname(panel: Json) -> None:
    panel["fieldConfigs"] = {}


def misname_an_option(panel: Json) -> None:
    panel["options"]["legends"] = {}


def misdraw(panel: Json) -> None:
    panel["fieldConfig"]["defaults"]["custom"]["drawStyle"] = "curve"


def place_by_words(panel: Json) -> None:
    panel["gridPos"]["w"] = "half"


def ask_for_nothing(panel: Json) -> None:
    panel["targets"][0]["query"] = panel["targets"][0].pop("expr")


@pytest.mark.parametrize(
    "spoil", [misname, misname_an_option, misdraw, place_by_words, ask_for_nothing]
)
def test_what_grafana_does_not_know_is_found(spoil: Callable[[Json], None]):
    described = deepcopy(describe_dashboard(DASHBOARDS[0]))
    spoil(next(each for each in described["panels"] if each["type"] == "timeseries"))
    understood = read(described)
    dropped = set(find_dropped(described, written(understood))) - UNTYPED
    assert dropped | set(find_unfit(understood))
