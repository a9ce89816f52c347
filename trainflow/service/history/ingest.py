"""Bring the database up to all runs that are recorded under a TRAINFLOW_HOME.

No coordinator is asked anything. Where nothing has changed, a look costs a ``stat`` a file; of runs
that ended some time ago, one a folder.

Process: one that keeps the history; several at once do no harm.  Thread: one; an `Ingester` is not
for several.  Blocks: on the disk and the database.  Fails: HistoryError if the database doesn't
answer; the next look goes on from there.
"""

import logging
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import select

from trainflow.clock import SYSTEM_CLOCK, Clock
from trainflow.coordination import names
from trainflow.coordination.run_state import RunState
from trainflow.errors import HistoryError
from trainflow.service.history import schema
from trainflow.service.history.database import Database
from trainflow.service.history.record_files import SLICE_BYTES
from trainflow.service.history.run_import import (
    FILES,
    Imported,
    Stamps,
    import_run,
    look_at_record,
    read_sources,
)

logger = logging.getLogger(__name__)

_JOB_ID = re.compile(r"[a-z0-9][a-z0-9-]{0,62}", re.ASCII)
_REST_S = 60.0
_TRY_AGAIN_AFTER_S = 1.0
_TRY_AGAIN_AT_MOST_AFTER_S = 8.0


@dataclass(frozen=True)
class _Rest:
    """A run whose files are not looked at for a while.

    Attributes:
        modified_ns: of its folder, which changes with every file that is made or replaced there,
            and so ends the rest; None if nothing does but time.
        until_s: CLOCK_MONOTONIC when they are looked at anyway.
    """

    modified_ns: int | None
    until_s: float


@dataclass(frozen=True)
class _Trouble:
    """Why a run could not be taken so far.

    Attributes:
        error: of the newest try.
        num_tries: how many there were in a row.
    """

    error: Exception
    num_tries: int

    def decide_rest_s(self) -> float:
        """Return for how long not to try: what is lacked outside may be there any second.

        Any other error is the record's own: it comes again, and each try costs reading all of it.
        """
        if not isinstance(self.error, HistoryError | OSError):
            return _REST_S
        num_doublings = min(self.num_tries - 1, 10)  # of thousands there is no float
        return min(_TRY_AGAIN_AFTER_S * 2**num_doublings, _TRY_AGAIN_AT_MOST_AFTER_S)


@dataclass(frozen=True)
class Taken:
    """What a look has brought.

    Attributes:
        job_ids: of jobs of which something was new.
        has_more: of some there is more: look again at once.
    """

    job_ids: frozenset[str]
    has_more: bool


