"""What a run's events tell of earlier hangs that the limits follow from. Pure."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from trainflow.coordination.hang_detection import HangKind


class HangHistory:
    """In how many epochs somebody hung in vain, and how many starts in a row ended as hung.

    A step that is merely slow looks like a hang, and comes again after it: only a commit tells that
    the limits were right.
    """

    def __init__(self) -> None:
        self._after_step = -1
        self._epochs: set[str] = set()
        self._starts = Counter[str]()  # by slot

    def take(self, event: Mapping[str, Any]) -> None:
        """Take the next event."""
        kind, data = event["kind"], event["data"]
        stands_in = data.get("stands_in") if kind == "hang" else None
        if stands_in == HangKind.START:
            self._starts[_slot_of(data["worker"])] += 1
        elif kind == "warm":
            self._starts.pop(_slot_of(data["worker"]), None)
        elif kind == "epoch":  # who began with the run was waited for, and isn't told to be warm
            for member in data.get("members", ()):
                self._starts.pop(_slot_of(member), None)
        is_in_vain = kind == "deadlock" or stands_in == HangKind.STEP
        if is_in_vain and "after_step" in data:  # else it is of an earlier release
            self._take_epoch(data["after_step"], data["epoch"])

    def _take_epoch(self, after_step: int, epoch: str) -> None:
        if after_step != self._after_step:
            self._after_step, self._epochs = after_step, set()
        self._epochs.add(epoch)

    def num_epochs(self, last_step: int) -> int:
        """Return in how many epochs somebody hung in a step, or all waited, since ``last_step``."""
        return len(self._epochs) if last_step == self._after_step else 0

    @property
    def num_starts(self) -> int:
        """How many starts in a row were ended as hung in one worker's place; the most of any."""
        return max(self._starts.values(), default=0)


def _slot_of(worker_id: str) -> str:
    return worker_id.partition("-")[0]
