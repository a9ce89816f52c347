"""Turn a job file, the environment and the command line into one checked configuration.

Process: any.  Blocks: on reading one local file.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from trainflow.config.checking import check_settings
from trainflow.config.job import JobConfig
from trainflow.config.sources import read_environment, read_file, read_options


def load_job(
    path: str | Path,
    overrides: Sequence[str] = (),
    env: Mapping[str, str] = os.environ,
) -> JobConfig:
    """Read a job: the file, over it the environment, over that the options.

    Args:
        path: a ``.yaml``, ``.yml``, ``.toml`` or ``.json`` file.
        overrides: options such as ``training.max_steps=10``; each value is read as YAML.
        env: the environment; ``TRAINFLOW__TRAINING__MAX_STEPS`` sets ``training.max_steps``.

    Raises:
        ConfigError: with every problem found, one a line: where it was set, the dotted key, what
            was got, what was expected and what to change.
    """
    content = read_file(Path(path))
    changes = [*read_environment(env, JobConfig), *read_options(overrides)]
    return check_settings(JobConfig, content, changes, source=str(path))