class Ingester:
    """Reads what coordinators write."""

    def __init__(
        self,
        database: Database,
        runs: Path | None = None,
        clock: Clock = SYSTEM_CLOCK,
        *,
        slice_bytes: int = SLICE_BYTES,
    ):
        """Take where to read and write.

        Args:
            database: that is brought up to the records.
            runs: folder with one folder a run; ``TRAINFLOW_HOME/runs`` if None.
            clock: paces the looks at runs that have ended.
            slice_bytes: how much of a file is read in one transaction.
        """
        self._slice_bytes = slice_bytes
        self._database = database
        self._runs = (names.home() / "runs" if runs is None else runs).absolute()
        self._clock = clock
        self._seen: dict[str, Stamps] = {}
        self._finished: set[str] = set()
        self._rests: dict[str, _Rest] = {}
        self._troubled: dict[str, _Trouble] = {}
        self._is_new = True
        self._file: tuple[int, int] | None = database.identify()

    @property
    def trouble(self) -> str | None:
        """What the database has against taking some run; None if nothing."""
        found = (each.error for each in tuple(self._troubled.values()))  # asked by another thread
        return next((str(error) for error in found if isinstance(error, HistoryError)), None)

    def poll(self) -> Taken:
        """Take what is new, of each run at most one slice of each file.

        Raises:
            HistoryError: the database doesn't answer.
        """
        self._forget_if_replaced()
        if self._is_new:
            self._recall()
        found = {folder.name: self._poll_run(folder) for folder in self._list_awake()}
        taken = frozenset(job_id for job_id, has_more in found.items() if has_more is not None)
        return Taken(taken, any(found.values()))

    def catch_up(self) -> frozenset[str]:
        """Take all that there is, and return the ids of jobs of which something was new.

        Raises:
            HistoryError: the database doesn't answer.
        """
        job_ids: set[str] = set()
        has_more = True
        while has_more:
            taken = self.poll()
            job_ids |= taken.job_ids
            has_more = taken.has_more
        return frozenset(job_ids)

    def _forget_if_replaced(self) -> None:
        """A file that somebody has put in the database's place knows what it knows."""
        file = self._database.identify()
        if file is None or file == self._file:
            return
        logger.warning("the history is another file than before: what it lacks is taken anew")
        self._seen, self._finished, self._rests, self._troubled = {}, set(), {}, {}
        self._is_new, self._file = True, file

    def _recall(self) -> None:
        """Find out what was read by whoever was here before: it need not be looked at again."""
        jobs = schema.jobs.c
        finished = [str(state) for state in RunState if state.is_terminal]
        with self._database.read() as connection:
            query = select(jobs.job_id).where(jobs.state.in_(finished))
            self._finished = {row.job_id for row in connection.execute(query)}
            for job_id, files in read_sources(connection).items():
                stamps = {file: files[file].stamp if file in files else None for file in FILES}
                self._seen[job_id] = stamps
        self._is_new = False

    def _list_awake(self) -> Iterator[Path]:
        try:
            entries = sorted(os.scandir(self._runs), key=lambda entry: entry.name)
        except FileNotFoundError:
            return  # nothing has ever run here
        except OSError as error:
            self._note_trouble("", error)
            return
        there = {entry.name for entry in entries}
        self._troubled = {name: each for name, each in self._troubled.items() if name in there}
        for entry in entries:
            if _JOB_ID.fullmatch(entry.name) and entry.is_dir() and not self._rests_still(entry):
                yield Path(entry.path)

    def _rests_still(self, entry: "os.DirEntry[str]") -> bool:
        rest = self._rests.get(entry.name)
        if rest is None or self._clock.monotonic_s() >= rest.until_s:
            return False
        try:
            return rest.modified_ns in {None, entry.stat().st_mtime_ns}
        except OSError:
            return False  # it has just gone

    def _poll_run(self, folder: Path) -> bool | None:
        """Take what is new of one run; returns whether there is more, None if nothing was new."""
        job_id = folder.name
        self._rests.pop(job_id, None)
        try:
            modified_ns = folder.stat().st_mtime_ns
            stamps = look_at_record(folder)
            is_new = False
            if stamps != self._seen.get(job_id):
                imported = import_run(self._database, folder, self._slice_bytes)
                if imported.has_more:
                    return True
                self._note(job_id, imported, stamps)
                is_new = imported.state is not None
        except HistoryError as error:
            self._database.check()  # is it the database that is in trouble, or this record?
            self._postpone(job_id, error)
            return None
        except Exception as error:  # noqa: BLE001  other records must not wait for this one
            self._postpone(job_id, error)
            return None
        if self._troubled.pop(job_id, None) is not None:
            logger.warning("%s is taken again", folder)
        if job_id in self._finished:
            self._rests[job_id] = self._rest(modified_ns, _REST_S)
        return False if is_new else None

    def _note(self, job_id: str, imported: Imported, stamps: Stamps) -> None:
        """Keep how a record looked when all of it was taken."""
        self._seen[job_id] = stamps
        if imported.state is None or imported.state.is_terminal:
            self._finished.add(job_id)
        else:
            self._finished.discard(job_id)

    def _postpone(self, job_id: str, error: Exception) -> None:
        trouble = self._note_trouble(job_id, error)
        self._rests[job_id] = self._rest(None, trouble.decide_rest_s())

    def _rest(self, modified_ns: int | None, rest_s: float) -> _Rest:
        return _Rest(modified_ns, self._clock.monotonic_s() + rest_s)

    def _note_trouble(self, job_id: str, error: Exception) -> _Trouble:
        """Tell once that a run can't be taken for now; others are."""
        known = self._troubled.get(job_id)
        trouble = _Trouble(error, 1 if known is None else known.num_tries + 1)
        if known is None:
            logger.warning("%s is left out for now", self._runs / job_id, exc_info=error)
        self._troubled[job_id] = trouble
        return trouble
