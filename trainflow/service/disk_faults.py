"""Tell a disk that takes nothing as a problem that passes: who asks again may be served.

Process: a replica of the service, on the cluster's head.
"""

from collections.abc import Generator
from contextlib import contextmanager

from trainflow.coordination import names
from trainflow.service.problems import ProblemError, ProblemType

_COME_BACK_AFTER_S = 5


@contextmanager
def telling_disk_faults() -> Generator[None]:
    """Raise what the disk refuses as a ProblemError."""
    try:
        yield
    except OSError as error:
        raise ProblemError(
            ProblemType.DISK_UNAVAILABLE,
            f"disk: got {error}, expected to write and remove what is kept of the job in "
            f"{names.home()}; make room there, or let the user who runs the service write there, "
            "and ask again",
            headers={"Retry-After": str(_COME_BACK_AFTER_S)},
        ) from error
