"""What a run's actors, groups and files are called."""

import os
import re
import secrets
from pathlib import Path

NAMESPACE = "trainflow"
_BASE32 = "abcdefghijklmnopqrstuvwxyz234567"
_MAX_ID = 63


def new_job_id(name: str) -> str:
    """Return the job's name, clipped, and six random base32 characters."""
    suffix = "".join(secrets.choice(_BASE32) for _ in range(6))
    return f"{name[: _MAX_ID - 7].rstrip('-')}-{suffix}"


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


def stamp_directory(job_id: str, node_id: str) -> Path:
    """Return where a node's workers of a job stamp progress: memory, private to the machine."""
    return Path("/dev/shm/trainflow") / job_id / node_id
