"""A job as a pass over its record changes it: read from its row, and written back once.

Process: any that keeps the history.  Blocks: on the database.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from sqlalchemy import Connection, delete, insert, select, update

from trainflow.coordination.run_state import RunState
from trainflow.service.history import schema
from trainflow.service.history.jobs import to_attempt, write_labels
from trainflow.service.history.record_lines import Identity, Snapshot, Told, read_ending
from trainflow.service.history.records import Attempt
from trainflow.service.history.standing import Evidence, Sight, decide_standing


@dataclass
class Draft:
    """What is known of one job.

    Attributes:
        job_id: of the job.
        attempts: the first one first.
        cuts: where the run went back: the epoch that did, by its order, and the step it began
            after.
        ranks: ids of the workers that had them last, by rank.
        last_event: number of its newest event.
        last_step: the newest committed step that counts.
        farthest_step: the greatest there ever was.
        events_say: where the job stands by its events alone.
        result: how it ended, by ``result.json``.
        updated_at_s: when something was last told of it.
    """

    job_id: str
    attempts: list[Attempt]
    cuts: list[tuple[int, int]]
    ranks: list[str]
    last_event: int
    last_step: int
    farthest_step: int
    events_say: Sight | None
    result: Told | None
    updated_at_s: float
    _row: Mapping[str, Any]
    _published: Sight | None
    _published_ending: Told | None
    _identity: Identity | None = None
    _snapshot: Snapshot | None = None

    @classmethod
    def of(cls, connection: Connection, row: Mapping[str, Any]) -> "Draft":
        """Read a job that is locked."""
        table = schema.attempts
        query = select(table).where(table.c.job_id == row["job_id"]).order_by(table.c.number)
        result = row["result"]
        status = row["status"]
        sight = None if status is None else Sight(RunState(status["state"]), row["published_at_s"])
        return cls(
            job_id=row["job_id"],
            attempts=[to_attempt(each) for each in connection.execute(query)],
            cuts=[(epoch, step) for epoch, step in row["cuts"]],
            ranks=row["ranks"],
            last_event=row["last_event"],
            last_step=row["last_step"],
            farthest_step=row["farthest_step"],
            events_say=_sight(row["event_state"], row["event_at_s"]),
            result=None if result is None else _to_told(result),
            updated_at_s=row["updated_at_s"],
            _row=row,
            _published=sight,
            _published_ending=_published_ending(sight, status),
        )

    def note_time(self, at_s: float) -> None:
        """Something was told of the job."""
        self.updated_at_s = max(self.updated_at_s, at_s)

    def find_heard_at_s(self, before_s: float) -> float | None:
        """Return when somebody who runs the job was last heard of before a time, if that is known.

        Args:
            before_s: CLOCK_REALTIME.
        """
        sights = (self._published, self.events_say)
        known = [each.at_s for each in sights if each is not None and each.at_s <= before_s]
        return max(known, default=None)

    def identify(self, identity: Identity) -> None:
        """Take what the job is."""
        self._identity = identity

    def publish(self, snapshot: Snapshot) -> None:
        """Take the newest status."""
        self._snapshot = snapshot
        self._published = Sight(snapshot.state, snapshot.as_of_s)
        self._published_ending = snapshot.ending
        self.note_time(snapshot.as_of_s)

    def forget_events(self) -> None:
        """Nothing is known by events any more."""
        self.last_event, self.events_say = 0, None
        self.cuts, self.ranks = [], []
        self.attempts = [
            replace(
                each, started_at_s=None, ended_at_s=None, state=None, exit_code=None, reason=None
            )
            for each in self.attempts
            if each.submission_id is not None
        ]

    def save(self, connection: Connection) -> RunState:
        """Write what has changed, and return where the job stands."""
        standing = decide_standing(self._gather())
        told = standing.told
        values: dict[str, Any] = {
            "state": str(standing.state),
            "ended_at_s": None if told is None else told.ended_at_s,
            "exit_code": None if told is None else told.exit_code,
            "reason": None if told is None else told.reason,
            "attempt": self.attempts[-1].number if self.attempts else self._row["attempt"],
            "cuts": [list(cut) for cut in self.cuts],
            "ranks": self.ranks,
            "last_event": self.last_event,
            "last_step": self.last_step,
            "farthest_step": self.farthest_step,
            "event_state": None if self.events_say is None else str(self.events_say.state),
            "event_at_s": None if self.events_say is None else self.events_say.at_s,
            "result": None if self.result is None else asdict(self.result),
            "updated_at_s": self.updated_at_s,
        }
        if self._snapshot is not None:
            values["published_at_s"] = self._snapshot.as_of_s
            values["status"] = self._snapshot.status
            values["workers"] = self._snapshot.workers
        if self._identity is not None:
            values |= asdict(self._identity)
            write_labels(connection, self.job_id, self._identity.labels)
        changed = {key: value for key, value in values.items() if self._row[key] != value}
        if changed:
            change = update(schema.jobs).where(schema.jobs.c.job_id == self.job_id)
            connection.execute(change.values(changed))
        self._save_attempts(connection)
        return standing.state

    def _gather(self) -> Evidence:
        sights = (self._published, self.events_say)
        return Evidence(
            self.attempts[-1] if self.attempts else None,
            self.result,
            self._published_ending,
            tuple(each for each in sights if each is not None),
        )

    def _save_attempts(self, connection: Connection) -> None:
        table = schema.attempts
        query = select(table).where(table.c.job_id == self.job_id).order_by(table.c.number)
        if [to_attempt(row) for row in connection.execute(query)] == self.attempts:
            return
        connection.execute(delete(table).where(table.c.job_id == self.job_id))
        rows = [asdict(each) | {"job_id": self.job_id} for each in self.attempts]
        if rows:
            connection.execute(insert(table), rows)


def _sight(state: str | None, at_s: float | None) -> Sight | None:
    return None if state is None or at_s is None else Sight(RunState(state), at_s)


def _to_told(result: Mapping[str, Any]) -> Told:
    state = RunState(result["state"])
    return Told(state, result["ended_at_s"], result["exit_code"], result["reason"])


def _published_ending(sight: Sight | None, status: Mapping[str, Any] | None) -> Told | None:
    if sight is None or status is None or not sight.state.is_terminal:
        return None
    return read_ending(sight.state, sight.at_s, status.get("ending"))
