"""What a job's driver has printed, from a place on, and on as it is printed.

Process: a replica of the service, on the cluster's head.  Thread: its event loop; files are read in
others.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from pathlib import Path

from anyio import to_thread

from trainflow.coordination import names
from trainflow.service.problems import ProblemError, ProblemType

DRIVER_LOG = "driver.log"
_PIECE_BYTES = 64 * 1024


def locate_log(job_id: str) -> Path:
    """Return where a job's log lies; raises ProblemError LOG_NOT_FOUND if there is none."""
    path = names.run_directory(job_id) / DRIVER_LOG
    if not path.is_file():
        raise ProblemError(
            ProblemType.LOG_NOT_FOUND,
            f"log: got no {DRIVER_LOG} in {path.parent}, expected that of a job that was submitted "
            "or begun with --job-id; what `trainflow run` prints without it is not kept",
        )
    return path


def read_piece(path: Path, offset: int) -> bytes:
    """Return what is in a log from a byte on, up to a bound; empty at its end."""
    try:
        with path.open("rb") as log:
            log.seek(offset)
            return log.read(_PIECE_BYTES)
    except FileNotFoundError:  # erased since
        return b""


async def read_log(path: Path, offset: int) -> AsyncGenerator[bytes]:
    """Yield a log from a byte on, to where it ends now."""
    while piece := await to_thread.run_sync(read_piece, path, offset):
        offset += len(piece)
        yield piece


async def follow_log(
    path: Path, offset: int, *, every_s: float, is_over: Callable[[], bool]
) -> AsyncGenerator[bytes]:
    """Yield a log from a byte on, and what is added to it, until the job is over.

    Args:
        path: of the log.
        offset: of the first byte.
        every_s: seconds between two looks.
        is_over: whether the job has ended; asked in another thread.
    """
    while True:
        was_over = await to_thread.run_sync(is_over)  # before the last look, not after it
        async for piece in read_log(path, offset):
            offset += len(piece)
            yield piece
        if was_over:
            return
        await asyncio.sleep(every_s)
