"""Bring the database up to one run's record: what is new of each file, in one transaction.

How far each file was read is part of the transaction. So a crash anywhere leaves either nothing or
all of a pass, and of two who do the same at once the second finds nothing left to do.

Process: any that keeps the history.  Thread: any.  Blocks: on the disk and the database.
Fails: OSError, HistoryError; nothing is changed then.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, delete, insert, select

from trainflow.coordination.run_state import RunState
from trainflow.service.history import schema
from trainflow.service.history.database import Database, insert_if_absent
from trainflow.service.history.draft import Draft
from trainflow.service.history.events_import import import_events
from trainflow.service.history.jobs import is_erased, lock_job
from trainflow.service.history.record_files import (
    SLICE_BYTES,
    START,
    UNREAD,
    Bookmark,
    Document,
    Slice,
    Stamp,
    look_at,
    read_document,
    read_slice,
)
from trainflow.service.history.record_lines import (
    name_of,
    parse_event,
    parse_job,
    parse_result,
    parse_status,
)
from trainflow.service.history.steps_import import StepsImport, forget_steps

logger = logging.getLogger(__name__)

EVENTS, STEPS = "events.jsonl", "metrics.jsonl"
JOB, STATUS, RESULT = "job.json", "status.json", "result.json"
FILES = (EVENTS, STEPS, JOB, STATUS, RESULT)

Stamps = dict[str, Stamp | None]


@dataclass(frozen=True)
class Source:
    """How far one file of a record has been read.

    Attributes:
        bookmark: in a file of lines.
        stamp: of the file as it was read to its end; else `UNREAD`.
        num_unreadable: lines in it that say nothing, or 1 if the whole file does.
    """

    bookmark: Bookmark = START
    stamp: Stamp = UNREAD
    num_unreadable: int = 0


@dataclass(frozen=True)
class Imported:
    """What a pass over one record has come to.

    Attributes:
        state: of the job; None if it is none, or was erased.
        has_more: there is more to read.
    """

    state: RunState | None
    has_more: bool


def look_at_record(folder: Path) -> Stamps:
    """Return the stamps of a record's files; None of those that aren't there."""
    return {file: look_at(folder / file) for file in FILES}


def import_run(database: Database, folder: Path, num_bytes: int = SLICE_BYTES) -> Imported:
    """Take what is new in a run's folder.

    Args:
        database: that is brought up to it.
        folder: named as the job.
        num_bytes: how much of a file is read at most.

    Raises:
        OSError: the folder can't be read.
        HistoryError: the database doesn't answer, or has no room.
    """
    with database.write(can_be_repeated=True) as connection:
        row = _find_or_make(connection, folder)
        if row is None:
            return Imported(None, has_more=False)
        return _Pass(connection, folder, row, num_bytes).run()


class _Pass:
    """One pass over one record."""

    def __init__(
        self, connection: Connection, folder: Path, row: Mapping[str, Any], num_bytes: int
    ):
        self._connection = connection
        self._folder = folder
        self._num_bytes = num_bytes
        self._draft = Draft.of(connection, row)
        self._known = dict(read_sources(connection, folder.name).get(folder.name, {}))
        self._has_more = False

    def run(self) -> Imported:
        self._take_job()
        self._take_lines()
        self._take_status()
        self._take_result()
        state = self._draft.save(self._connection)
        return Imported(state, self._has_more)

    def _take_lines(self) -> None:
        cuts_before = set(self._draft.cuts)
        is_anew = self._take_events()
        cuts = [cut for cut in self._draft.cuts if cut not in cuts_before]
        if is_anew and look_at(self._folder / STEPS) is not None:
            # Which steps count is told by events: all of them are asked again.
            forget_steps(self._connection, self._draft)
            self._known[STEPS] = Source()
        if is_anew:
            self._known[RESULT] = Source()
        read = self._read_lines(STEPS)
        if read is None and not cuts:
            return
        steps = StepsImport(self._connection, self._draft)
        steps.take(read, cuts)
        if steps.must_reread:
            self._has_more = True
            self._note(STEPS, Source())
        elif read is not None:
            self._note_lines(STEPS, read, steps.num_unreadable)

    def _take_events(self) -> bool:
        """Take what is new of the events; returns whether they are others than those known."""
        read = self._read_lines(EVENTS)
        if read is None:
            return False
        num_unreadable = import_events(self._connection, self._draft, read)
        self._note_lines(EVENTS, read, num_unreadable)
        return read.begins_anew

    def _take_job(self) -> None:
        found = self._read_changed(JOB)
        identity = None if found is None else parse_job(found.content, self._draft.job_id)
        if identity is not None:
            self._draft.identify(identity)

    def _take_status(self) -> None:
        found = self._read_changed(STATUS)
        snapshot = None if found is None else parse_status(found.content)
        if snapshot is None:
            return
        if self._has_more and snapshot.ending is not None:
            self._note(STATUS, Source())  # it is taken once the events before that are known
            return
        self._draft.publish(snapshot)

    def _take_result(self) -> None:
        if self._has_more:
            return  # of which attempt it is, events tell that are yet to be read
        found = self._read_changed(RESULT)
        told = None if found is None else parse_result(found.content, found.written_at_s)
        if told is not None:
            self._draft.result = told
            self._draft.note_time(told.ended_at_s)

    def _read_lines(self, file: str) -> Slice | None:
        """Return what is new in a file of lines; None if it hasn't changed."""
        path, known = self._folder / file, self._known.get(file, Source())
        stamp = look_at(path)
        if stamp is None or stamp == known.stamp:
            return None
        read = read_slice(path, known.bookmark, self._num_bytes)
        self._has_more = self._has_more or read.has_more
        return read

    def _read_changed(self, file: str) -> Document | None:
        """Return what is in a file; None if it hasn't changed."""
        path, known = self._folder / file, self._known.get(file, Source())
        if look_at(path) in {None, known.stamp}:
            return None
        found = read_document(path)
        if found is not None:
            self._note(file, Source(stamp=found.stamp, num_unreadable=int(not found.content)))
        return found

    def _note_lines(self, file: str, read: Slice, num_unreadable: int) -> None:
        before = 0 if read.begins_anew else self._known.get(file, Source()).num_unreadable
        if num_unreadable:
            path = self._folder / file
            logger.warning("%s: %d lines are left out: damaged, or double", path, num_unreadable)
        self._note(file, Source(read.bookmark, read.stamp, before + num_unreadable))

    def _note(self, file: str, source: Source) -> None:
        table = schema.sources
        is_this = (table.c.job_id == self._draft.job_id) & (table.c.file == file)
        connection = self._connection
        connection.execute(delete(table).where(is_this))
        connection.execute(insert(table).values(_to_row(self._draft.job_id, file, source)))


