"""Keep what was submitted, so that a driver can read it, now and when the job is resumed.

``TRAINFLOW_HOME/submissions/JOB_ID``: the job file as it was given, with the values of its
environment variables, so only the owner may read it; and where the job works.

Process: a replica of the service, on the cluster's head.  Blocks: on the local disk.
"""

import json
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

from trainflow.checkpointing.whole_files import replace_file
from trainflow.coordination import names
from trainflow.coordination.job_record import read_job_record
from trainflow.errors import ConflictError

_SETTINGS = "submission.json"


@dataclass(frozen=True)
class KeptSubmission:
    """What a driver is started with.

    Attributes:
        job_file: name of the job's file in the submission's folder.
        working_directory: folder with the job's modules; None: it has none.
    """

    job_file: str
    working_directory: str | None


def locate_submission(job_id: str) -> Path:
    """Return the folder of a job's submission."""
    return names.home() / "submissions" / job_id


def keep_submission(
    job_id: str, text: str, suffix: str, working_directory: str | None
) -> KeptSubmission:
    """Write a submission; one that is there is replaced, by the same of a request that is repeated.

    Raises:
        OSError: the disk doesn't take it.
    """
    folder = locate_submission(job_id)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.chmod(0o700)
    kept = KeptSubmission(f"job{suffix}", working_directory)
    replace_file(folder / kept.job_file, text.encode())
    replace_file(folder / _SETTINGS, json.dumps(asdict(kept)).encode())
    return kept


def read_submission(job_id: str) -> KeptSubmission | None:
    """Return what was submitted; None if the job wasn't, or its file is damaged."""
    try:
        return KeptSubmission(**json.loads((locate_submission(job_id) / _SETTINGS).read_bytes()))
    except (OSError, ValueError, TypeError):
        return None


def read_or_adopt_submission(job_id: str) -> KeptSubmission:
    """Return what was submitted; of a job that `trainflow run` has begun, what its record says.

    Raises:
        ConflictError: nothing is left of what was run, or not all of it was kept.
        OSError: the disk doesn't take it.
    """
    kept = read_submission(job_id)
    if kept is not None:
        return kept
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
    return keep_submission(job_id, json.dumps(record.config), ".json", directory)


def remove_submission(job_id: str) -> None:
    """Remove what was submitted; what can't be removed stays."""
    shutil.rmtree(locate_submission(job_id), ignore_errors=True)
