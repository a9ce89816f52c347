"""Whether the rank was named on which a bit flipped, or could not be. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from trainflow.computation.reports import DIFFERENCE
from trainflow.epochs import EpochId

Line = Mapping[str, Any]

DIFFERING = (DIFFERENCE, "its gradients are wrong")
"""What failures say that follow from differing gradients."""


@dataclass(frozen=True)
class Flip:
    """A bit that was flipped in one rank's summed gradients.

    Attributes:
        rank: whose.
        step: in which step.
        epoch: in which try of it.
        at_s: CLOCK_REALTIME.
        world_size: how many ranks there were.
    """

    rank: int
    step: int
    epoch: tuple[int, int]
    at_s: float
    world_size: int


class Naming(StrEnum):
    """What became of the naming of a rank on which a bit flipped.

    Attributes:
        GIVEN: an event of that epoch has the rank.
        MISSING: none has, and nothing excuses that.
        NO_MAJORITY: of two ranks, or where half of them have flipped bits, nobody can tell.
        NOT_COMPARED: something else ended the epoch.
    """

    GIVEN = "named with their rank"
    MISSING = "not named"
    NO_MAJORITY = "where no majority tells on which rank"
    NOT_COMPARED = "in steps that another failure ended before their sums were compared"

    @property
    def is_excused(self) -> bool:
        """Whether nobody was to be named."""
        return self in {Naming.NO_MAJORITY, Naming.NOT_COMPARED}


def find_naming(
    flip: Flip,
    flips: Sequence[Flip],
    events: Sequence[Line],
    steps: Sequence[Line],
    *,
    has_wrong_clocks: bool,
) -> Naming:
    """Return whether a flip's rank was named.

    Args:
        flip: it.
        flips: all of the run.
        events: lines of its ``events.jsonl``.
        steps: lines of its ``metrics.jsonl``.
        has_wrong_clocks: times tell nothing.
    """
    epoch = str(EpochId(*flip.epoch))
    told = [
        e["data"] for e in events if e["kind"] == "ranks_differ" and e["data"]["epoch"] == epoch
    ]
    if any(_names(each, flip) for each in told):
        return Naming.GIVEN
    wrong = {each.rank for each in flips if (each.step, each.epoch) == (flip.step, flip.epoch)}
    if 2 * (flip.world_size - len(wrong)) <= flip.world_size:
        return Naming.NO_MAJORITY
    again_s = [line["committed_at_s"] for line in steps if line["step"] >= flip.step]
    until_s = min((at_s for at_s in again_s if at_s > flip.at_s), default=float("inf"))
    is_ended = any(
        _ends(event, epoch) and (has_wrong_clocks or flip.at_s <= event["at_s"] <= until_s)
        for event in events
    )
    return Naming.NOT_COMPARED if is_ended and not told else Naming.MISSING


def _names(told: Line, flip: Flip) -> bool:
    return told["step"] == flip.step and flip.rank in told["ranks"] and not told["no_majority"]


def _ends(event: Line, epoch: str) -> bool:
    """Whether an event tells of what ends an epoch, and is no word of differing gradients."""
    if event["kind"] == "coordinator_restarted":
        return True
    if event["kind"] != "failure" or any(text in event["text"] for text in DIFFERING):
        return False
    data = event["data"]
    return data.get("epoch") == epoch or data.get("rank") is not None
