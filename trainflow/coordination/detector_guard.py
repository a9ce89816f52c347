"""Let no detector that fails stop a run, and nobody believe that it still looks.

Process: coordinator.  Thread: its event loop.  Fails: never, whatever the detectors do.
"""

import logging
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, TypeVar

from trainflow.clock import Clock
from trainflow.computation.reports import StepReport
from trainflow.coordination.background import Background
from trainflow.coordination.old_events import recall
from trainflow.coordination.run_record import RunRecord
from trainflow.monitoring.detectors import DUTIES, Detector

logger = logging.getLogger(__name__)

Act = Callable[[], Coroutine[Any, Any, None]]
Answer = TypeVar("Answer")

OFF, ON = "detector_off", "detector_on"

# What follows the record is left out by the record itself.
_FOLLOWERS = {
    "AnomalyWatch": Detector.ANOMALIES,
    "RunMetrics": Detector.METRICS,
    "RunMetrics.tick": Detector.METRICS,
    "GoodputWatch": Detector.GOODPUT,
    "GoodputWatch.tick": Detector.GOODPUT,
}


class DetectorGuard:
    """Calls detectors. One that raises is told of, once, and so is that it looks again.

    A new coordinator begins with all of them.

    Attributes:
        clock: by which one counts as well again.
    """

    def __init__(self, record: RunRecord, background: Background, clock: Clock):
        self._record = record
        self.clock = clock
        self._background = background
        self._off: dict[Detector, str] = {}
        self._failed_at_s: dict[Detector, float] = {}  # the last time
        for detector in _find_off(record):
            self._tell_on(detector, "a new coordinator begins with every detector")
        record.follow(self)

    def describe(self) -> list[dict[str, Any]]:
        """Return which detectors are off, as JSON, and what nobody looks for meanwhile."""
        return [
            {"detector": str(each), "unwatched": DUTIES[each].unwatched, "error": error}
            for each, error in self._off.items()
        ]

    def look(self, detector: Detector, act: Callable[[], object]) -> None:
        """Have a detector look, unless it is off for good."""
        self.ask(detector, act, None)

    def ask(self, detector: Detector, act: Callable[[], Answer], otherwise: Answer) -> Answer:
        """Return what a detector answers; ``otherwise`` if it fails, or is off for good."""
        if self._is_over(detector):
            return otherwise
        try:
            answer = act()
        except Exception as error:  # noqa: BLE001  a detector that fails stops nothing
            self._turn_off(detector, error)
            return otherwise
        self._on_well(detector)
        return answer

    async def attend(self, detector: Detector, act: Act) -> None:
        """Wait for a detector that takes its time."""
        try:
            await act()
        except Exception as error:  # noqa: BLE001  as above
            self._turn_off(detector, error)
        else:
            self._on_well(detector)

    def start(self, detector: Detector, act: Act) -> None:
        """Have a detector look beside everything else."""
        self._background.start(self.attend(detector, act))

    def background_of(self, detector: Detector) -> Background:
        """Return what runs a detector's own tasks."""
        return Background(partial(self._on_task_failed, detector))

    # As a follower of the record

    def on_event(self, event: Mapping[str, Any]) -> None:
        """One that follows the record is told no more."""
        if event["kind"] == "monitoring_failed":
            detector = _FOLLOWERS.get(event["data"]["follower"])
            if detector is not None:
                self._tell_off(detector, event["text"])

    def on_step(self, report: StepReport) -> None:
        """Steps say nothing of detectors."""

    def _is_over(self, detector: Detector) -> bool:
        return detector in self._off and DUTIES[detector].well_after_s is None

    def _on_task_failed(self, detector: Detector, trace: str) -> None:
        self._tell_off(detector, trace.strip().splitlines()[-1])

    def _turn_off(self, detector: Detector, error: Exception) -> None:
        if detector not in self._off:
            logger.error("the detector of %s failed", detector, exc_info=error)
        self._tell_off(detector, f"{type(error).__name__}: {error}")

    def _tell_off(self, detector: Detector, error: str) -> None:
        self._failed_at_s[detector] = self.clock.monotonic_s()
        if detector in self._off:
            return
        self._off[detector] = error
        duty = DUTIES[detector]
        until = "until there is another coordinator"
        if duty.well_after_s is not None:
            until = "until it succeeds again, which is tried"
        text = f"nobody looks for {duty.unwatched}, {until}: {error}"
        data = {"detector": str(detector), "unwatched": duty.unwatched, "error": error}
        self._record.add_event(OFF, text, **data)

    def _on_well(self, detector: Detector) -> None:
        well_after_s = DUTIES[detector].well_after_s
        if detector not in self._off or well_after_s is None:
            return
        if self.clock.monotonic_s() >= self._failed_at_s[detector] + well_after_s:
            del self._off[detector]
            self._tell_on(detector, "it has succeeded again")

    def _tell_on(self, detector: Detector, why: str) -> None:
        text = f"somebody looks for {DUTIES[detector].unwatched} again: {why}"
        self._record.add_event(ON, text, detector=str(detector))


def _find_off(record: RunRecord) -> list[Detector]:
    """Return those of which an earlier coordinator told that they are off, and not of their end."""
    told: dict[str, None] = {}

    def take(event: Mapping[str, Any]) -> None:
        if event["kind"] == OFF:
            told[event["data"]["detector"]] = None
        elif event["kind"] == ON:
            told.pop(event["data"]["detector"], None)

    recall(record.lasting_events, take)
    return [each for each in Detector if each in told]
