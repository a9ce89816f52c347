"""Write down how a job ended, also where no coordinator was started for it.

Process: coordinator; driver or service of a job without one.  Blocks: for local appends.
"""

import logging

from trainflow.clock import SYSTEM_CLOCK, Clock
from trainflow.coordination.names import Attempt, run_directory
from trainflow.coordination.run_record import RunRecord, has_record
from trainflow.coordination.run_state import Ending, RunState
from trainflow.errors import TrainFlowError

logger = logging.getLogger(__name__)


def tell_ending(ending: Ending, record: RunRecord) -> None:
    """Write down how the run ended, once, also if an earlier coordinator has."""
    events = record.events_since(0)
    if not events or events[-1]["kind"] != str(ending.state):
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
    """As `record_refusal`, of any ending. One that is written already stays."""
    record = RunRecord(run_directory(attempt.job_id), clock)
    record.begin_attempt(attempt.number)
    if record.read_ending() is None:
        record.write_ending(attempt.job_id, ending)
        tell_ending(ending, record)


def record_unbegun(job_id: str, reason: str, clock: Clock = SYSTEM_CLOCK) -> None:
    """Write why a job came to nothing before anybody wrote anything of it; else nothing changes.

    Only where nobody is to come who would: the record has one writer.
    """
    if not has_record(run_directory(job_id)):
        record_ending(Attempt(job_id), Ending(RunState.FAILED, reason, 1), clock)
