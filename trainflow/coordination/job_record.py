"""What a run was made of: its settings, its code and its libraries, kept beside what became of it.

``job.json`` is written once, when a run begins. Whoever compares a run with another, or replays a
step of it, reads there what it was.

Process: coordinator writes; drivers read.  Blocks: on the local disk.
"""

import json
import platform
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from trainflow.checkpointing.chunks import name_of
from trainflow.checkpointing.whole_files import replace_file
from trainflow.config.job import JobConfig
from trainflow.config.masking import kept_settings

_FILE = "job.json"
_PACKAGES = ("trainflow", "torch")


@dataclass(frozen=True)
class JobRecord:
    """One run's.

    Attributes:
        job_id: names the run.
        config: the job's settings as JSON, without the values of environment variables.
        import_paths: where its modules were looked for.
        code: hash of the file that the training function is in; None if none was found.
        versions: of Python, and of what computes, by name.
    """

    job_id: str
    config: dict[str, Any]
    import_paths: tuple[str, ...]
    code: str | None
    versions: dict[str, str]

    @classmethod
    def of(cls, job_id: str, job: JobConfig, import_paths: Sequence[str]) -> "JobRecord":
        """Describe a run of this machine's code and libraries."""
        config = kept_settings(job)
        code = hash_code(job.entrypoint, import_paths)
        return cls(job_id, config, tuple(import_paths), code, find_versions())


def write_job_record(directory: Path, record: JobRecord) -> None:
    """Write it, unless it is there: who comes back as a new coordinator may have other libraries.

    Raises:
        OSError: the disk doesn't take it.
    """
    path = directory / _FILE
    if not path.exists():
        replace_file(path, (json.dumps(asdict(record), indent=1) + "\n").encode())


def read_job_record(directory: Path) -> JobRecord | None:
    """Return the record of the run in a folder; None if there is none, or it is damaged."""
    try:
        found = json.loads((directory / _FILE).read_bytes())
        return JobRecord(**found | {"import_paths": tuple(found["import_paths"])})
    except (OSError, ValueError, TypeError, KeyError):
        return None


def hash_code(entrypoint: str, import_paths: Sequence[str]) -> str | None:
    """Return the hash of the file that a training function is in, without importing it.

    Args:
        entrypoint: ``module:function``.
        import_paths: where its module is looked for.

    Returns:
        None if it isn't there: it is in an installed package, or comes with a runtime environment.
    """
    module = Path(*entrypoint.partition(":")[0].split("."))
    for folder in import_paths:
        for file in (module.with_suffix(".py"), module / "__init__.py"):
            path = Path(folder, file)
            if path.is_file():
                return name_of(path.read_bytes())
    return None


def find_versions() -> dict[str, str]:
    """Return the versions of what decides which bits are computed, without loading any of it."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        with suppress(metadata.PackageNotFoundError):  # its source is on the path, not installed
            found[name] = metadata.version(name)
    return found
