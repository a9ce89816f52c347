"""Refuse a runtime environment that Ray would refuse later, or would drop fields of.

Process: driver, before anything starts.  Starts no Ray.  Blocks: on reading files that it names.
"""

import os
from collections.abc import Iterable, Mapping
from typing import Any, cast

import ray
from ray.runtime_env import RuntimeEnv

from trainflow.config.problems import Problem, summarize
from trainflow.errors import ConfigError

_PLUGINS = "RAY_RUNTIME_ENV_PLUGINS"


class _AnyActor:
    """Takes the options that a worker would."""


def check_runtime_env(environment: Mapping[str, Any]) -> None:
    """Check ``runtime_env`` as far as that is possible without a cluster.

    Fields that Ray doesn't know may belong to a plugin, so they pass where plugins are named.

    Raises:
        ConfigError: Ray refuses it for actors, or would drop a field that it doesn't know.
    """
    _check_variables(environment.get("env_vars"))
    try:
        ray.remote(_AnyActor).options(runtime_env=dict(environment))
        unknown = _find_unknown(environment)
    except Exception as error:  # Ray's checks, and what they read files by, raise many kinds
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        expected = "a runtime environment that Ray gives to actors"
        problem = Problem("runtime_env", _name_all(environment), expected, f"change it: {reason}")
        raise ConfigError(str(problem)) from error
    if unknown:
        expected = f"one of {_name_all(_without_underscore(RuntimeEnv.known_fields))}"
        change = f"remove it; Ray would ignore it. A plugin's needs {_PLUGINS} set here too"
        raise ConfigError(str(Problem(f"runtime_env.{unknown[0]}", "a key", expected, change)))


def _check_variables(variables: object) -> None:
    """Refuse values that are no text before Ray does, which repeats them: they may be secrets."""
    if not isinstance(variables, dict):
        return
    problems = [
        Problem(
            f"runtime_env.env_vars.{name}",
            f"a value of type {type(value).__name__}",
            "text",
            f"put it in quotes, in an option as --set 'runtime_env.env_vars.{name}=\"...\"'",
        )
        for name, value in cast("dict[object, object]", variables).items()
        if not isinstance(value, str)
    ]
    if problems:
        raise ConfigError(summarize(problems))


def _find_unknown(environment: Mapping[str, Any]) -> list[str]:
    """Return the fields that Ray would ignore."""
    if _PLUGINS in os.environ:
        return []
    return sorted(RuntimeEnv(**environment).keys() - RuntimeEnv.known_fields)


def _without_underscore(fields: Iterable[str]) -> list[str]:
    """Leave out what Ray sets itself."""
    return [field for field in fields if not field.startswith("_")]


def _name_all(fields: Iterable[str]) -> str:
    """Return the names only: values may be secrets."""
    return ", ".join(sorted(map(str, fields)))
