"""Where a job stands, by what its record says. Pure.

A record says it in several places, which are written one after the other and may be missing:
``result.json`` and the last event, that it has ended; ``status.json`` and the events, how it goes.
Which attempt something is of is told by the order of events; of what has none, a status or a sight,
by its time: what is older than an attempt's beginning says nothing of that attempt.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import cast

from trainflow.coordination.run_state import LOST_REASON, RunState
from trainflow.service.history.record_lines import Told, parse_before, parse_ending
from trainflow.service.history.records import (
    Attempt,
    AttemptState,
    CheckpointState,
    EventRecord,
)

_LEADS_TO = {
    "attempt": RunState.PENDING,
    "submitted": RunState.PENDING,
    "epoch": RunState.RUNNING,
    "taken_over": RunState.RUNNING,
    "recovered": RunState.RUNNING,
    "waiting": RunState.WAITING,
    "stopping": RunState.STOPPING,
}
_BEGINS = frozenset({"attempt", "submitted"})
_MOST_ATTEMPTS = 2**31
_NEVER_BEGUN = "its driver came to nothing before it began"


@dataclass(frozen=True)
class Sight:
    """A state, and when it was seen.

    Attributes:
        state: of the job.
        at_s: CLOCK_REALTIME.
    """

    state: RunState
    at_s: float


@dataclass(frozen=True)
class Evidence:
    """What is known of a job.

    Attributes:
        attempt: the newest one; None if nothing was ever heard of any.
        result: how the run ended, by ``result.json``.
        published: the same, by its status.
        sights: how it went, by its status and by its events.
    """

    attempt: Attempt | None
    result: Told | None = None
    published: Told | None = None
    sights: tuple[Sight, ...] = ()


@dataclass(frozen=True)
class Standing:
    """Where a job stands.

    Attributes:
        state: of the job.
        told: how it ended; None if it has not.
    """

    state: RunState
    told: Told | None


def decide_standing(evidence: Evidence) -> Standing:
    """Return where a job stands: ended if anything says so, else as the newest sight has it.

    Of an attempt that resumes a job the record says nothing before it names its number.
    """
    attempt, since_s = evidence.attempt, _begins_at_s(evidence.attempt)
    told = _ending_of(attempt)
    is_in_record = attempt is None or attempt.started_at_s is not None or attempt.number == 1
    if not is_in_record:
        return Standing(RunState.PENDING if told is None else told.state, told)
    told = evidence.result or told
    if told is None and evidence.published and evidence.published.ended_at_s >= since_s:
        told = evidence.published
    if told is not None:
        return Standing(told.state, told)
    seen = [each for each in evidence.sights if each.at_s >= since_s]
    newest = max(seen, key=lambda sight: sight.at_s, default=None)
    return Standing(RunState.PENDING if newest is None else newest.state, None)


def state_after(state: RunState | None, event: EventRecord) -> RunState | None:
    """Return the state that events tell of, after one more; None as long as none does."""
    next_state = _LEADS_TO.get(event.kind, state)
    if state is RunState.STOPPING and event.kind not in _BEGINS:
        return state  # whatever is lost or mended on the way
    if state is RunState.PENDING and next_state is RunState.WAITING:
        return state  # for room, to begin at all
    return next_state


def attempts_after(
    attempts: list[Attempt], event: EventRecord, heard_at_s: float | None = None
) -> list[Attempt]:
    """Return a job's attempts, the first one first, after one more event.

    Events are of the newest attempt that one of them has begun, whatever the clocks say. The first
    event begins the first one, unless the service has submitted it; another is begun by an event
    that names its number. In a record without that, each ``submitted`` that follows an ending
    begins one. One that was told as ended by the service, which had waited for its beginning for
    too short a time, has not ended once it begins. One of which no end was told by the time that a
    later one begins has lost its cluster, unless the event that begins that one knows better.

    Args:
        attempts: before the event.
        event: the next one.
        heard_at_s: when the job was last heard of before it; None if that isn't known.
    """
    if not attempts:
        attempts = [_begun(_number_of(event) or 1, event)]
    begun = [each for each in attempts if each.started_at_s is not None]
    current = begun[-1] if begun else attempts[0]
    told = parse_ending(event)
    if told is not None:
        return _with(attempts, _ended(current, told))
    if event.kind not in _BEGINS:
        return attempts
    number = _number_of(event)
    if number is None:  # if it has not ended, its coordinator died early, and begins again
        has_gone_by = current.started_at_s is not None and current.ended_at_s is not None
        number = current.number + 1 if has_gone_by else current.number
    known = next((each for each in attempts if each.number == number), None)
    if number < current.number or (known is not None and known.started_at_s is not None):
        return attempts
    beginning = _begun(number, event)
    if known is not None:
        beginning = replace(
            beginning, submission_id=known.submission_id, submitted_at_s=known.submitted_at_s
        )
    closed = [
        _closed_by(event, each, heard_at_s if each is current else None)
        if each.number < number
        else each
        for each in attempts
    ]
    return _with(closed, beginning)


def _closed_by(event: EventRecord, attempt: Attempt, heard_at_s: float | None) -> Attempt:
    """Return an attempt that is over once an event begins a later one, which may say how."""
    before = parse_before(event)
    if before is None or before.attempt != attempt.number or not _is_open(attempt):
        return closed(attempt, heard_at_s)
    if before.told is not None:
        return _ended(attempt, before.told)
    return _lost(attempt, before.heard_at_s)


def closed(attempt: Attempt, heard_at_s: float | None) -> Attempt:
    """Return an attempt that is over, though nobody has told so; one that has ended stays.

    Args:
        attempt: that is over.
        heard_at_s: when it was last heard of; None if that isn't known.
    """
    if attempt.ended_at_s is not None:
        return attempt
    if attempt.started_at_s is not None:
        return _lost(attempt, heard_at_s)
    failed = AttemptState.FAILED
    ended_at_s = attempt.submitted_at_s
    return replace(attempt, ended_at_s=ended_at_s, state=failed, exit_code=1, reason=_NEVER_BEGUN)


def _lost(attempt: Attempt, heard_at_s: float | None) -> Attempt:
    times = [each for each in (attempt.started_at_s, heard_at_s) if each is not None]
    ended_at_s = max(times, default=None)
    return replace(attempt, ended_at_s=ended_at_s, state=AttemptState.LOST, reason=LOST_REASON)


def _with(attempts: list[Attempt], changed: Attempt) -> list[Attempt]:
    """Return attempts, in order, with one in place of that of its number, if there is any."""
    others = [each for each in attempts if each.number != changed.number]
    return sorted([*others, changed], key=lambda attempt: attempt.number)


def _number_of(event: EventRecord) -> int | None:
    """Return the number of the attempt that an event says it begins."""
    number = event.data.get("attempt") if event.kind == "attempt" else None
    if isinstance(number, bool) or not isinstance(number, int):
        return None
    return number if 1 <= number < _MOST_ATTEMPTS else None


def _begun(number: int, event: EventRecord) -> Attempt:
    return Attempt(number, None, None, event.at_s, None, None, None, None)


def _ended(attempt: Attempt, told: Told) -> Attempt:
    """Return an attempt with how it ended; one that has ended stays as it is."""
    if not _is_open(attempt):
        return attempt
    started_at_s = told.ended_at_s if attempt.started_at_s is None else attempt.started_at_s
    return replace(
        attempt,
        started_at_s=started_at_s,
        ended_at_s=told.ended_at_s,
        state=AttemptState(told.state),
        exit_code=told.exit_code,
        reason=told.reason,
    )


def _is_open(attempt: Attempt) -> bool:
    """Whether nobody has told yet how an attempt ended: that it was lost is only concluded."""
    return attempt.ended_at_s is None or attempt.state is AttemptState.LOST


def _ending_of(attempt: Attempt | None) -> Told | None:
    if attempt is None or attempt.ended_at_s is None or attempt.state is None:
        return None
    if attempt.state is AttemptState.LOST:  # of the attempt alone: the job goes on with the next
        return None
    return Told(RunState(attempt.state), attempt.ended_at_s, attempt.exit_code, attempt.reason)


def _begins_at_s(attempt: Attempt | None) -> float:
    if attempt is None:
        return float("-inf")
    if attempt.started_at_s is not None:
        return attempt.started_at_s
    return attempt.submitted_at_s if attempt.submitted_at_s is not None else float("-inf")


class Fate(StrEnum):
    """What an event says of checkpoints."""

    MADE = "made"
    REMOVED = "removed"
    UNUSABLE = "unusable"
    WHOLE = "whole"
    VERIFIED = "verified"


_FATES = {
    "checkpoint": Fate.MADE,
    "checkpoints_removed": Fate.REMOVED,
    "checkpoint_unusable": Fate.UNUSABLE,
    "checkpoint_quarantined": Fate.UNUSABLE,
    "checkpoint_whole": Fate.WHOLE,
    "drill": Fate.VERIFIED,
}

STATES = {
    Fate.REMOVED: CheckpointState.REMOVED,
    Fate.UNUSABLE: CheckpointState.UNUSABLE,
    Fate.WHOLE: CheckpointState.KEPT,
}


def fate_of(event: EventRecord) -> tuple[Fate, tuple[int, ...]] | None:
    """Return what an event says of which checkpoints, by their steps; None if it says nothing."""
    fate = _FATES.get(event.kind)
    if fate is None:
        return None
    steps: object = event.data.get("steps", [event.data.get("step")])
    listed = cast("list[object]", steps) if isinstance(steps, list) else []
    return fate, tuple(_whole_numbers(listed))


def _whole_numbers(values: Iterable[object]) -> Iterable[int]:
    for value in values:
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**62:
            yield value
