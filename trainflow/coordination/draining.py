"""Which nodes are to be emptied, until when, and how far that has come. Pure."""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from trainflow.coordination.old_events import recall

STRANDED = "nowhere_to_go"
_SAME_DEADLINE_S = 1.0


@dataclass(frozen=True)
class Notice:
    """A node is to be emptied.

    Attributes:
        deadline_at_s: CLOCK_REALTIME when it goes; None: whenever it is empty.
        source: who says so.
        trouble: what was wrong with what was said; None: nothing.
    """

    deadline_at_s: float | None
    source: str
    trouble: str | None = None

    @property
    def ends_at_s(self) -> float:
        """The deadline; without one, the end of time."""
        return math.inf if self.deadline_at_s is None else self.deadline_at_s

    def left_s(self, now_s: float) -> float:
        """Return the seconds until the deadline; less than none if it is past."""
        return self.ends_at_s - now_s

    def is_like(self, other: "Notice") -> bool:
        """Whether both say the same, as far as clocks tell."""
        if self.deadline_at_s is None or other.deadline_at_s is None:
            return self.deadline_at_s == other.deadline_at_s
        return abs(self.deadline_at_s - other.deadline_at_s) < _SAME_DEADLINE_S


def merge_notices(sources: Iterable[Mapping[str, Notice]]) -> dict[str, Notice]:
    """Return by node the notice that leaves least time, of all who say something of it."""
    merged: dict[str, Notice] = {}
    for notices in sources:
        for node_id, notice in notices.items():
            known = merged.get(node_id)
            if known is None or notice.ends_at_s < known.ends_at_s:
                merged[node_id] = notice
    return merged


def group_by_deadline(deadlines: Mapping[str, float]) -> list[set[str]]:
    """Return nodes that go at the same time, as far as clocks tell; who has most time left first.

    Args:
        deadlines: CLOCK_REALTIME by node; infinite where there is none.
    """
    groups: list[set[str]] = []
    newest_s = math.nan
    for node_id, ends_at_s in sorted(deadlines.items(), key=lambda each: (-each[1], each[0])):
        is_same = ends_at_s == newest_s or newest_s - ends_at_s < _SAME_DEADLINE_S
        if not groups or not is_same:
            groups.append(set())
            newest_s = ends_at_s
        groups[-1].add(node_id)
    return groups


class Stage(StrEnum):
    """How far a node has been emptied."""

    OPEN = "open"
    EMPTY = "empty"
    LATE = "late"
    LOST = "lost"


@dataclass(frozen=True)
class Told:
    """What the newest event of a node says.

    Attributes:
        stage: how far it was.
        ranks: by worker, those that were there.
        world_size: when it was heard of; 0 if an earlier release has told it.
    """

    stage: Stage
    ranks: Mapping[str, int]
    world_size: int


def find_told(events: Iterable[Mapping[str, Any]]) -> dict[str, Told]:
    """Return by node what events tell of those that are still to be emptied, or to go."""
    stages = {"drain": Stage.OPEN, "drained": Stage.EMPTY}
    told: dict[str, Told] = {}

    def take(event: Mapping[str, Any]) -> None:
        kind, data = event["kind"], event["data"]
        if kind == "drain_late":
            stages[kind] = Stage.LOST if data["lost"] else Stage.LATE
        if kind in stages:
            ranks, world_size = dict(data.get("workers", {})), int(data.get("world_size", 0))
            told[data["node"]] = Told(stages[kind], ranks, world_size)
        elif kind == "drain_over":
            told.pop(data["node"], None)

    recall(events, take)
    return told


def find_stranded(events: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Return the nodes of which events tell that members there have nowhere to go, and still do."""
    stranded: set[str] = set()

    def take(event: Mapping[str, Any]) -> None:
        kind, data = event["kind"], event["data"]
        if kind == STRANDED:
            stranded.clear()
            stranded.update(data["nodes"])
        elif kind in {"drained", "drain_over"}:
            stranded.discard(data["node"])

    recall(events, take)
    return frozenset(stranded)


@dataclass
class Drain:
    """One node that is to be emptied.

    Attributes:
        notice: the newest.
        world_size: when it was heard of.
        ranks: by worker, those that were there when it was last looked and that had none before.
        stage: as it was told last.
        is_short: the deadline was nearer than a step takes when it was heard of, as it is now.
    """

    notice: Notice
    world_size: int = 0
    ranks: dict[str, int] = field(default_factory=dict[str, int])
    stage: Stage = Stage.OPEN
    is_short: bool = False

    def observe(
        self, holding: Mapping[str, int], lost: Collection[str], now_s: float
    ) -> Stage | None:
        """Take who holds a rank there now; returns what is new.

        Args:
            holding: ranks by worker.
            lost: workers of the run that are known to be lost.
            now_s: CLOCK_REALTIME.
        """
        before = self.stage
        was_over = before in {Stage.EMPTY, Stage.LOST}
        if holding:
            self.ranks = dict(holding) if was_over else self.ranks | dict(holding)
            is_late = self.notice.left_s(now_s) < 0 and not self.is_short
            self.stage = Stage.LATE if is_late else Stage.OPEN
        elif not was_over:
            was_lost = any(worker_id in lost for worker_id in self.ranks)
            self.stage = Stage.LOST if was_lost else Stage.EMPTY
        return None if self.stage in {before, Stage.OPEN} else self.stage
