"""What became of a campaign's faults: which fell, and why others didn't. Pure."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Literal, Self

from trainflow.config.chaos_plan import FaultConfig, FaultKind, FaultTarget
from trainflow.coordination.chaos.notice_times import NoticeTimes
from trainflow.coordination.chaos.schedule import PlannedFault

DueBy = Literal["draw", "time", "step", "place"]
"""Drawn, for some second; or listed, for a second, a step, or a place that a process comes to."""

_ABOUT_S = 1.0
_BACK_WITHIN_S = 60.0
_EARLIER = "make the run longer, or the fault earlier"


class Outcome(StrEnum):
    """What became of a planned fault.

    Attributes:
        FELL: it was done.
        NOT_DUE: the run was over before.
        NOBODY: there was nobody to fall on.
        NOT_REACHED: a process was to do it by itself, and none came to that place.
        FAILED: it, or its end, could not be done.
    """

    FELL = "fell"
    NOT_DUE = "not_due"
    NOBODY = "nobody"
    NOT_REACHED = "not_reached"
    FAILED = "failed"

    @property
    def is_done(self) -> bool:
        """Whether it was done, if only in part."""
        return self in {Outcome.FELL, Outcome.FAILED}


_TOLD = {
    Outcome.NOT_DUE: "it was never due",
    Outcome.NOBODY: "nobody was there",
    Outcome.NOT_REACHED: "nobody came to that place",
}
_TOLD_OF_UNFELT = "nobody came upon it while it lasted"
_TOLD_OF_FLIP = {
    Outcome.NOBODY: "nobody was there whose sums another compares",
    Outcome.NOT_REACHED: "nobody came to that place whose sums another compares",
}


@dataclass(frozen=True)
class FallenFault:
    """What became of a planned fault.

    Attributes:
        number: of it.
        what: was to be done, and to whom.
        victim: on whom it fell; None: on nobody.
        worker_id: of the member or spare that it fell on, or that is on the node that it fell on.
        at_s: CLOCK_REALTIME when it fell, or was found to have nobody to fall on; None: it was
            never due, or nobody came to its place.
        after_step: the newest step that was known to be committed; by who did it to itself, if one
            did.
        recovered_s: from then until all ranks had committed a step after it, if it was a loss; not
            known where clocks were wrong by which that is measured.
        undone: what of it could not be done, and why.
        due_by: what said when.
        is_missed: it was ordered of a process, and the run went on without any that did it; or it
            lasted, and nobody came upon it.
        kind: what it is.
        target: whose process it was to fall on.
        host: address of the node that it fell on, or of its process; None where that isn't known.
        node_id: Ray's name of that node, likewise: another at that address has another.
        last_s: for how long it lasts; None: for good.
    """

    number: int
    what: str
    victim: str | None = None
    worker_id: str | None = None
    at_s: float | None = None
    after_step: int | None = None
    recovered_s: float | None = None
    undone: str | None = None
    due_by: DueBy = "step"
    is_missed: bool = False
    kind: FaultKind = "kill"
    target: FaultTarget = "member"
    host: str | None = None
    node_id: str | None = None
    last_s: float | None = None

    @classmethod
    def of(cls, planned: PlannedFault) -> Self:
        """Return what is known of a fault before it falls."""
        fault = planned.fault
        return cls(
            planned.number,
            planned.what,
            due_by=due_by(planned),
            kind=fault.kind,
            target=fault.target,
            last_s=_find_last_s(fault),
        )

    def is_timed(self, skewed: Collection[FaultTarget]) -> bool:
        """Whether its time is right: what a process does to itself it tells by its own clock.

        Args:
            skewed: whose clocks were made wrong.
        """
        if self.due_by != "place" and self.kind != "flip":
            return True
        tellers = {"keeper"} if self.target == "keeper" else {"member", "spare"}
        return tellers.isdisjoint(skewed)

    def is_borne(self, notice: NoticeTimes) -> bool:
        """Whether it lasts so briefly that nobody is given up for it.

        Args:
            notice: how soon the run does that.
        """
        waits = self.kind == "partition" or (self.kind == "stop" and self.target == "keeper")
        return waits and self.last_s is not None and not notice.is_felt(self.last_s)

    @property
    def outcome(self) -> Outcome:
        """What became of it, in a word."""
        if self.undone is not None:
            return Outcome.FAILED
        if self.victim is not None:
            return Outcome.FELL
        if self.is_missed:
            return Outcome.NOT_REACHED
        return Outcome.NOT_DUE if self.at_s is None else Outcome.NOBODY

    @property
    def told(self) -> str:
        """On whom it fell, or why on nobody, for a person."""
        if self.undone is not None:
            return self.undone if self.victim is None else f"{self.victim}; {self.undone}"
        return self.victim or self._told_of_none

    @property
    def _told_of_none(self) -> str:
        if self.outcome is Outcome.NOT_REACHED and self.due_by != "place" and self.kind != "flip":
            return _TOLD_OF_UNFELT
        of_flip = _TOLD_OF_FLIP if self.kind == "flip" else {}
        return of_flip.get(self.outcome, _TOLD[self.outcome])


def _find_last_s(fault: FaultConfig) -> float | None:
    """Return how long a fault lasts; None: what it ends is gone."""
    match fault.kind:
        case "kill":
            return None
        case "stop":
            return fault.resume_after_s
        case "drop_node":
            return fault.back_after_s
        case "flip":
            return 0.0
        case _:
            return fault.last_s


@dataclass(frozen=True)
class SparesSeen:
    """What was seen of a run's spares, from which the seconds of a plan count.

    Attributes:
        wanted: how many there were to be.
        most: how many were warm at most, while it trained; None: it was never seen to train.
        were_all: whether all were, at some time.
    """

    wanted: int
    most: int | None
    were_all: bool


def due_by(planned: PlannedFault) -> DueBy:
    """Return what says when a fault is due."""
    if planned.is_drawn:
        return "draw"
    if planned.at_s is not None:
        return "time"
    return "place" if planned.is_ordered else "step"


def find_missing(
    faults: Sequence[FallenFault],
    spares: SparesSeen | None,
    events: Sequence[Mapping[str, Any]],
    *,
    is_done: bool,
) -> list[str]:
    """Say of each fault that did not do what the plan wants why; nothing of those that chance has.

    A fault that was drawn may find nobody, and may be due after the end, as long as any falls.

    Args:
        faults: all of them.
        spares: what was seen of them; None: nothing is known.
        events: of the run.
        is_done: it did all of its steps; else what is due later is no fault of the plan.
    """
    late = [each for each in faults if each.outcome is Outcome.NOT_DUE]
    by_second = [each for each in late if each.due_by in {"draw", "time"}]
    cold = ""
    if spares is not None and by_second:
        cold = _tell_cold(spares, events, is_done=is_done)
    wrong = [cold] if cold else []
    if not any(each.victim for each in faults):
        change = f": {_EARLIER}" if len(late) == len(faults) and is_done and not cold else ""
        wrong.insert(0, f"no fault fell before it was over{change}")
    explained = by_second if cold else []
    return wrong + [
        _tell(each, spares, events)
        for each in faults
        if each not in explained and _is_missing(each, is_done=is_done)
    ]


def _is_missing(fault: FallenFault, *, is_done: bool) -> bool:
    match fault.outcome:
        case Outcome.FELL:
            return False
        case Outcome.FAILED:
            return True
        case Outcome.NOT_DUE:
            return is_done and fault.due_by != "draw"
        case _:
            return fault.due_by != "draw"


def _tell(
    fault: FallenFault, spares: SparesSeen | None, events: Sequence[Mapping[str, Any]]
) -> str:
    told = f"fault {fault.number}, {fault.what}: {fault.told}"
    if fault.outcome is Outcome.NOT_DUE:
        return f"{told}: {_EARLIER}"
    is_spare = fault.what.endswith(" spare")
    if fault.outcome is not Outcome.NOBODY or not is_spare or spares is None:
        return told
    if spares.most:
        return f"{told}: let it fall when one of the {spares.most} that were is, or have more"
    return (
        f"{told}: none of workers.spares = {spares.wanted} was warm while it trained; "
        f"{_advise(events)}"
    )


def _tell_cold(spares: SparesSeen, events: Sequence[Mapping[str, Any]], *, is_done: bool) -> str:
    """Say why the seconds of a plan never began to count; "" if they did, or it failed before."""
    if spares.were_all or not (is_done or _find_reduced(events)):
        return ""
    if spares.most is None:
        return "it was over before it was seen to train: make the run longer"
    return (
        f"seconds count from when all of workers.spares = {spares.wanted} are warm, and at most "
        f"{spares.most} were: {_advise(events)}"
    )


def _advise(events: Sequence[Mapping[str, Any]]) -> str:
    """Say why spares did not come, and what to change."""
    reduced = _find_reduced(events)
    if not reduced:
        return "make the run longer, as others were still starting, or lower workers.spares"
    slots, wanted = reduced[-1]["slots"], reduced[-1]["wanted"]
    return (
        f"the cluster has room for {slots} of {wanted} workers; give it room, or lower "
        "workers.spares or workers.resources"
    )


def _find_reduced(events: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [event["data"] for event in events if event["kind"] == "reduced"]


def find_unfelt_fills(
    faults: Sequence[FallenFault],
    events: Sequence[Mapping[str, Any]],
    skewed: Collection[FaultTarget],
) -> list[int]:
    """Return the numbers of faults that filled the record's disk when nothing was to be written.

    Args:
        faults: all of them.
        events: of the run: the coordinator tells when it finds no room, and when it does again.
        skewed: whose clocks were made wrong; by the coordinator's it can't be told.
    """
    if "coordinator" in skewed:
        return []
    full_s: list[tuple[float, float]] = []
    for event in events:
        if event["kind"] == "record_unwritable":
            full_s.append((event["at_s"], float("inf")))
        elif event["kind"] == "record_writable" and full_s:
            full_s[-1] = (full_s[-1][0], event["at_s"])
        elif event["kind"] in {"coordinator_restarted", "submitted"}:  # the one before may have
            full_s.append((event["at_s"] - _BACK_WITHIN_S, event["at_s"]))
    return [
        each.number
        for each in faults
        if each.kind == "fill_disk" and each.at_s is not None and each.victim is not None
        if not any(_overlap(each.at_s, each.last_s, span) for span in full_s)
    ]


def _overlap(at_s: float, last_s: float | None, span_s: tuple[float, float]) -> bool:
    until_s = float("inf") if last_s is None else at_s + last_s + _ABOUT_S
    return span_s[0] <= until_s and at_s - _ABOUT_S <= span_s[1]


def count_outcomes(faults: Sequence[FallenFault]) -> str:
    """Return how many fell, and what became of the others."""
    num_fell = sum(each.outcome is Outcome.FELL for each in faults)
    others: list[str] = []
    for outcome in _TOLD:
        counts = Counter(each.told for each in faults if each.outcome is outcome)
        others += [f"of {count} {told}" for told, count in counts.items()]
    return "; ".join([f"{num_fell} of {len(faults)} faults fell", *others])
