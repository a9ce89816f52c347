"""Record where the time of starts goes: the run's, once, and that of each spare that is warm.

What it needs it finds in the record and with the workers, so a coordinator that comes back tells
what the one before it couldn't. Moments are by the coordinator's clock; of workers' clocks, which
may be wrong, durations alone count.

Process: coordinator.  Thread: its event loop.  Blocks: never.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.startup import (
    PlacedStart,
    RunMoments,
    StartPhase,
    name_longest,
    share_out_run,
    share_out_worker,
)
from trainflow.coordination.worker_pool import WorkerEntry, WorkerPool

Json = dict[str, Any]

_STARTUP = "startup"
_WARM = "warm"


class StartupLog:
    """What is told of starts."""

    def __init__(self, pool: WorkerPool, record: RunRecord):
        self._pool = pool
        self._record = record
        self._is_over = False

    def on_ready(self, entry: WorkerEntry) -> None:
        """A worker is warm; it is told of if it rehearsed, as one that training didn't wait for."""
        start, worker_id = _place(entry), entry.worker_id
        if start is None or StartPhase.REHEARSAL not in start.phases_s or self._is_told(worker_id):
            return
        shares = share_out_worker(start)
        text = f"{worker_id} is warm, {start.took_s:.2f} s after it was asked for: "
        self._record.add_event(
            _WARM,
            text + name_longest(shares),
            worker=worker_id,
            took_s=start.took_s,
            phases={share.phase: share.took_s for share in shares},
        )

    def on_step(self) -> None:
        """A step has been recorded; the first one ends the run's start."""
        if self._is_over:
            return
        events = self._events_of_attempt()
        epochs = {event["data"]["epoch"]: event for event in events if event["kind"] == "epoch"}
        steps = self._record.steps_since(0)
        first = next((each for each in steps if each["epoch"] in epochs), None)
        if first is None:
            return  # the members were faster than the calls that released them
        epoch = epochs[first["epoch"]]
        self._is_over = True
        submitted, launched = _find(events, "submitted"), _find(events, "launched")
        if submitted is None or launched is None or self._record.has(_STARTUP):
            return
        moments = RunMoments(
            submitted_at_s=submitted["at_s"],
            launched_at_s=launched["at_s"],
            formed_at_s=epoch["at_s"],
            # Earlier releases didn't say when they had heard of it.
            committed_at_s=first.get("heard_at_s", first["committed_at_s"]),
        )
        self._tell_startup(first["step"], moments, self._starts_of(epoch["data"]["members"]))

    def _tell_startup(
        self, step: int, moments: RunMoments, starts: Mapping[str, PlacedStart]
    ) -> None:
        shares = share_out_run(moments, starts)
        took_s = moments.committed_at_s - moments.submitted_at_s
        text = f"step {step} committed {took_s:.2f} s after the run was submitted; longest: "
        self._record.add_event(
            _STARTUP,
            text + name_longest(shares),
            took_s=took_s,
            phases={share.phase: asdict(share) for share in shares},
        )

    def _starts_of(self, worker_ids: Iterable[str]) -> dict[str, PlacedStart]:
        """Return what is known of how these have started."""
        entries = (self._pool.entries.get(worker_id) for worker_id in worker_ids)
        placed = {each.worker_id: _place(each) for each in entries if each is not None}
        return {worker_id: start for worker_id, start in placed.items() if start is not None}

    def _is_told(self, worker_id: str) -> bool:
        """Whether an earlier coordinator has told of it, and died before the worker knew."""
        events = self._events_of_attempt()
        return any(e["kind"] == _WARM and e["data"]["worker"] == worker_id for e in events)

    def _events_of_attempt(self) -> list[Json]:
        """Return the events since the job was begun last: attempts before it had starts too."""
        events = self._record.events_since(0)
        begun = [index for index, event in enumerate(events) if event["kind"] == "attempt"]
        return events[begun[-1] :] if begun else events


def _find(events: Sequence[Json], kind: str) -> Json | None:
    """Return the first event of a kind."""
    return next((event for event in events if event["kind"] == kind), None)


def _place(entry: WorkerEntry) -> PlacedStart | None:
    """Return how a worker has started; None if it hasn't told."""
    told = None if entry.description is None else entry.description.start
    return None if told is None else told.place(entry.described_at_s)
