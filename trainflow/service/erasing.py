"""Erase a job: first from the history, then what it has left on the disk.

The history forgets it in one transaction, and for good. Whoever dies after that leaves files of a
job that is shown to nobody any more; a repeat removes them.

Process: a replica of the service, on the cluster's head.  Thread: any.  Blocks: on the history and
the disk.
"""

import shutil
from contextlib import suppress
from pathlib import Path

from trainflow.coordination import names
from trainflow.errors import JobNotFoundError
from trainflow.service.disk_faults import telling_disk_faults
from trainflow.service.history.history import History
from trainflow.service.history.records import ErasedJob
from trainflow.service.submission_files import locate_submission

_LAST_WORDS_WITHIN_S = 60.0
"""How long after its end a job's processes may still write into its folders."""


def erase_job(history: History, job_id: str) -> None:
    """Erase all that is remembered of a finished job, or what is left of one that was erased.

    Raises:
        JobNotFoundError: there is none, and nothing is left.
        ConflictError: it has not finished.
        HistoryError: the database doesn't answer.
        ProblemError: files can't be removed.
    """
    try:
        directory = history.jobs.erase(job_id)
    except JobNotFoundError:
        erased = history.jobs.find_erased(job_id)
        if erased is None or not _is_left(job_id, erased):
            raise
        directory = erased.directory
    with telling_disk_faults():
        for folder in _list_folders(job_id, directory):
            _remove(folder)


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)  # another request may be at it too
    if folder.exists():
        with suppress(FileNotFoundError):
            shutil.rmtree(folder)


def _list_folders(job_id: str, directory: str) -> list[Path]:
    """Return where a job's files are; a record elsewhere than where ours are is not ours."""
    own = names.run_directory(job_id)
    is_own = Path(directory).absolute() == own.absolute()
    return [locate_submission(job_id), *([own] if is_own else [])]


def _is_left(job_id: str, erased: ErasedJob) -> bool:
    """Whether an erased job has left files, and nobody has run another under its id since."""
    folders = [each for each in _list_folders(job_id, erased.directory) if each.is_dir()]
    over_s = erased.erased_at_s + _LAST_WORDS_WITHIN_S
    return bool(folders) and all(_find_last_write_s(folder) <= over_s for folder in folders)


def _find_last_write_s(folder: Path) -> float:
    """Return when one of a folder's files was written last; 0 without any."""
    last_s = 0.0
    with suppress(FileNotFoundError):  # another request removes them
        for path in folder.rglob("*"):
            last_s = max(last_s, path.stat().st_mtime if path.is_file() else 0.0)
    return last_s
