"""Which settings decide the bits that a run computes, so that only runs alike are compared.

Pure.
"""

from typing import Any

from trainflow.config.fingerprint import changed_settings, named_settings

_ALTERING_BITS: dict[str, frozenset[str] | None] = {
    "workers": frozenset({"target", "resources"}),
    "parallel": None,
    "communication": frozenset({"backend"}),
}
"""Beside those of `fingerprint`, after which a run may go on with others: how many sum, and how."""


def incomparable_settings(one: dict[str, Any], other: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Return the settings by which two runs' bits differ without a fault, by dotted name.

    Args:
        one: a job's configuration, as JSON.
        other: another's.
    """
    ours, theirs = (named_settings(config, _ALTERING_BITS) for config in (one, other))
    differing = {
        name: (ours.get(name), theirs.get(name))
        for name in ours.keys() | theirs.keys()
        if ours.get(name) != theirs.get(name)
    }
    return dict(sorted((differing | changed_settings(one, other)).items()))
