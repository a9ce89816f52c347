"""What a fork has to have as if Python had been started for it: its variables.

Process: the server of forks, and the Keeper.  Pure.
"""

import re
from collections.abc import Mapping

# They tell apart what starts a process, and say nothing to what it imports.
_OF_EACH_PROCESS = frozenset({"_", "SHLVL", "PWD", "OLDPWD"})
_REFERENCE = re.compile(r"\$(\w+|\{[^}]*\})")
_UNKNOWN = re.compile(r"\$\{[A-Z0-9_]+\}")


def expand_variables(
    environment: Mapping[str, str], variables: Mapping[str, str]
) -> dict[str, str]:
    """Return an environment with ``runtime_env.env_vars``, in whose values Ray expands others."""
    expanded = dict(environment)

    def find(match: re.Match[str]) -> str:
        return expanded.get(match[1].strip("{}"), match[0])

    for name, value in variables.items():
        expanded[name] = _UNKNOWN.sub("", _REFERENCE.sub(find, value))
    return expanded


def find_difference(imported_under: Mapping[str, str], wanted: Mapping[str, str]) -> str | None:
    """Return the name of a variable by which two environments differ; None if they are alike.

    What was imported under other variables may be something else, so none is overlooked but those
    that say nothing.
    """
    names = (imported_under.keys() | wanted.keys()) - _OF_EACH_PROCESS
    different = (name for name in names if imported_under.get(name) != wanted.get(name))
    return min(different, default=None)


def find_changes(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str | None]:
    """Return the variables that have changed, by name; None: it is gone."""
    names = before.keys() | after.keys()
    return {name: after.get(name) for name in names if before.get(name) != after.get(name)}


def apply_changes(
    environment: Mapping[str, str], changes: Mapping[str, str | None]
) -> dict[str, str]:
    """Return an environment with changes that `find_changes` has found in another."""
    kept = {name: value for name, value in environment.items() if name not in changes}
    return kept | {name: value for name, value in changes.items() if value is not None}
