"""Keep what was submitted, so that a driver can read it, now and when the job is resumed.

``TRAINFLOW_HOME/submissions/JOB_ID``: the job file as it was given, with the values of its
environment variables, so only the owner may read it; and where the job works. Of a job that people
gave to Ray's job submission its driver keeps the same, and what Ray had made of its folder.

Process: a replica of the service, on the cluster's head; or such a driver.  Blocks: on the local
disk.
"""

import json
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from trainflow.checkpointing.whole_files import replace_file
from trainflow.coordination import names
from trainflow.coordination.job_record import read_job_record
from trainflow.coordination.names import Attempt
from trainflow.errors import ConflictError

RAYS_COPIES = "working_dir_files"
"""Folder of a node in which Ray unpacks working directories, each in one of its own."""

_SETTINGS = "submission.json"
_PACKAGES = "package-"


@dataclass(frozen=True)
class KeptSubmission:
    """What a driver is started with.

    Attributes:
        job_file: name of the job's file in the submission's folder.
        working_directory: folder with the job's modules; None: it has none, or a package.
        package: what Ray had made of such a folder: the name of a file in the submission's folder,
            or a URI that Ray fetches it from; None: nothing.
        place: where in the package its driver runs.
        environment: what else Ray was told to run it in, with the values of variables.
    """

    job_file: str
    working_directory: str | None
    package: str | None = None
    place: str = "."
    environment: dict[str, Any] = field(default_factory=dict[str, Any])


def locate_submission(job_id: str) -> Path:
    """Return the folder of a job's submission."""
    return names.home() / "submissions" / job_id


def locate_code(job_id: str, kept: KeptSubmission) -> str | None:
    """Return the folder, file or URI that Ray is to take a job's modules from; None: there is none.

    A package that was kept is in the submission's folder, whatever its name says.
    """
    if kept.package is None or "://" in kept.package:
        return kept.package or kept.working_directory
    return str((locate_submission(job_id) / Path(kept.package).name).absolute())


def keep_package(attempt: Attempt, suffix: str, content: bytes) -> str:
    """Keep what an attempt's driver has its modules from; returns the name to tell it by.

    Raises:
        OSError: the disk doesn't take it.
    """
    name = f"{_PACKAGES}{attempt.number}{suffix}"
    replace_file(_make_folder(attempt.job_id) / name, content)
    return name


def keep_submission(job_id: str, text: str, kept: KeptSubmission) -> KeptSubmission:
    """Write a submission; one that is there is replaced: by the same, or by a later attempt's.

    Args:
        job_id: of the job.
        text: its file.
        kept: what else its driver is started with.

    Raises:
        OSError: the disk doesn't take it.
    """
    folder = _make_folder(job_id)
    replace_file(folder / kept.job_file, text.encode())
    replace_file(folder / _SETTINGS, json.dumps(asdict(kept)).encode())
    for package in folder.glob(f"{_PACKAGES}*"):
        if package.name != kept.package:
            with suppress(OSError):
                package.unlink()
    return kept


def _make_folder(job_id: str) -> Path:
    folder = locate_submission(job_id)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.chmod(0o700)
    return folder


def read_submission(job_id: str) -> KeptSubmission | None:
    """Return what was submitted; None if the job wasn't, or its file is damaged."""
    try:
        return KeptSubmission(**json.loads((locate_submission(job_id) / _SETTINGS).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


def read_or_adopt_submission(attempt: Attempt) -> KeptSubmission:
    """Return what the next attempt's driver is started with.

    It is what was submitted; of a job that `trainflow run` has begun, what its record says.

    Raises:
        ConflictError: nothing is left of what was run, or not all of it was kept.
        OSError: the disk doesn't take it.
    """
    kept = read_submission(attempt.job_id)
    if kept is None:
        return _adopt(attempt)
    code = locate_code(attempt.job_id, kept)
    if kept.package is not None and code != kept.package and not Path(str(code)).is_file():
        raise ConflictError(
            f"job {attempt.job_id}: got no {code}, expected what Ray had made of its folder, as "
            f"was kept there; {_go_on_by_hand(attempt)}"
        )
    return kept


def _adopt(attempt: Attempt) -> KeptSubmission:
    job_id = attempt.job_id
    record = read_job_record(names.run_directory(job_id))
    if record is None:
        raise ConflictError(
            f"job {job_id}: got no whole job.json in {names.run_directory(job_id)}, expected one; "
            "submit the job anew, with the same checkpoint.url"
        )
    if hidden := record.config.get("runtime_env", {}).get("env_vars"):
        raise ConflictError(
            f"job {job_id}: got a record without the values of {', '.join(sorted(hidden))}, which "
            "are not kept; expected none in runtime_env.env_vars; submit the job anew, with the "
            "same checkpoint.url"
        )
    directory = record.import_paths[0] if record.import_paths else None
    if directory is not None and RAYS_COPIES in Path(directory).parts:
        raise ConflictError(
            f"job {job_id}: got one that began in {directory}, a copy that Ray keeps only while it "
            "is used, and no other; expected a package that its driver has kept in "
            f"{locate_submission(job_id)}; the driver's log says why it has not; "
            f"{_go_on_by_hand(attempt)}"
        )
    return keep_submission(job_id, json.dumps(record.config), KeptSubmission("job.json", directory))


def _go_on_by_hand(attempt: Attempt) -> str:
    return (
        "go on with it from the folder that it was submitted from: `ray job submit --working-dir . "
        f"-- trainflow run JOB.yaml --job-id {attempt.job_id} --attempt {attempt.number}`"
    )
