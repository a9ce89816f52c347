"""What the lines and documents of a run's record say. Pure.

They are written by a coordinator of this release or of an earlier one, and may be damaged: what has
not the form that is expected says nothing.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, cast

from trainflow.computation.reports import StepReport
from trainflow.config.masking import mask_variables
from trainflow.coordination.run_state import LOST, RunState
from trainflow.service.history.downsampling import Point, Tally
from trainflow.service.history.records import EventRecord
from trainflow.service.history.storable import storable, storable_object, storable_text

_MOST = 2**62
_MOST_EXIT_CODE = 255
_COUNTER_BITS = 32
# It names a folder, too.
_WORKER_ID = re.compile(r"[a-z0-9][a-z0-9.-]{0,63}", re.ASCII)
_MAX_DEPTH = 3
# What names a step, rather than measures it.
_NO_METRICS = frozenset({"step", "epoch", "rank", "committed_at_s", "heard_at_s", "after_event"})

Line = Mapping[str, Any]

METRICS_OF_ANY_RUN = frozenset(
    {each.name for each in fields(StepReport)} - _NO_METRICS | {"num_spares"}
)
"""Metrics that any run may have; one that lacks some may have them later."""

GOES_BACK = "resumed"
"""Kind of the event that tells after which step training goes on."""


@dataclass(frozen=True)
class Told:
    """How a run ended, as something has told it.

    Attributes:
        state: a terminal one.
        ended_at_s: CLOCK_REALTIME.
        exit_code: what the command line leaves with.
        reason: for a person.
    """

    state: RunState
    ended_at_s: float
    exit_code: int | None
    reason: str | None


@dataclass(frozen=True)
class Before:
    """What the beginning of an attempt says of the one before.

    Attributes:
        attempt: the number of that one.
        told: how it ended; None if its cluster died.
        heard_at_s: CLOCK_REALTIME when it was last heard of.
    """

    attempt: int
    told: Told | None
    heard_at_s: float


@dataclass(frozen=True)
class Snapshot:
    """A status that was published.

    Attributes:
        state: of the run.
        as_of_s: CLOCK_REALTIME when it was so.
        status: all that it says.
        workers: a row each.
        ending: how the run ended, if it has.
    """

    state: RunState
    as_of_s: float
    status: dict[str, Any]
    workers: list[dict[str, Any]]
    ending: Told | None


@dataclass(frozen=True)
class Identity:
    """What a run is.

    Attributes:
        name: of the job.
        config: its settings, without the values of secrets.
        labels: as in its settings.
    """

    name: str
    config: dict[str, Any]
    labels: dict[str, str]


def parse_event(line: Line) -> EventRecord | None:
    """Return a line of ``events.jsonl``; None if it is none."""
    number, at_s = _to_count(line.get("number")), to_time(line.get("at_s"))
    kind, text, data = line.get("kind"), line.get("text"), line.get("data")
    if number is None or at_s is None or not (isinstance(kind, str) and isinstance(text, str)):
        return None
    if not isinstance(data, dict):
        return None
    told = storable_object(cast("dict[str, Any]", data))
    return EventRecord(number, at_s, storable_text(kind), storable_text(text), told)


def parse_step(line: Line) -> Point | None:
    """Return a line of ``metrics.jsonl`` as the point of a single step; None if it is none."""
    step, epoch = _to_count(line.get("step")), parse_epoch(line.get("epoch"))
    committed_at_s = to_time(line.get("committed_at_s"))
    if step is None or epoch is None or committed_at_s is None:
        return None
    measured = {key: value for key, value in line.items() if key not in _NO_METRICS}
    metrics = {name: Tally.of(value) for name, value in _flatten(measured).items()}
    return Point(step, step, 1, 1, epoch, epoch, committed_at_s, metrics)


def parse_epoch(value: object) -> int | None:
    """Return an epoch's place in the order of all of a run; None if it is none.

    Args:
        value: ``incarnation.counter``, or a list of the two.
    """
    parts = value.split(".") if isinstance(value, str) else value
    if not isinstance(parts, list) or len(cast("list[object]", parts)) != 2:  # noqa: PLR2004
        return None
    try:
        incarnation, counter = (int(part) for part in cast("list[Any]", parts))
    except (ValueError, TypeError, OverflowError):
        return None
    if 0 <= counter < 1 << _COUNTER_BITS and 0 <= incarnation < 1 << (_COUNTER_BITS - 2):
        return incarnation << _COUNTER_BITS | counter
    return None


def parse_cut(event: EventRecord) -> tuple[int, int] | None:
    """Return where a run went back: the epoch that did, by its order, and the step it began after.

    Returns:
        None if the event is of another kind.
    """
    if event.kind != GOES_BACK:
        return None
    epoch, step = parse_epoch(event.data.get("epoch")), _to_count(event.data.get("step"), least=0)
    return None if epoch is None or step is None else (epoch, step)


def parse_members(event: EventRecord) -> list[str] | None:
    """Return the ids of an epoch's members by rank; None if the event is of another kind."""
    members = event.data.get("members") if event.kind == "epoch" else None
    if not isinstance(members, list):
        return None
    ids = cast("list[object]", members)
    found = [each for each in ids if isinstance(each, str) and _WORKER_ID.fullmatch(each)]
    return found if len(found) == len(ids) else None


