"""Which settings decide the bits that a run computes, so that only runs alike are compared.

Pure.
"""

from typing import Any

from trainflow.config.fingerprint import altering_settings, named_settings

_ALTERING_BITS: dict[str, frozenset[str] | None] = {
    "workers": frozenset({"target", "resources"}),
    "parallel": None,
    "communication": frozenset({"backend"}),
}
"""Beside those of `fingerprint`, after which a run may go on with others: how many sum, and how."""


def compared_settings(config: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that decide a run's bits, by dotted name.

    Args:
        config: a job's configuration, as JSON.
    """
    return named_settings(config, _ALTERING_BITS) | altering_settings(config)


def incomparable_settings(one: dict[str, Any], other: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the settings by which two runs' bits differ without a fault, by dotted name.

    Args:
        one: a job's configuration, as JSON.
        other: another's.
    """
    ours, theirs = compared_settings(one), compared_settings(other)
    return {
        name: (ours.get(name), theirs.get(name))
        for name in sorted(ours.keys() | theirs.keys())
        if ours.get(name) != theirs.get(name)
    }
