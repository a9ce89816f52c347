"""Which settings a run's results depend on, so that nobody goes on with another run by accident.

Pure.
"""

import json
from collections.abc import Mapping
from typing import Any

import xxhash

from trainflow.config.altering import (
    ALTERING,
    ALTERING_BY_ACTION,
    ALTERING_WITH_BATCH_SCALING,
)
from trainflow.config.job import JobConfig

_ANOMALIES = "monitoring.anomalies"


def altering_settings(config: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that alter a run's results, by dotted name.

    Args:
        config: a job's configuration as JSON, of this release or of another.
    """
    found = named_settings(config, ALTERING)
    if found.get("training.batch_scaling", "none") != "none":  # a step's size depends on it too
        found |= named_settings(config, ALTERING_WITH_BATCH_SCALING)
    anomalies = named_settings(config, {"monitoring": frozenset({"anomalies"})})
    action = named_settings(anomalies, {_ANOMALIES: frozenset({"action"})})
    names = ALTERING_BY_ACTION.get(action.get(f"{_ANOMALIES}.action", "alert"), ())
    if names:  # else these only say what is told
        found |= named_settings(anomalies, {_ANOMALIES: frozenset(names)})
    return found


def named_settings(
    config: dict[str, Any], sections: Mapping[str, frozenset[str] | None]
) -> dict[str, Any]:
    """Return settings by dotted name.

    Args:
        config: a job's configuration as JSON.
        sections: their sections; all of a section where no names are given.
    """
    found: dict[str, Any] = {}
    for section, named in sections.items():
        value = config.get(section)
        if isinstance(value, dict):
            items: dict[str, Any] = value  # pyright: ignore[reportUnknownVariableType]  JSON
            found |= {f"{section}.{k}": v for k, v in items.items() if named is None or k in named}
        else:
            found[section] = value
    return found


def changed_settings(before: dict[str, Any], now: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return what differs between two configurations, as (before, now) by dotted name."""
    old, new = altering_settings(before), altering_settings(now)
    names = sorted(old.keys() | new.keys())
    return {
        name: (old.get(name), new.get(name)) for name in names if old.get(name) != new.get(name)
    }


def fingerprint(job: JobConfig) -> str:
    """Return 32 hex digits that are equal where all altering settings are."""
    settings = altering_settings(job.model_dump(mode="json"))
    return xxhash.xxh3_128_hexdigest(json.dumps(settings, sort_keys=True).encode())
