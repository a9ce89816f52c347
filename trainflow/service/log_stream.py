"""What a job's driver or one of its workers has printed, from a place on, and on as it is printed.

Who follows a log looks into its file; that the job has ended, the reader of events tells, so that
the database is asked once for all who follow.

Process: a replica of the service, on the cluster's head.  Thread: its event loop; files are read in
others.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from anyio import to_thread

from trainflow.clock import Clock
from trainflow.coordination import names
from trainflow.coordination.log_segments import (
    Piece,
    find_bounds,
    read_file_from,
    read_from_log,
)
from trainflow.coordination.worker_output import FOLDER
from trainflow.service.event_feed import EventFeed
from trainflow.service.problems import ProblemError, ProblemType
from trainflow.service.record_documents import WorkerLogDocument

DRIVER_LOG = "driver.log"
_PIECE_BYTES = 64 * 1024

Read = Callable[[int], Piece]
"""Reads a log from a byte on, up to a bound; an empty piece is its end. Blocks on the disk."""


@dataclass(frozen=True)
class Log:
    """What a job's driver or one of its workers has printed so far.

    Attributes:
        worker_id: of the worker; None of the driver.
        read: returns what is in it from a byte on.
        find_end: returns the number of the byte that comes next. Blocks on the disk.
    """

    worker_id: str | None
    read: Read
    find_end: Callable[[], int]

    def find_begin(self, offset: int, tail: int | None) -> int:
        """Return the number of the first byte to tell of: more than was asked for if that is gone.

        Args:
            offset: of the byte that was asked for, counted from the log's beginning.
            tail: the same, counted back from its end; None: ``offset`` counts.
        """
        wanted = offset if tail is None else max(0, self.find_end() - tail)
        return self.read(wanted).begin


def open_log(
    job_id: str, worker: str | None, ranks: Sequence[str], *, is_to_come: bool = False
) -> Log:
    """Return the log of a job's driver, or of one of its workers.

    Args:
        job_id: of the job.
        worker: its id, or its rank; None: the driver.
        ranks: by rank, the id of the worker that has it, or had it last.
        is_to_come: the driver's is empty as long as it is not there, since it will be.

    Raises:
        ProblemError: LOG_NOT_FOUND.
    """
    directory = names.run_directory(job_id)
    if worker is None:
        path = directory / DRIVER_LOG
        if is_to_come or path.is_file():
            return Log(None, partial(read_file, path), partial(_measure_file, path))
        raise ProblemError(
            ProblemType.LOG_NOT_FOUND,
            f"log: got no {DRIVER_LOG} in {directory}, expected that of a job that was submitted, "
            "once its driver has begun, or that was begun with --job-id; what `trainflow run` "
            "prints without it is not kept",
        )
    worker_id = find_worker(worker, ranks)
    folder = directory / FOLDER / worker_id
    if folder.is_dir():
        return Log(
            worker_id,
            lambda offset: read_from_log(folder, offset, _PIECE_BYTES),
            lambda: (find_bounds(folder) or (0, 0))[1],
        )
    raise ProblemError(
        ProblemType.LOG_NOT_FOUND,
        f"query.worker: got {worker}, and {folder} is not there, expected a worker "
        "that has printed, on a node that shares this folder; GET .../logs/workers lists them",
    )


def find_worker(worker: str, ranks: Sequence[str]) -> str:
    """Return the id of a worker that is named by it, or by its rank, which is a number. Pure.

    Raises:
        ProblemError: LOG_NOT_FOUND: no worker ever had that rank.
    """
    if not worker.isdecimal():
        return worker
    if int(worker) < len(ranks):
        return ranks[int(worker)]
    had = f"0 to {len(ranks) - 1}" if ranks else "of which there were none yet"
    raise ProblemError(
        ProblemType.LOG_NOT_FOUND,
        f"query.worker: got rank {worker}, expected one that a worker has or had, {had}; name the "
        "worker instead: GET .../logs/workers lists those that have printed",
    )


def list_worker_logs(job_id: str, ranks: Sequence[str]) -> list[WorkerLogDocument]:
    """Return the logs of a job's workers, by name; also of those that are gone.

    Args:
        job_id: of the job.
        ranks: by rank, the id of the worker that has it, or had it last.
    """
    # Of one that had several the least: it is of the newest epoch, which may have fewer members.
    rank_of = {worker_id: rank for rank, worker_id in reversed(list(enumerate(ranks)))}
    folder = names.run_directory(job_id) / FOLDER
    found: list[WorkerLogDocument] = []
    for each in sorted(folder.iterdir()) if folder.is_dir() else ():
        bounds = find_bounds(each)
        if bounds is not None:
            begin, end = bounds
            rank = rank_of.get(each.name)
            found.append(WorkerLogDocument(worker_id=each.name, rank=rank, begin=begin, end=end))
    return found


def read_file(path: Path, offset: int) -> Piece:
    """Return what is in a file from a byte on, up to a bound; empty at its end."""
    try:
        return Piece(offset, read_file_from(path, offset, _PIECE_BYTES))
    except FileNotFoundError:  # erased since
        return Piece(offset, b"")


def _measure_file(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:  # erased since
        return 0


async def read_log(read: Read, offset: int) -> AsyncGenerator[bytes]:
    """Yield a log from a byte on, to where it ends now, or where a part of it is gone."""
    while (piece := await to_thread.run_sync(read, offset)).data and piece.begin == offset:
        offset = piece.end
        yield piece.data


@dataclass(frozen=True)
class LogStreams:
    """What all streams of a replica share that follow a log.

    Attributes:
        feed: tells when a job has ended.
        look_every_s: seconds between two looks into a log.
        silent_at_most_s: seconds without a byte after which a stream ends, to be taken up again:
            plain text has no heartbeat, and who reads can't tell silence from a dead connection.
        clock: measures.
    """

    feed: EventFeed
    look_every_s: float
    silent_at_most_s: float
    clock: Clock

    async def follow(self, job_id: str, read: Read, offset: int) -> AsyncGenerator[bytes]:
        """Yield a log from a byte on, and what is added to it.

        It ends with the job, where bytes are missing, or after a long silence.

        Args:
            job_id: of the job.
            read: reads the log.
            offset: of the first byte.
        """
        heard_at_s = self.clock.monotonic_s()
        with self.feed.watch(job_id) as topic:
            while self.clock.monotonic_s() - heard_at_s < self.silent_at_most_s:
                was_over = topic.has_ended  # before the last look, not after it
                async for piece in read_log(read, offset):
                    offset += len(piece)
                    yield piece
                    heard_at_s = self.clock.monotonic_s()
                if was_over or (await to_thread.run_sync(read, offset)).begin != offset:
                    return
                await asyncio.sleep(self.look_every_s)
