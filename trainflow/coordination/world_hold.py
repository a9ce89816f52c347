"""A world stays as it is where others would begin from an older state than its members hold.

Those who come to sharded state read their part of it in nodes' memory. Where the newest isn't there
(a node has no room for it, say), a change between two steps would undo what is committed, though
nobody has failed. Members on nodes that are to go leave all the same: later more would be lost.

Process: coordinator.  Thread: its event loop.  Blocks: never.
"""

import asyncio
from collections.abc import Callable

from trainflow.clock import Clock
from trainflow.coordination.run_record import RunRecord
from trainflow.epochs import RecoveryPlan
from trainflow.errors import CoordinationError

_HOLD_S = 30.0


class StateBehindError(CoordinationError):
    """A change of the world would undo committed steps."""


class WorldHold:
    """Whether the members are left as they are for now."""

    def __init__(self, record: RunRecord, clock: Clock):
        self._record = record
        self._clock = clock
        self._until_s = 0.0

    @property
    def is_on(self) -> bool:
        """Whether nobody is to come or go between two steps."""
        return self._clock.monotonic_s() < self._until_s

    def require_newest(self, plan: RecoveryPlan, committed_step: int) -> None:
        """Take a plan for an epoch that nobody's loss has led to.

        Raises:
            StateBehindError: it begins before the newest committed step, though no rewind is due.
        """
        goes_back = plan.stored is not None and plan.base.step < committed_step
        if goes_back and self._record.rewinds.pending is None:
            raise StateBehindError(
                f"the world stays as it is for {_HOLD_S:.0f} s: others could only go on from step "
                f"{plan.base.step}, as not all of the state of step {committed_step} is in the "
                "memory of nodes or in storage"
            )

    def begin(self, error: StateBehindError, then: Callable[[], None]) -> None:
        """From now on, for a while; ``then`` is called at its end."""
        self._until_s = self._clock.monotonic_s() + _HOLD_S
        self._record.add_event("world_held", str(error))
        asyncio.get_running_loop().call_later(_HOLD_S, then)
