"""What a run is at a moment, and how it ended. Plain values."""

from dataclasses import dataclass
from enum import StrEnum


class RunState(StrEnum):
    """Where a run is in its life."""

    PENDING = "pending"
    RUNNING = "running"
    RECOVERING = "recovering"
    WAITING = "waiting"
    STOPPING = "stopping"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"

    @property
    def is_terminal(self) -> bool:
        """Whether nothing follows."""
        return self in {RunState.SUCCEEDED, RunState.FAILED, RunState.STOPPED}


@dataclass(frozen=True)
class Ending:
    """How a run ended.

    Attributes:
        state: a terminal one.
        reason: for a person; holds the traceback if the training function raised.
        exit_code: what the command line leaves with.
    """

    state: RunState
    reason: str
    exit_code: int

    def describe(self) -> dict[str, str | int]:
        """Return why it ended, as JSON."""
        return {"reason": self.reason, "exit_code": self.exit_code}


SUCCESS = Ending(RunState.SUCCEEDED, "every step is done", 0)
STOPPED = Ending(RunState.STOPPED, "stopped on request", 7)


def tell_stopped(without: str) -> Ending:
    """Return the ending of a run that was asked to stop, and why it has no last checkpoint."""
    reason = f"{STOPPED.reason}, without a checkpoint of its last step: {without}"
    return Ending(STOPPED.state, reason, STOPPED.exit_code)


def tell_no_state(why: str, *, stops: bool) -> Ending:
    """Return the ending of a run whose state nobody holds any more: of one that was to stop?"""
    return tell_stopped(why) if stops else Ending(RunState.FAILED, why, 1)


LOST = "lost"
"""What became of an attempt that its cluster's death has ended; no state that a run tells."""

LOST_REASON = "its cluster died before it had ended"
RESUMING = "resuming"
"""Kind of the event that the service writes once nobody else does: nothing was heard of the job."""


@dataclass
class Loss:
    """A recovery under way, for the record.

    Attributes:
        noticed_at_s: CLOCK_REALTIME when the first of its causes was heard of.
        causes: in words.
        asked_at_s: when the members were asked to form the epoch that ended it.
        planned_at_s: before which none was released into it.
        begun_at_s: when they were released into it.
        freed_s: longest time a member needed to leave its old group.
        connected_s: until it was connected to the new one.
        parked_s: until its training thread stood still.
        healed_at_s: when the last member held the base version.
        awaited: ranks that haven't committed a step since.
    """

    noticed_at_s: float
    causes: list[str]
    asked_at_s: float = 0.0
    planned_at_s: float = 0.0
    begun_at_s: float = 0.0
    freed_s: float = 0.0
    connected_s: float = 0.0
    parked_s: float = 0.0
    healed_at_s: float = 0.0
    base_step: int = 0
    steps_lost: int = 0
    awaited: frozenset[int] = frozenset()