def read_sources(
    connection: Connection, job_id: str | None = None
) -> Mapping[str, Mapping[str, Source]]:
    """Return how far records were read, by job and file; all jobs' if none is named."""
    table = schema.sources
    query = select(table) if job_id is None else select(table).where(table.c.job_id == job_id)
    found: dict[str, dict[str, Source]] = {}
    for row in connection.execute(query):
        found.setdefault(row.job_id, {})[row.file] = Source(
            Bookmark(row.offset, row.inode, row.tail),
            Stamp(row.stamp_inode, row.size, row.modified_ns),
            row.num_unreadable,
        )
    return found


def _to_row(job_id: str, file: str, source: Source) -> dict[str, Any]:
    return {
        "job_id": job_id,
        "file": file,
        "offset": source.bookmark.offset,
        "inode": source.bookmark.inode,
        "tail": source.bookmark.tail,
        "stamp_inode": source.stamp.inode,
        "size": source.stamp.size,
        "modified_ns": source.stamp.modified_ns,
        "num_unreadable": source.num_unreadable,
    }


def _find_or_make(connection: Connection, folder: Path) -> Mapping[str, Any] | None:
    """Return a run's row, locked; None if the folder holds no run, or one that was erased."""
    job_id = folder.name
    if is_erased(connection, job_id):
        return None
    row = lock_job(connection, job_id)
    if row is not None:
        return row
    heard_at_s = _first_heard_at_s(folder)
    if heard_at_s is None:
        return None
    insert_if_absent(connection, schema.jobs, _new_row(folder, heard_at_s))
    # Whoever erases it meanwhile is waited for by the insertion.
    return None if is_erased(connection, job_id) else lock_job(connection, job_id)


def _first_heard_at_s(folder: Path) -> float | None:
    """Return when a run began: with its first event, else when its job was written down."""
    if (folder / EVENTS).exists():
        for line in read_slice(folder / EVENTS, START).objects:
            event = parse_event(line)
            if event is not None:
                return event.at_s
    stamp = look_at(folder / JOB)
    return None if stamp is None else stamp.modified_ns / 1e9


def _new_row(folder: Path, heard_at_s: float) -> dict[str, Any]:
    return {
        "job_id": folder.name,
        "name": name_of(folder.name),
        "state": str(RunState.PENDING),
        "config": {},
        "labels": {},
        "directory": str(folder),
        "attempt": 1,
        "created_at_s": heard_at_s,
        "updated_at_s": heard_at_s,
        "last_event": 0,
        "last_step": 0,
        "farthest_step": 0,
        "cuts": [],
        "workers": [],
    }
