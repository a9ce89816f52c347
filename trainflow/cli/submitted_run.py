"""``trainflow run --job-id``: a job whose id was given before it began, as the service does.

Whoever submitted the job may never see what this process prints or how it exits. So both are kept
in the job's folder: what is printed, and a refusal as the job's result.

Process: driver, mostly of Ray's job submission.  Thread: main.  Blocks: until the run has ended.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from trainflow.cli.kept_output import DRIVER_LOG, keep_output
from trainflow.cli.output import say
from trainflow.cli.preflight import check_job
from trainflow.config import JobConfig
from trainflow.coordination import names
from trainflow.coordination.names import Attempt
from trainflow.errors import ConfigError, ConflictError, JobNotFoundError, TrainFlowError


def run_submitted(
    job_file: Path, settings: Sequence[str], address: str | None, attempt: Attempt
) -> int:
    """Run an attempt of a job and stay until it has ended; return the exit code.

    Args:
        job_file: what to run.
        settings: options over it, such as ``training.max_steps=10``.
        address: the cluster to run it on; None: a head of its own.
        attempt: which.

    Raises:
        ConfigError: the id is none.
        ConflictError: the job was begun before, and this is not a later attempt.
        JobNotFoundError: it is a later attempt of a job that was never begun.
    """
    directory = require_attempt(attempt)
    with keep_output(directory / DRIVER_LOG):
        try:
            return _run(lambda: _check(job_file, settings, attempt), address, attempt)
        except TrainFlowError as error:
            say(f"trainflow: {error}", err=True)
            return error.exit_code


def _run(check: Callable[[], JobConfig], address: str | None, attempt: Attempt) -> int:
    if attempt.number == 1 or address is None:  # nobody has run it on that cluster before
        job = check()
        from trainflow.cli.run_command import run_checked  # noqa: PLC0415  a bad job needs no Ray

        return run_checked(job, address, attempt)
    from trainflow.cli.run_command import run_at_rest  # noqa: PLC0415  loads Ray

    return run_at_rest(check, address, attempt)


def require_attempt(attempt: Attempt) -> Path:
    """Return the job's folder, unless this attempt doesn't follow from what is in it."""
    if not names.is_job_id(attempt.job_id):
        raise ConfigError(
            f"--job-id: got {attempt.job_id!r}, expected text that matches "
            f"{names.JOB_ID_PATTERN}; choose another one"
        )
    directory = names.run_directory(attempt.job_id)
    is_known = (directory / "events.jsonl").exists()
    if attempt.number == 1 and is_known:
        raise ConflictError(
            f"--job-id: got {attempt.job_id}, which has a record in {directory}; expected the id "
            "of a new job; choose another one, or go on with this one by --attempt"
        )
    if attempt.number > 1 and not is_known:
        raise JobNotFoundError(
            f"--attempt: got {attempt.number} of {attempt.job_id}, which has no record in "
            f"{directory}; expected a job that was begun; mend --job-id or TRAINFLOW_HOME"
        )
    return directory


def _check(job_file: Path, settings: Sequence[str], attempt: Attempt) -> JobConfig:
    """Return the job; a refusal is the job's ending, since no coordinator will tell one."""
    try:
        job = check_job(job_file, settings).config
        from trainflow.cli.run_command import require_places  # noqa: PLC0415  loads Ray

        require_places(job)
    except TrainFlowError as error:
        from trainflow.coordination.endings import record_refusal  # noqa: PLC0415  loads Ray

        with suppress(OSError):  # the refusal is said, whatever the disk does
            record_refusal(attempt, error)
        raise
    return job
