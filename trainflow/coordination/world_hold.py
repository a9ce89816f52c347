"""A world stays as it is where others would begin from an older state than its members hold.

Those who come to sharded state read their part of it in nodes' memory. Where the newest isn't there
(a node has no room for it, say), other members would have to undo what is committed, or end the
run, though nobody has failed. So the same members go on, and others are tried later: later each
time. Members on nodes that are to go leave all the same, if there is a state to go on from: later
more would be lost.

Process: coordinator.  Thread: its event loop.  Blocks: never.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from trainflow.clock import Clock
from trainflow.coordination.candidacy import Candidacy
from trainflow.coordination.recovery_plan import NoLiveStateError
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.worker_pool import WorkerPool
from trainflow.epochs import EpochSpec, RecoveryPlan
from trainflow.errors import CoordinationError

_HOLD_S = 30.0
_HOLD_AT_MOST_S = 480.0


class StateBehindError(CoordinationError):
    """Other members would undo committed steps, or have no state at all."""


class WorldHold:
    """Whether the members are left as they are for now."""

    def __init__(self, candidacy: Candidacy, pool: WorkerPool, record: RunRecord, clock: Clock):
        self._candidacy = candidacy
        self._pool = pool
        self._record = record
        self._clock = clock
        self._until_s = 0.0
        self._next_s = _HOLD_S
        self._has_state = True

    @property
    def is_on(self) -> bool:
        """Whether nobody is to come or go who hasn't to."""
        return self._clock.monotonic_s() < self._until_s

    def lets_leave(self, members: Sequence[str]) -> bool:
        """Whether members may leave nodes that are unfit."""
        has_to = self._has_state and self._candidacy.are_to_go(members)
        return has_to or not self.is_on

    async def look_at(
        self,
        making: Awaitable[RecoveryPlan],
        spec: EpochSpec,
        committed_step: int,
        find_whole: Callable[[], Sequence[str]],
    ) -> RecoveryPlan:
        """Wait for a plan, and return it.

        Args:
            making: makes it.
            spec: the epoch that it is for.
            committed_step: the newest that was known before.
            find_whole: returns the members before, by rank; none where some are lost.

        Raises:
            StateBehindError: the same members can do better.
            NoLiveStateError: they can't, and there is no state.
        """
        try:
            plan = await making
        except NoLiveStateError as error:
            if not self._could_stay(find_whole(), spec):
                raise
            self._has_state = False
            raise StateBehindError(self._tell("could not go on at all", committed_step)) from error
        members = find_whole()
        goes_back = plan.stored is not None and plan.base.step < committed_step
        is_asked = self._record.rewinds.pending is not None or self._candidacy.are_to_go(members)
        if goes_back and self._could_stay(members, spec) and not is_asked:
            self._has_state = True
            what = f"could only go on from step {plan.base.step}"
            raise StateBehindError(self._tell(what, committed_step))
        if members and members != spec.members:
            self._next_s = _HOLD_S
        return plan

    def begin(self, error: StateBehindError, then: Callable[[], None]) -> None:
        """From now on, for a while; ``then`` is called at its end."""
        hold_s, self._next_s = self._next_s, min(2 * self._next_s, _HOLD_AT_MOST_S)
        self._until_s = self._clock.monotonic_s() + hold_s
        self._record.add_event("world_held", str(error))
        asyncio.get_running_loop().call_later(hold_s, then)

    def _could_stay(self, members: Sequence[str], spec: EpochSpec) -> bool:
        """Whether an epoch has other members than the one before, of whom none is lost."""
        is_whole = bool(members) and set(members) <= self._pool.entries.keys()
        return is_whole and tuple(members) != spec.members

    def _tell(self, what: str, committed_step: int) -> str:
        return (
            f"the world stays as it is for {self._next_s:.0f} s: others {what}, as not all of the "
            f"state of step {committed_step} is in the memory of nodes or in storage"
        )
