"""What a run's events tell of its going back for its loss. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from trainflow.epochs import INITIAL_EPOCH, Version

ASKED, DONE = "rewind", "rewound"
GIVEN_UP, REFUSED = "rewind_given_up", "rewind_refused"
_RESUMED = "resumed"
_UNUSABLE = "checkpoint_unusable"


@dataclass(frozen=True)
class Rewind:
    """A run is to go back.

    Attributes:
        step: whose checkpoint it goes back to, or to an older one if that can't be used.
        position: in the data, after which it goes on from there.
    """

    step: int
    position: int


class RewindHistory:
    """All of a run, over all of its attempts.

    Attributes:
        num_asked: how often it was to go back.
        pending: what is still to be done; None if nothing is.
    """

    def __init__(self) -> None:
        self.num_asked = 0
        self.pending: Rewind | None = None
        self._positions: dict[int, int] = {}
        self._unusable: set[int] = set()  # of those steps

    def take(self, event: Mapping[str, Any]) -> None:
        """Take the next event."""
        kind, data = event["kind"], event["data"]
        if kind == ASKED:
            self.num_asked += 1
            self.pending = Rewind(data["to_step"], data["position"])
        elif kind == DONE:
            self._go_back(data["to_step"], data["position"])
            self.pending = None
        elif kind == GIVEN_UP:
            self.pending = None
        elif kind == _RESUMED and any(each > data["step"] for each in self._positions):
            self._begin_before(data["step"])
        elif kind == _UNUSABLE and data["step"] in self._positions:
            self._unusable.add(data["step"])

    def _go_back(self, step: int, position: int) -> None:
        """What is made in the places of later checkpoints from now on has its own position."""
        self._positions = {s: each for s, each in self._positions.items() if s < step}
        self._positions[step] = position
        self._unusable = {each for each in self._unusable if each < step}

    def _begin_before(self, step: int) -> None:
        """The run goes on from a step before one that it went back to."""
        position = self.find_position(step)
        before = self._positions.get(step, 0) if position is None else position
        self._go_back(step, before)
        if position is None:
            del self._positions[step]

    def position_after(self, base: Version) -> int | None:
        """Return where in the data an epoch goes on that begins from a state; None: as that has it.

        What was read from a checkpoint is told from what ranks have committed by its epoch. A run
        that has gone back to a checkpoint goes on from it at the same place ever after: else it
        would come to the same samples again. So it does from an older one, if that was damaged.
        """
        return self.find_position(base.step) if base.epoch == INITIAL_EPOCH else None

    def find_jump(self, begin: int, last: int) -> int | None:
        """Return the newest step after which steps up to ``last`` have passed over samples.

        Args:
            begin: whose checkpoint they are done from; what comes after it without a break counts.
            last: the last of them.
        """
        return max((each for each in self._positions if begin < each < last), default=None)

    def find_position(self, step: int) -> int | None:
        """Return where the run goes on from the checkpoint of a step; None: as that has it.

        It has gone back to it once or more, or meant to go back to later ones and couldn't read
        them. The furthest counts: what led to any of that is to be passed over.
        """
        meant = {step, *(each for each in self._unusable if each > step)}
        return max((self._positions[s] for s in meant & self._positions.keys()), default=None)
