"""Write down how a job ended, also where no coordinator was started for it.

Process: coordinator; driver or service of a job without one.  Blocks: for local appends.
"""

import fcntl
import logging
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from trainflow.clock import SYSTEM_CLOCK, Clock
from trainflow.coordination.names import Attempt, run_directory
from trainflow.coordination.run_record import RunRecord, has_record
from trainflow.coordination.run_state import Ending, RunState
from trainflow.errors import TrainFlowError

logger = logging.getLogger(__name__)


def tell_ending(ending: Ending, record: RunRecord) -> None:
    """Write down how the run ended, once, also if an earlier coordinator has."""
    if not record.has(str(ending.state)):
        record.add_event(str(ending.state), ending.reason, exit_code=ending.exit_code)


def describe_failure(error: Exception) -> Ending:
    """Return how a run ends that can't begin for an error."""
    if isinstance(error, TrainFlowError):
        return Ending(RunState.FAILED, str(error), error.exit_code)
    logger.error("the run could not begin", exc_info=error)
    return Ending(RunState.FAILED, f"{type(error).__name__}: {error}", 1)


def record_refusal(attempt: Attempt, error: TrainFlowError, clock: Clock = SYSTEM_CLOCK) -> None:
    """Write that an attempt failed before it began, and why.

    Only for an attempt that has no coordinator, and none to come: the record has one writer.
    """
    record_ending(attempt, describe_failure(error), clock)


def record_ending(attempt: Attempt, ending: Ending, clock: Clock = SYSTEM_CLOCK) -> None:
    """As `record_refusal`, of any ending. One that is written already stays.

    Of several who do so at once, each finds what the one before has written.

    Raises:
        OSError: the disk doesn't take it.
    """
    directory = run_directory(attempt.job_id)
    directory.mkdir(parents=True, exist_ok=True)
    with _alone_in(directory):
        record = RunRecord(directory, clock)
        record.begin_attempt(attempt.number)
        if record.read_ending() is None:
            record.write_ending(attempt.job_id, ending)
            tell_ending(ending, record)
        if record.read_ending() is None:
            raise OSError(f"{directory} does not take how the job ended")


@contextmanager
def _alone_in(directory: Path) -> Generator[None]:
    """Wait for others who are at a folder, and have others wait."""
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def record_unbegun(job_id: str, ending: Ending, clock: Clock = SYSTEM_CLOCK) -> None:
    """Write how a job ended before anybody wrote anything of it; else nothing changes.

    Only where nobody is to come who would: the record has one writer.
    """
    if not has_record(run_directory(job_id)):
        record_ending(Attempt(job_id), ending, clock)
