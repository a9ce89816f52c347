"""One request at a time that resumes a job, over all replicas of the service.

They share a machine and a home, so it is a file's lock: of a replica that dies the kernel takes it,
and nobody waits for who is gone.

Process: a replica of the service, on the cluster's head.  Thread: any.  Blocks: on the local disk.
"""

import fcntl
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from trainflow.coordination import names
from trainflow.errors import ConflictError


@contextmanager
def alone_with(job_id: str) -> Generator[None]:
    """Be the only one who resumes a job meanwhile.

    Raises:
        ConflictError: another request does.
        OSError: the disk doesn't take the file.
    """
    path = names.home() / "submissions" / f".{job_id}.resuming"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_free = _is_there(path, file.fileno())
        except BlockingIOError:
            is_free = False
        if not is_free:
            raise ConflictError(
                f"job {job_id}: got one that another request resumes, expected one at rest; see "
                "what becomes of it"
            )
        try:
            yield
        finally:
            path.unlink(missing_ok=True)  # while it is held: who has opened it comes too late


def _is_there(path: Path, descriptor: int) -> bool:
    """Whether an open file is still the one at this path."""
    try:
        return path.stat().st_ino == Path(f"/proc/self/fd/{descriptor}").stat().st_ino
    except FileNotFoundError:
        return False
