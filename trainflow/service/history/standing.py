"""Where a job stands, by what its record says. Pure.

A record says it in several places, which are written one after the other and may be missing:
``result.json`` and the last event, that it has ended; ``status.json`` and the events, how it goes.
What is older than the newest attempt's beginning says nothing of that attempt.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import cast

from trainflow.coordination.run_state import RunState
from trainflow.service.history.record_lines import Told, parse_ending
from trainflow.service.history.records import Attempt, CheckpointState, EventRecord

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
        results: how the run ended, in the order in which they are believed.
        sights: how it went, by its status and by its events.
    """

    attempt: Attempt | None
    results: tuple[Told, ...]
    sights: tuple[Sight, ...]


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
    """Return where a job stands: ended if anything says so, else as the newest sight has it."""
    since_s = _begins_at_s(evidence.attempt)
    for told in evidence.results:
        if told.ended_at_s >= since_s:
            return Standing(told.state, told)
    seen = [each for each in evidence.sights if each.at_s >= since_s]
    newest = max(seen, key=lambda sight: sight.at_s, default=None)
    return Standing(RunState.PENDING if newest is None else newest.state, None)


def state_after(state: RunState | None, event: EventRecord) -> RunState | None:
    """Return the state that events tell of, after one more; None as long as none does."""
    next_state = _LEADS_TO.get(event.kind, state)
    if state is RunState.STOPPING and event.kind not in _BEGINS:
        return state  # whatever is lost or mended on the way
    return next_state


def attempts_after(attempts: list[Attempt], event: EventRecord) -> list[Attempt]:
    """Return a job's attempts, the first one first, after one more event.

    The first event begins the first one, unless the service has submitted it; another is begun by
    an event that names its number. In a record without that, each ``submitted`` that follows an
    ending begins one. One that was told as ended by the service, which had waited for its beginning
    for too short a time, has not ended once it begins.
    """
    told = parse_ending(event)
    if not attempts:
        attempts = [_begun(_number_of(event) or 1, event)]
    if told is not None:
        return _ended(attempts, told)
    if event.kind not in _BEGINS:
        return attempts
    newest = attempts[-1]
    number = _number_of(event)
    if number is None:  # if it has not ended, its coordinator died early, and begins again
        has_gone_by = newest.started_at_s is not None and newest.ended_at_s is not None
        number = newest.number + 1 if has_gone_by else newest.number
    if number == newest.number and newest.started_at_s is None:
        begun = _begun(number, event)
        submitted = {"submission_id": newest.submission_id, "submitted_at_s": newest.submitted_at_s}
        return [*attempts[:-1], replace(begun, **submitted)]
    return [*attempts, _begun(number, event)] if number > newest.number else attempts


def _number_of(event: EventRecord) -> int | None:
    """Return the number of the attempt that an event says it begins."""
    number = event.data.get("attempt") if event.kind == "attempt" else None
    if isinstance(number, bool) or not isinstance(number, int):
        return None
    return number if 1 <= number < _MOST_ATTEMPTS else None


def _begun(number: int, event: EventRecord) -> Attempt:
    return Attempt(number, None, None, event.at_s, None, None, None, None)


def _ended(attempts: list[Attempt], told: Told) -> list[Attempt]:
    """Return attempts with the one ended that an ending is of."""
    for index, attempt in reversed(list(enumerate(attempts))):
        if _begins_at_s(attempt) <= told.ended_at_s and attempt.ended_at_s is None:
            ended = replace(
                attempt,
                started_at_s=told.ended_at_s
                if attempt.started_at_s is None
                else attempt.started_at_s,
                ended_at_s=told.ended_at_s,
                state=told.state,
                exit_code=told.exit_code,
                reason=told.reason,
            )
            return [*attempts[:index], ended, *attempts[index + 1 :]]
    return attempts


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
