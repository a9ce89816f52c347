"""Where a job is built outside a run, its environment variables are those that are set there.

A run gives its workers what ``runtime_env.env_vars`` says; checkpoints and records keep the names
alone. So what is done with those takes the values from where it is done; a run gives its own drills
what it gives its workers.

Process: one of its own, for a drill, an export, an import or a replay.  Thread: main.
"""

import os
from collections.abc import Generator
from contextlib import contextmanager

from trainflow.config.job import JobConfig
from trainflow.config.masking import missing_variables
from trainflow.errors import CheckpointError, CheckpointMisfitError, TrainFlowError, TrainingError


@contextmanager
def naming_missing_variables(job: JobConfig) -> Generator[None]:
    """Say with an error which of the job's environment variables aren't set here, if any.

    What is wrong with a checkpoint itself is raised as it is.

    Raises:
        TrainFlowError: of the same kind as the one that was raised inside.
        TrainingError: in place of an error of the job's own code.
    """
    try:
        yield
    except Exception as error:
        missing = missing_variables(job, os.environ)
        is_damage = isinstance(error, CheckpointError)
        if not missing or (is_damage and not isinstance(error, CheckpointMisfitError)):
            raise
        told = str(error)
        kind: type[TrainFlowError] = TrainingError
        if isinstance(error, TrainFlowError):
            kind = type(error)
        else:
            told = f"{job.entrypoint}: got {type(error).__name__} ({error}), expected none"
        raise kind(
            f"{told}; runtime_env.env_vars sets {', '.join(missing)} in a run, and no checkpoint "
            "and no record keeps the values: if one is needed, set it where you run this"
        ) from error
