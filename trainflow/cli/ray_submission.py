"""A job that people gave to Ray's job submission, kept so that the service can go on with it.

Ray holds the package that it has made of the job's folder only while somebody uses it, and no
longer than the head lives. So the driver keeps it with the job's file, where the service keeps what
is submitted to it.

Process: driver, of Ray's job submission.  Thread: main.  Blocks: on Ray's store and the local disk.
Fails: never raises; it says what is not kept, and why.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, cast

from trainflow.cli.output import say
from trainflow.config import JobConfig
from trainflow.coordination import names
from trainflow.coordination.names import Attempt
from trainflow.coordination.ray_packages import fetch_package
from trainflow.errors import CoordinationError
from trainflow.service.submission_files import (
    RAYS_COPIES,
    KeptSubmission,
    keep_package,
    keep_submission,
)

_JOB_FILE = "job.json"
_CONFIG = "RAY_JOB_CONFIG_JSON_ENV_VAR"  # what Ray's job submission alone sets
_HELD_BY_RAY = "gcs://"
_OF_THE_FOLDER = frozenset({"working_dir", "excludes"})


def is_ray_submission(env: Mapping[str, str]) -> bool:
    """Whether Ray's job submission has started this process, and so holds what it prints."""
    return _CONFIG in env


@dataclass(frozen=True)
class RaySubmission:
    """What Ray's job submission was given.

    Attributes:
        submission_id: names it; empty if Ray doesn't say.
        environment: the runtime environment.
    """

    submission_id: str
    environment: dict[str, Any]

    @classmethod
    def read(cls, env: Mapping[str, str]) -> "RaySubmission":
        """Return what has started this process."""
        told = _section(json.loads(env[_CONFIG]))
        submission_id = _section(told.get("metadata")).get("job_submission_id", "")
        return cls(str(submission_id), _section(told.get("runtime_env")))


def keep_for_service(job: JobConfig, attempt: Attempt, env: Mapping[str, str], cwd: Path) -> None:
    """Keep what a driver was started with, if it was by people through Ray's job submission.

    Args:
        job: as it will run.
        attempt: of it.
        env: the driver's.
        cwd: the folder that it runs in.
    """
    if not is_ray_submission(env):
        return
    try:
        submission = RaySubmission.read(env)
        if submission.submission_id != names.submission_id(attempt.job_id, attempt.number):
            kept = _keep_code(attempt, submission.environment, cwd)
            keep_submission(attempt.job_id, job.as_sent(), kept)
    except (OSError, ValueError, CoordinationError) as error:
        say(
            f"this job is not kept so that the service could resume it ({error}); to go on with it "
            "once it has ended, submit it again with "
            f"--job-id {attempt.job_id} --attempt {attempt.number + 1}",
            err=True,
        )


def _keep_code(attempt: Attempt, environment: Mapping[str, Any], cwd: Path) -> KeptSubmission:
    """Keep where the job's modules are from.

    Raises:
        OSError: the disk doesn't take it.
        ValueError: it can't be kept.
        CoordinationError: Ray doesn't have it.
    """
    # What was left out of the package is no longer there to be left out.
    rest = {key: each for key, each in environment.items() if key not in _OF_THE_FOLDER}
    if _HELD_BY_RAY in json.dumps(rest):
        raise ValueError("its runtime environment has py_modules, of which Ray keeps the packages")
    uri = environment.get("working_dir")
    if uri is None:
        return KeptSubmission(_JOB_FILE, str(cwd), environment=rest)
    place = find_place(cwd)
    if place is None:
        raise ValueError(
            f"its driver runs in {cwd}, not in the working directory that it came with"
        )
    package = str(uri)
    if package.startswith(_HELD_BY_RAY):
        suffix = "".join(PurePosixPath(package).suffixes)
        package = keep_package(attempt, suffix, fetch_package(package))
    return KeptSubmission(_JOB_FILE, None, package=package, place=place, environment=rest)


def find_place(cwd: Path) -> str | None:
    """Return where in Ray's copy of a working directory a folder is; None: in none. Pure."""
    for folder in (cwd, *cwd.parents):
        if folder.parent.name == RAYS_COPIES:
            return str(cwd.relative_to(folder))
    return None


def _section(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}
