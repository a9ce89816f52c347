"""A job's settings as they are kept where others may read them: without the values of secrets.

Process: any.  Pure.
"""

from collections.abc import Mapping
from typing import Any, cast

from trainflow.config.job import JobConfig

MASK = "**********"
"""What stands in place of a value. Secrets among a job's args are refused (`secret_args`)."""


def kept_settings(job: JobConfig) -> dict[str, Any]:
    """Return a job's settings as JSON, as checkpoints and records keep them."""
    return mask_variables(job.model_dump(mode="json"))


def sent_settings(job: JobConfig) -> dict[str, Any]:
    """Return them as others' services get them: a webhook's address may be a secret by itself."""
    settings = kept_settings(job)
    webhook = settings["monitoring"]["webhook"]
    if webhook is not None and webhook["url"] is not None:
        webhook["url"] = MASK
    return settings


def mask_variables(config: dict[str, Any]) -> dict[str, Any]:
    """Return settings with the names of ``runtime_env.env_vars`` alone: values may be secrets.

    Args:
        config: a job's configuration as JSON, of this release or of another; it stays as it is.
    """
    environment: Any = config.get("runtime_env")
    names = _variables(environment)
    if not names:
        return config
    masked = dict.fromkeys(names, MASK)
    return config | {"runtime_env": environment | {"env_vars": masked}}


def missing_variables(job: JobConfig, environment: Mapping[str, str]) -> list[str]:
    """Return the names in ``runtime_env.env_vars`` that an environment has no value for."""
    return [name for name in _variables(job.runtime_env) if name not in environment]


def _variables(environment: object) -> list[str]:
    """Return the names of the variables that a runtime environment sets, if it is one."""
    if not isinstance(environment, dict):
        return []
    variables = cast("dict[str, object]", environment).get("env_vars")
    return list(cast("dict[str, object]", variables)) if isinstance(variables, dict) else []
