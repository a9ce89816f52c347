"""Which faults fall when, drawn from a plan; and whom one falls on. Pure: the same seed, the same.

Whom is drawn too, as a number between 0 and 1, and becomes a process only when the fault falls:
among those that are there then.
"""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count, takewhile
from typing import Any

from trainflow.config.chaos_plan import ChaosPlan, FaultConfig, FaultPhase, ScheduledFault

_ROUNDING = 1e-9
_WITHOUT_PROCESS = ("hang_store", "fill_disk")

WorkerRow = Mapping[str, Any]
"""A worker as `Coordinator.workers` describes it."""


@dataclass(frozen=True)
class PlannedFault:
    """One fault that is to fall.

    Attributes:
        number: from 1, in the order of drawing.
        fault: what is done, and to whom.
        pick: in [0, 1): which of those that it may fall on.
        at_s: when, in seconds after all workers were warm; None if a step says it.
        at_step: the step that says it.
        phase: place in that step; None: once it is committed, or of a flip in it.
        is_ordered: the rank does it by itself.
        is_drawn: chance has it fall, and the plan lists it nowhere.
    """

    number: int
    fault: FaultConfig
    pick: float
    at_s: float | None = None
    at_step: int | None = None
    phase: FaultPhase | None = None
    is_ordered: bool = False
    is_drawn: bool = False

    @property
    def silences_s(self) -> float:
        """For how long the coordinator answers nobody by it, though it lives; 0 of most."""
        is_stop = self.fault.kind == "stop" and self.fault.target == "coordinator"
        return (self.fault.resume_after_s or 0.0) if is_stop else 0.0

    @property
    def what(self) -> str:
        """What is done to whom, for a person."""
        fault = self.fault
        if fault.kind in _WITHOUT_PROCESS:
            return fault.kind
        place = fault.target if fault.rank is None else f"rank {fault.rank}"
        phase = "" if self.phase is None else f" in {self.phase}"
        return f"{fault.kind} {place}{phase}"


def draw_faults(plan: ChaosPlan) -> tuple[PlannedFault, ...]:
    """Return every fault of a plan: first those that are drawn, by time, then those listed."""
    rng = random.Random(plan.seed)
    weights = [each.weight for each in plan.mix]
    drawn = [(at_s, rng.choices(plan.mix, weights)[0], rng.random()) for at_s in _times(plan)]
    faults = [
        PlannedFault(number, fault, pick, at_s, is_drawn=True)
        for number, (at_s, fault, pick) in enumerate(drawn, start=1)
    ]
    return (
        *faults,
        *(
            _list_fault(number, fault, rng.random())
            for number, fault in enumerate(plan.schedule, start=1 + len(faults))
        ),
    )


def _times(plan: ChaosPlan) -> list[float]:
    for_s, every_s = plan.for_s, plan.every_s
    if for_s is None or every_s is None:
        return []
    until_s = for_s + _ROUNDING * every_s  # .3 is less than three times .1
    return list(takewhile(lambda at_s: at_s <= until_s, (every_s * n for n in count(1))))


def _list_fault(number: int, fault: ScheduledFault, pick: float) -> PlannedFault:
    return PlannedFault(
        number,
        fault,
        pick,
        at_s=fault.at_s,
        at_step=fault.at_step,
        phase=fault.phase,
        is_ordered=fault.is_ordered,
    )


def choose_worker(planned: PlannedFault, workers: Sequence[WorkerRow]) -> WorkerRow | None:
    """Return the member or spare that a fault falls on; None if there is none of that sort.

    A fault that falls on a node, or on a node's Keeper, falls on that of a member.
    """
    wanted = "spare" if planned.fault.target == "spare" else "member"
    rank = planned.fault.rank
    there = [
        row
        for row in workers
        if row["state"] == wanted
        and row["pid"] is not None
        and row["node_id"] is not None
        and rank in {None, row["rank"]}
    ]
    return there[int(planned.pick * len(there))] if there else None