def parse_status(document: Line) -> Snapshot | None:
    """Return what ``status.json`` says; None if it is damaged."""
    status, workers = document.get("status"), document.get("workers")
    if not isinstance(status, dict) or not isinstance(workers, list):
        return None
    told = storable_object(cast("dict[str, Any]", status))
    state, as_of_s = to_state(told.get("state")), to_time(told.get("as_of_s"))
    rows = [storable(each) for each in cast("list[Any]", workers)]
    if state is None or as_of_s is None or not all(isinstance(row, dict) for row in rows):
        return None
    ended = read_ending(state, as_of_s, told.get("ending")) if state.is_terminal else None
    return Snapshot(state, as_of_s, told, rows, ended)


def parse_result(document: Line, written_at_s: float) -> Told | None:
    """Return what ``result.json`` says; None if it is damaged.

    Args:
        document: the file's.
        written_at_s: CLOCK_REALTIME when it was, which earlier releases don't say in it.
    """
    state = to_state(document.get("state"))
    if state is None or not state.is_terminal:
        return None
    ended_at_s = to_time(document.get("ended_at_s"))
    return read_ending(state, written_at_s if ended_at_s is None else ended_at_s, document)


def parse_ending(event: EventRecord) -> Told | None:
    """Return how an event says that the run has ended; None if it is of another kind."""
    state = to_state(event.kind)
    if state is None or not state.is_terminal:
        return None
    return read_ending(state, event.at_s, {"reason": event.text} | dict(event.data))


def parse_before(event: EventRecord) -> Before | None:
    """Return what an event that begins an attempt says of the one before; None if nothing."""
    said = event.data.get("before") if event.kind == "attempt" else None
    if not isinstance(said, dict):
        return None
    members = cast("Line", said)
    number, ended_at_s = _to_count(members.get("attempt")), to_time(members.get("ended_at_s"))
    if number is None or ended_at_s is None:
        return None
    state = to_state(members.get("state"))
    if state is not None and state.is_terminal:
        return Before(number, read_ending(state, ended_at_s, members), ended_at_s)
    return Before(number, None, ended_at_s) if members.get("state") == LOST else None


def parse_job(document: Line, job_id: str) -> Identity | None:
    """Return what ``job.json`` says; None if it is damaged, or of another run."""
    config = document.get("config")
    if not isinstance(config, dict) or document.get("job_id") != job_id:
        return None
    kept = storable_object(mask_variables(cast("dict[str, Any]", config)))
    name, labels = kept.get("name"), kept.get("labels")
    pairs = cast("dict[str, Any]", labels).items() if isinstance(labels, dict) else ()
    texts = {key: value for key, value in pairs if isinstance(value, str)}
    return Identity(name if isinstance(name, str) else name_of(job_id), kept, texts)


def name_of(job_id: str) -> str:
    """Return the job's name as far as an id tells: without its random end."""
    return job_id.rpartition("-")[0] or job_id


def to_state(value: object) -> RunState | None:
    """Return a run's state; None if it is none."""
    return RunState(value) if isinstance(value, str) and value in set(RunState) else None


def to_time(value: object) -> float | None:
    """Return a time in seconds; None if it is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > _MOST:
        return None
    return float(value) if math.isfinite(value) else None


def _to_count(value: object, least: int = 1) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if least <= value < _MOST else None


def read_ending(state: RunState, ended_at_s: float, ending: object) -> Told:
    """Return how a run ended, by an object with its ``exit_code`` and ``reason``, if it is one."""
    members: Line = cast("Line", ending) if isinstance(ending, dict) else {}
    code, reason = members.get("exit_code"), members.get("reason")
    known = code if isinstance(code, int) and 0 <= code <= _MOST_EXIT_CODE else None
    text = storable_text(reason) if isinstance(reason, str) else None
    return Told(state, ended_at_s, known, text)


def _flatten(members: Mapping[str, Any], depth: int = 1) -> dict[str, float]:
    """Return all numbers of an object, and of those in it, by their paths."""
    found: dict[str, float] = {}
    for key, value in members.items():
        name = storable_text(key)
        if isinstance(value, dict) and depth < _MAX_DEPTH:
            inner = _flatten(cast("dict[str, Any]", value), depth + 1)
            found |= {f"{name}.{path}": number for path, number in inner.items()}
        elif isinstance(value, int | float):
            found[name] = _to_float(value)
    return found


def _to_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer of hundreds of digits
        return math.inf if value > 0 else -math.inf
