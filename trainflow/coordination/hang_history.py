"""What a run's events tell of earlier hangs that the limits follow from. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from trainflow.coordination.hang_detection import HangKind
from trainflow.epochs import INITIAL_EPOCH

_NO_EPOCH = str(INITIAL_EPOCH)


class HangHistory:
    """In how many epochs somebody hung in vain, and how many starts in a row ended as hung.

    A step that is merely slow looks like a hang, and comes again after it: only a commit tells that
    the limits were right.

    Attributes:
        after_step: the newest step that somebody hung after; -1 if nobody has.
    """

    def __init__(self) -> None:
        self.after_step = -1
        self._epochs: dict[str, bool] = {}  # whether the limit may be what was wrong
        self._newest_event = 0
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
        if "after_step" not in data:  # no hang, or one of an earlier release
            return
        is_slow = kind == "deadlock" or stands_in == HangKind.STEP
        if is_slow or (stands_in == HangKind.STOPPED and data["epoch"] != _NO_EPOCH):
            self._newest_event = event["number"]
            self._take_epoch(data["after_step"], data["epoch"], is_slow=is_slow)

    def _take_epoch(self, after_step: int, epoch: str, *, is_slow: bool) -> None:
        if after_step != self.after_step:
            self.after_step, self._epochs = after_step, {}
        self._epochs[epoch] = self._epochs.get(epoch, False) or is_slow

    def take_step(self, step: int, after_event: int) -> None:
        """A step was committed: if it is beyond where somebody hung, nobody does any more.

        One that is done again, as the run went back, says nothing of that.

        Args:
            step: its number.
            after_event: the number of the newest event then.
        """
        if step > self.after_step and after_event >= self._newest_event:
            self._epochs = {}

    def num_epochs(self, last_step: int) -> int:
        """Return in how many epochs somebody hung in a step, or all waited, since ``last_step``."""
        return sum(self._epochs.values()) if last_step == self.after_step else 0

    @property
    def num_stuck(self) -> int:
        """In how many epochs the run came no further than now, also where a process stood still."""
        return len(self._epochs)

    def count_starts(self, worker_ids: Iterable[str]) -> dict[str, int]:
        """Return how many starts in a row were ended as hung in whose places; of who has any."""
        if not self._starts:  # it is asked with each heartbeat
            return {}
        counts = {each: self._starts[_slot_of(each)] for each in worker_ids}
        return {each: count for each, count in counts.items() if count}


def _slot_of(worker_id: str) -> str:
    return worker_id.partition("-")[0]
