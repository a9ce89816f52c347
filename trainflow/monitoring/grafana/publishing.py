"""Publish dashboards and alerts into a Grafana: what is there and the same is left as it is.

Process: any.  Blocks: until Grafana has answered each call.
"""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from typing import Any, NamedTuple

from trainflow.errors import ConfigError
from trainflow.monitoring.dashboards.catalog import DASHBOARDS
from trainflow.monitoring.dashboards.grafana_model import describe_dashboard
from trainflow.monitoring.dashboards.panel import Dashboard
from trainflow.monitoring.grafana.api import Grafana
from trainflow.monitoring.grafana.rule_model import describe_groups

FOLDER = "trainflow"
"""Uid of the folder; what is in others is left alone."""

MESSAGE = "published by trainflow dashboards publish"


class Outcome(StrEnum):
    """What became of something."""

    MADE = "made"
    REPLACED = "replaced"
    UNCHANGED = "unchanged"


class Published(NamedTuple):
    """Something that was published."""

    what: str
    outcome: Outcome


def publish(
    grafana: Grafana, title: str, source: str | None, *, has_alerts: bool
) -> Iterator[Published]:
    """Publish all, and yield each as it is done; begin by what everything else needs.

    Args:
        grafana: where to.
        title: of the folder.
        source: name or uid of the Prometheus that alerts ask; None if there is but one.
        has_alerts: whether rules of alerts are published, too.

    Raises:
        ConfigError: which Prometheus is meant is not clear.
        GrafanaError: Grafana refuses something; what was yielded is done.
        UnreachableError: it doesn't answer.
    """
    asked = choose_source(grafana.list_sources(), source) if has_alerts else ""
    yield Published(f"folder {title}", _publish_folder(grafana, title))
    for dashboard in DASHBOARDS:
        outcome = _publish_dashboard(grafana, dashboard)
        yield Published(f"dashboard {dashboard.title}", outcome)
    if has_alerts:
        for name, rules in describe_groups(FOLDER, asked).items():
            yield Published(f"alerts {name}", _publish_rules(grafana, name, rules))


def choose_source(sources: list[dict[str, Any]], wanted: str | None) -> str:
    """Return the uid of the Prometheus that is meant.

    Raises:
        ConfigError: there is none, or more than one.
    """
    found = [each for each in sources if each["type"] == "prometheus"]
    if wanted is not None:
        found = [each for each in found if wanted in {each["name"], each["uid"]}]
    if len(found) == 1:
        return found[0]["uid"]
    names = ", ".join(sorted(each["name"] for each in sources)) or "no data source"
    expected = "one that is a Prometheus" if wanted is None else f"one Prometheus named {wanted}"
    raise ConfigError(
        f"--source: Grafana has {names}, expected {expected}; name it by --source, or add it there"
    )


def contains(found: Mapping[str, Any], wanted: Mapping[str, Any]) -> bool:
    """Whether all that is wanted is so; Grafana adds fields of its own."""
    return all(_is_so(found.get(name), value) for name, value in wanted.items())


def _is_so(found: Any, wanted: Any) -> bool:  # noqa: ANN401  JSON
    if isinstance(wanted, Mapping) and isinstance(found, Mapping):
        return contains(found, wanted)  # pyright: ignore[reportUnknownArgumentType]  JSON
    if isinstance(wanted, list) and isinstance(found, list):
        pairs = zip(found, wanted, strict=False)  # pyright: ignore[reportUnknownArgumentType,reportUnknownVariableType]  JSON
        return len(found) == len(wanted) and all(_is_so(*pair) for pair in pairs)  # pyright: ignore[reportUnknownArgumentType,reportUnknownVariableType]  JSON
    return found == wanted


def _publish_folder(grafana: Grafana, title: str) -> Outcome:
    found = grafana.find_folder(FOLDER)
    if found is None:
        grafana.make_folder(FOLDER, title)
        return Outcome.MADE
    if found["title"] == title:
        return Outcome.UNCHANGED
    grafana.rename_folder(FOLDER, title)
    return Outcome.REPLACED


def _publish_dashboard(grafana: Grafana, dashboard: Dashboard) -> Outcome:
    wanted = describe_dashboard(dashboard)
    found = grafana.find_dashboard(dashboard.uid)
    if found is not None:
        is_there = found["meta"].get("folderUid") == FOLDER
        if is_there and contains(found["dashboard"], wanted):
            return Outcome.UNCHANGED
    grafana.save_dashboard(wanted, FOLDER, MESSAGE)
    return Outcome.MADE if found is None else Outcome.REPLACED


def _publish_rules(grafana: Grafana, name: str, rules: dict[str, Any]) -> Outcome:
    found = grafana.find_rules(FOLDER, name)
    if found is not None and contains(found, rules):
        return Outcome.UNCHANGED
    grafana.save_rules(FOLDER, name, rules if found is None else _name_as_before(rules, found))
    return Outcome.MADE if found is None else Outcome.REPLACED


def _name_as_before(rules: Mapping[str, Any], found: Mapping[str, Any]) -> dict[str, Any]:
    """Return a group whose rules have the uids that they have in Grafana: one that fires goes on.

    Without its uid a rule would be another one, and the one that is there would be deleted.
    """
    uids = {each["title"]: {"uid": each["uid"]} for each in found["rules"] if "uid" in each}
    named = [uids.get(rule["title"], {}) | rule for rule in rules["rules"]]
    return {**rules, "rules": named}
