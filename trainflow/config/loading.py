"""Turn a job file, the environment and the command line into one checked configuration.

Process: any.  Blocks: on reading one local file.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError

from trainflow.config.job import JobConfig
from trainflow.config.problems import Origins, Problem, find_problems, summarize
from trainflow.config.sources import (
    Override,
    Settings,
    read_environment,
    read_file,
    read_options,
)
from trainflow.errors import ConfigError


def load_job(
    path: str | Path,
    overrides: Sequence[str] = (),
    env: Mapping[str, str] = os.environ,
) -> JobConfig:
    """Read a job: the file, over it the environment, over that the options.

    Args:
        path: a ``.yaml``, ``.yml`` or ``.toml`` file.
        overrides: options such as ``training.max_steps=10``; each value is read as YAML.
        env: the environment; ``TRAINFLOW__TRAINING__MAX_STEPS`` sets ``training.max_steps``.

    Raises:
        ConfigError: with every problem found, one a line: where it was set, the dotted key, what
            was got, what was expected and what to change.
    """
    origins = Origins(default=str(path))
    content = read_file(Path(path))
    changes = [*read_environment(env, JobConfig), *read_options(overrides)]
    problems = [item for item in (content, *changes) if isinstance(item, Problem)]
    if not isinstance(content, Problem):
        for change in changes:
            if isinstance(change, Override):
                _apply(change, content, origins)
        try:
            config = JobConfig.model_validate(content)
        except ValidationError as error:
            problems += find_problems(error, model=JobConfig, data=content, origins=origins)
        else:
            if not problems:
                return config
    raise ConfigError(summarize(problems))


def _apply(override: Override, settings: Settings, origins: Origins) -> None:
    """Set one value in place, making the sections that lead to it."""
    *sections, key = override.path
    inner = settings
    for depth, section in enumerate(sections, start=1):
        if not isinstance(inner.get(section), dict):
            inner[section] = {}
            origins.record(".".join(override.path[:depth]), override.source)
        inner = cast("dict[str, Any]", inner[section])
    inner[key] = override.value
    origins.record(".".join(override.path), override.source)
