"""Put events of a run's record into the database, with what follows from them.

Process: any that keeps the history.  Blocks: on the database.
"""

from collections.abc import Sequence

from sqlalchemy import Connection, delete, insert, select, update

from trainflow.coordination.run_state import RESUMING
from trainflow.service.history import schema
from trainflow.service.history.draft import Draft
from trainflow.service.history.record_files import Slice
from trainflow.service.history.record_lines import (
    GOES_BACK,
    parse_cut,
    parse_event,
    parse_members,
)
from trainflow.service.history.records import CheckpointState, EventRecord
from trainflow.service.history.standing import (
    STATES,
    Fate,
    Sight,
    attempts_after,
    fate_of,
    state_after,
)

_MOST_BYTES = 2**62


def import_events(connection: Connection, draft: Draft, read: Slice) -> int:
    """Take the events that were read.

    Returns:
        How many lines say nothing: damaged ones, and such whose number was there before.
    """
    if read.begins_anew:
        _forget(connection, draft)
    events: list[EventRecord] = []
    for line in read.objects:
        event = parse_event(line)
        if event is not None and event.number > draft.last_event:
            events.append(event)
            _follow(draft, event)
    _insert(connection, draft.job_id, events)
    for event in events:
        _change_checkpoints(connection, draft.job_id, event)
    return read.num_unreadable + len(read.objects) - len(events)


def read_cuts(connection: Connection, job_id: str) -> list[tuple[int, int]]:
    """Return where a run went back, as the events tell that were taken of it."""
    table = schema.events.c
    query = select(table.number, table.at_s, table.kind, table.text, table.data)
    query = query.where(table.job_id == job_id, table.kind == GOES_BACK).order_by(table.number)
    found = (parse_cut(EventRecord(*row)) for row in connection.execute(query))
    return [cut for cut in found if cut is not None]


def _follow(draft: Draft, event: EventRecord) -> None:
    """Draw the conclusions for the job."""
    draft.last_event = event.number
    draft.note_time(event.at_s)
    known_beginning = _begins_at_s(draft)
    heard_at_s = draft.find_heard_at_s(event.at_s)
    draft.attempts = attempts_after(draft.attempts, event, heard_at_s)
    if _begins_at_s(draft) != known_beginning:
        draft.result = None  # it is of the attempt before, whatever the clocks say
    known = None if draft.events_say is None else draft.events_say.state
    state = state_after(known, event)
    if state is not None and event.kind != RESUMING:
        draft.events_say = Sight(state, event.at_s)
    members = parse_members(event)
    if members is not None:
        draft.ranks = members + draft.ranks[len(members) :]
    cut = parse_cut(event)
    if cut is not None and cut not in draft.cuts:
        draft.cuts.append(cut)


def _begins_at_s(draft: Draft) -> float | None:
    return draft.attempts[-1].started_at_s if draft.attempts else None


def _forget(connection: Connection, draft: Draft) -> None:
    for table in (schema.events, schema.checkpoints):
        connection.execute(delete(table).where(table.c.job_id == draft.job_id))
    draft.forget_events()


def _insert(connection: Connection, job_id: str, events: Sequence[EventRecord]) -> None:
    rows = [vars(event) | {"job_id": job_id} for event in events]
    if rows:
        connection.execute(insert(schema.events), rows)


def _change_checkpoints(connection: Connection, job_id: str, event: EventRecord) -> None:
    told = fate_of(event)
    if told is None:
        return
    fate, steps = told
    table = schema.checkpoints
    these = (table.c.job_id == job_id) & table.c.step.in_(steps)
    if fate is Fate.MADE:
        connection.execute(delete(table).where(these))  # gone back, it was made again
        for step in steps:
            connection.execute(insert(table).values(_new_checkpoint(job_id, step, event)))
    elif fate is Fate.VERIFIED:
        connection.execute(update(table).where(these).values(verified_at_s=event.at_s))
    else:
        connection.execute(update(table).where(these).values(state=str(STATES[fate])))


def _new_checkpoint(job_id: str, step: int, event: EventRecord) -> dict[str, object]:
    return {
        "job_id": job_id,
        "step": step,
        "made_at_s": event.at_s,
        "num_bytes": _num_bytes(event, "num_bytes"),
        "num_bytes_written": _num_bytes(event, "num_bytes_written"),
        "state": str(CheckpointState.KEPT),
        "verified_at_s": None,
    }


def _num_bytes(event: EventRecord, name: str) -> int:
    found = event.data.get(name)
    return found if isinstance(found, int) and 0 <= found < _MOST_BYTES else 0
