"""Have a run's faults fall, each once it is due and it is known on whom.

Whoever does it by itself, at a place that it comes to, is not waited for here.

Process: driver.  Thread: main.  Blocks: never.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from trainflow.clock import Clock
from trainflow.coordination.chaos.fallen import FallenFault
from trainflow.coordination.chaos.faults import FAULTS
from trainflow.coordination.chaos.run_view import RunView
from trainflow.coordination.chaos.scene import Scene, Victim
from trainflow.coordination.chaos.schedule import PlannedFault, choose_worker
from trainflow.coordination.run_state import RunState

# Who has which rank is known later: to a new coordinator, or once those that are lost are given.
_UNSETTLED = (RunState.PENDING, RunState.RECOVERING, RunState.WAITING)
_ON_NO_PROCESS = ("hang_store", "fill_disk")


@dataclass(frozen=True)
class _Sought:
    """A fault that was due, and found nobody.

    Attributes:
        planned: it.
        since_s: CLOCK_MONOTONIC of when, for the first time.
        found: what is to be told if that stays so.
    """

    planned: PlannedFault
    since_s: float
    found: FallenFault


class Falling:
    """The faults that wait, and whom they fall on.

    Attributes:
        is_warm: the run has trained with all of its spares standing by, from when on seconds count.
    """

    def __init__(
        self,
        faults: Sequence[PlannedFault],
        num_spares: int,
        clock: Clock,
        note: Callable[[PlannedFault, FallenFault], None],
    ):
        """Have nothing fall yet.

        Args:
            faults: all of the run's.
            num_spares: that it is to have.
            clock: tells what is due.
            note: called with each as soon as it is known what became of it.
        """
        self._waiting = [each for each in faults if not each.is_ordered]
        self._num_spares = num_spares
        self._clock = clock
        self._note = note
        self._warm_at_s: float | None = None
        self._sought: dict[int, _Sought] = {}

    @property
    def is_warm(self) -> bool:
        """Whether seconds count yet."""
        return self._warm_at_s is not None

    def look(self, scene: Scene) -> None:
        """Have fall what is due; called again and again while the run isn't over."""
        if self._warm_at_s is None and scene.view.is_warm(self._num_spares):
            self._warm_at_s = self._clock.monotonic_s()
        for planned in [each for each in self._waiting if self._is_due(each, scene.view)]:
            self._try(planned, scene)

    def close(self) -> None:
        """The run is over: who was still sought is not there."""
        for sought in self._sought.values():
            self._note(sought.planned, sought.found)
        self._waiting.clear()
        self._sought.clear()

    def _is_due(self, planned: PlannedFault, view: RunView) -> bool:
        if planned.at_step is not None:
            return view.status.get("step", 0) >= planned.at_step
        assert planned.at_s is not None, "a plan says one of the two"
        if self._warm_at_s is None:
            return False
        return self._clock.monotonic_s() >= self._warm_at_s + planned.at_s

    def _try(self, planned: PlannedFault, scene: Scene) -> None:
        """Have a fault fall, unless it isn't known yet on whom."""
        now_s, seen = self._clock.monotonic_s(), scene.view.status
        asked_at_s = scene.view.asked_at_s
        told = replace(FallenFault.of(planned), at_s=self._clock.unix_s(), after_step=seen["step"])
        victim = None
        if seen["state"] != RunState.PENDING or not _is_on_worker(planned):
            fault = FAULTS[planned.fault.kind]
            victim = scene.attempt(planned.number, partial(fault.fall, planned, scene))
        fallen = replace(_on(told, victim), undone=scene.undone.get(planned.number))
        is_done = victim is not None or fallen.undone is not None
        sought = self._sought.setdefault(planned.number, _Sought(planned, now_s, fallen))
        is_asked = asked_at_s > sought.since_s
        if is_done or (is_asked and _is_known(planned, scene.view, seen["state"])):
            del self._sought[planned.number]
            self._waiting.remove(planned)
            self._note(planned, fallen)


def _is_on_worker(planned: PlannedFault) -> bool:
    """Whether a fault falls on a worker, or on the node or the Keeper of one."""
    fault = planned.fault
    return fault.target != "coordinator" and fault.kind not in _ON_NO_PROCESS


def _is_known(planned: PlannedFault, view: RunView, state_before: str) -> bool:
    """Whether the run knows who is there; not while it has yet to find that somebody has died."""
    is_on_worker = _is_on_worker(planned) and planned.fault.kind != "flip"
    if is_on_worker and choose_worker(planned, view.workers) is not None:
        return False
    return {state_before, view.status["state"]}.isdisjoint(_UNSETTLED)


def _on(told: FallenFault, victim: Victim | None) -> FallenFault:
    if victim is None:
        return told
    place = {each: victim.worker.get(each) for each in ("worker_id", "host", "node_id")}
    return replace(told, victim=victim.name, **place)
