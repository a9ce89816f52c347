"""Tell in a run's record that the service goes on with a job by itself, and how often it has.

Only for a job whose coordinator is gone for good: the record has one writer.

Process: service.  Blocks: for a local read and append.
"""

from trainflow.clock import Clock
from trainflow.coordination.line_file import read_lines
from trainflow.coordination.names import run_directory
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.run_state import RESUMING


def count_resumptions(job_id: str, until: int) -> int:
    """Return how often the service has gone on with a job by itself.

    Args:
        job_id: of the job.
        until: the newest attempt that counts. One that is told of and was never begun, as what it
            takes failed after that, is told of already when it is tried again.
    """
    lines = read_lines(run_directory(job_id) / "events.jsonl")
    told = [line["data"] for line in lines if line.get("kind") == RESUMING]
    return sum(data["attempt"] <= until for data in told)


def record_resumption(job_id: str, attempt: int, at_most: int, clock: Clock) -> None:
    """Write that it does so once more, before it does: what isn't counted could go on for ever.

    What is written already, as this was tried before, stays as it is.

    Args:
        job_id: of the job.
        attempt: that is about to begin.
        at_most: how often it may.
        clock: tells the time.

    Raises:
        OSError: it can't be written.
    """
    times = count_resumptions(job_id, attempt - 1) + 1
    if count_resumptions(job_id, attempt) == times:
        return
    text = (
        f"its cluster was lost: the service goes on with it by itself, as attempt {attempt}, for "
        f"the {times}. of at most {at_most} times (failures.max_lost_clusters)"
    )
    record = RunRecord(run_directory(job_id), clock)
    record.add_event(RESUMING, text, attempt=attempt, times=times, at_most=at_most)
    if count_resumptions(job_id, attempt) < times:
        raise OSError(f"{record.directory}: events.jsonl does not take another event")
