"""Whether a job may be at work where the service doesn't see it: on another cluster. Pure.

The service asks its own cluster alone, and runs' records lie where several write: a `trainflow run`
with a head of its own, or a cluster that the service was on before. A coordinator publishes each
second, and one that is restarted is back within some: what was not heard of for a minute, and isn't
on the service's cluster either, is gone. It publishes as long as it closes what it ran, too, when
its record says already how the job has ended.

The history may be behind for as long as its database takes nothing: what was published counts too.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from trainflow.service.history.records import Attempt, Job

SILENT_S = 60.0
"""After so many seconds in which nothing was heard of it, a job that isn't here is gone."""


def find_silence_s(job: Job, status: Mapping[str, Any] | None, now_s: float) -> float:
    """Return for how long nothing was heard of a job.

    What seems to come from the future was told by a clock that has been set back since, so long ago
    as nobody knows: it counts as old as it is ahead.

    Args:
        job: the job, as the history has it.
        status: that was published last; None if none was.
        now_s: CLOCK_REALTIME.
    """
    heard_s = (job.updated_at_s, job.published_at_s, _moment(status))
    return min(abs(now_s - each) for each in heard_s if each is not None)


def is_heard_of(attempts: Sequence[Attempt], silent_s: float) -> bool:
    """Whether a job was begun, and heard of so lately that somebody must be at work.

    Args:
        attempts: of an unfinished job, the first one first.
        silent_s: for how long nothing was heard of it.
    """
    is_begun = any(each.started_at_s is not None for each in attempts[-1:])
    return is_begun and silent_s < SILENT_S


def is_closing(status: Mapping[str, Any] | None, now_s: float) -> bool:
    """Whether a job that has ended was told of lately by a coordinator that is not done with it.

    Args:
        status: that was published last; None if none was.
        now_s: CLOCK_REALTIME.
    """
    if status is None or status.get("ending") is not None:
        return False
    as_of_s = _moment(status)
    return as_of_s is not None and abs(now_s - as_of_s) < SILENT_S


def _moment(status: Mapping[str, Any] | None) -> float | None:
    as_of_s = None if status is None else status.get("as_of_s")
    return as_of_s if isinstance(as_of_s, int | float) else None
