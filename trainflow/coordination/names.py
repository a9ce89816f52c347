"""What a run's actors, groups and files are called. Pure, but for the environment."""

import os
import re
import secrets
from dataclasses import dataclass
from pathlib import Path

NAMESPACE = "trainflow"
JOB_ID_PATTERN = r"^[a-z0-9][a-z0-9-]{0,62}$"
_BASE32 = "abcdefghijklmnopqrstuvwxyz234567"
_MAX_ID = 63
_SUBMISSION = re.compile(r"([a-z0-9][a-z0-9-]{0,62})-a([1-9][0-9]{0,8})")


@dataclass(frozen=True)
class Attempt:
    """Which job is run, where that is settled before the run begins.

    Attributes:
        job_id: the job's.
        number: 1, and one more each time the job is resumed.
    """

    job_id: str
    number: int = 1


def new_job_id(name: str) -> str:
    """Return the job's name, clipped, and six random base32 characters."""
    suffix = "".join(secrets.choice(_BASE32) for _ in range(6))
    return f"{name[: _MAX_ID - 7].rstrip('-')}-{suffix}"


def is_job_id(text: str) -> bool:
    """Whether ``text`` may name a job; nothing else is ever made part of a path or a name."""
    return re.fullmatch(JOB_ID_PATTERN.strip("^$"), text) is not None


def submission_id(job_id: str, attempt: int) -> str:
    """Return what Ray's job submission calls an attempt of a job."""
    return f"{job_id}-a{attempt}"


def parse_submission_id(text: str) -> tuple[str, int] | None:
    """Return the job id and the attempt that a submission id names; None if it is another's."""
    match = _SUBMISSION.fullmatch(text)
    return None if match is None else (match.group(1), int(match.group(2)))


def coordinator_name(job_id: str) -> str:
    """Name of the job's coordinator actor."""
    return f"{job_id}/coordinator"


def job_of_coordinator(actor_name: str) -> str | None:
    """Return the job id if ``actor_name`` is a coordinator's."""
    match = re.fullmatch(r"(.+)/coordinator", actor_name)
    return match.group(1) if match else None


def worker_name(job_id: str, worker_id: str) -> str:
    """Name of a worker actor."""
    return f"{job_id}/worker/{worker_id}"


def keeper_name(job_id: str, node_id: str) -> str:
    """Name of a node's Keeper."""
    return f"{job_id}/keeper/{node_id}"


def placement_group_name(job_id: str) -> str:
    """Name of the job's placement group."""
    return f"{job_id}/workers"


def home() -> Path:
    """Return the folder that outlives runs: TRAINFLOW_HOME, else ~/.trainflow."""
    return Path(os.environ.get("TRAINFLOW_HOME") or Path.home() / ".trainflow")


def run_directory(job_id: str) -> Path:
    """Return where a job's record is kept."""
    return home() / "runs" / job_id


def memory_directory() -> Path:
    """Return this user's folder in the machine's memory; others could not write in it."""
    return Path(f"/dev/shm/trainflow-{os.geteuid()}")


def stamp_directory(job_id: str, node_id: str) -> Path:
    """Return where a node's workers of a job stamp progress: memory, private to the machine."""
    return memory_directory() / job_id / node_id
