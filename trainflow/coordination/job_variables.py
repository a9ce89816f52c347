"""Find which environment variables a job's workers are given, for a process beside them.

Process: coordinator.  Pure.
"""

import re
from collections.abc import Mapping
from typing import Any

_NAMED = re.compile(r"\$(?:(\w+)|\{([^}]*)\})", re.ASCII)
_EMPTIED = re.compile(r"\$\{[A-Z0-9_]+\}")


def find_variables(environment: Mapping[str, Any], outside: Mapping[str, str]) -> dict[str, str]:
    """Return what ``env_vars`` of a runtime environment sets, as Ray does.

    A value's ``${X}`` and ``$X`` stand for what X is outside, or by then; ``${X}`` for nothing if X
    isn't set.

    Args:
        environment: of the job; one that Ray takes.
        outside: the environment that it comes on top of.
    """
    found: dict[str, str] = {}
    for name, value in (environment.get("env_vars") or {}).items():
        known = {**outside, **found}
        expanded = _NAMED.sub(lambda match, known=known: _look_up(match, known), value)
        found[name] = _EMPTIED.sub("", expanded)
    return found


def _look_up(match: re.Match[str], known: Mapping[str, str]) -> str:
    """Return what is meant; the text as it is if nothing is known of that name."""
    return known.get(match[1] or match[2], match[0])
