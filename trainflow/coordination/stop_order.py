"""The order to stop a run, from being given to being carried out.

A coordinator may be given it before it has found the workers of the one before. Ended there and
then, the run would leave them behind, training with nobody over them. So the order waits for them;
it is on record, and would be carried out by the next coordinator too.

Members stop with a commit, whose checkpoint is the run's last. One that dies before it takes the
others' step with it: they recover as at any other time, and stop with the commit that follows.

Process: coordinator.  Thread: its event loop.
"""

import asyncio
from dataclasses import dataclass, field

from trainflow.coordination.background import Background
from trainflow.coordination.changes import Changes
from trainflow.coordination.epoch_control import EpochControl
from trainflow.coordination.hang_response import HangResponse
from trainflow.coordination.kept_state import KeptState
from trainflow.coordination.losses import Losses
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.run_state import STOPPED, RunState
from trainflow.coordination.superior import Superior
from trainflow.coordination.timeout_budget import START_LIMIT_S
from trainflow.coordination.worker_pool import WorkerPool

STOPPING = "stopping"
_GIVEN_UP = "stop_given_up"

_LOOK_EVERY_S = 0.2


@dataclass
class StopOrder:
    """One run's order to stop.

    Attributes:
        record: keeps it.
        pool: knows who trains.
        control: passes it on to them.
        kept: knows which checkpoint is on its way.
        response: knows how long they may take.
        losses: replaces nobody from then on, unless there are too few to come to a commit.
        background: carries it out.
        superior: is told when that is done.
    """

    record: RunRecord
    pool: WorkerPool
    control: EpochControl
    kept: KeptState
    response: HangResponse
    losses: Losses
    background: Background
    superior: Superior
    _is_permitted: bool = field(default=False, init=False)
    _is_begun: bool = field(default=False, init=False)
    _followed: set[str] = field(default_factory=set[str], init=False)
    _changes: Changes = field(default_factory=Changes, init=False)

    @property
    def is_given(self) -> bool:
        """Whether this coordinator or one before was given it."""
        return self.record.has(STOPPING)

    def give(self) -> None:
        """Give it; a repeat changes nothing."""
        if not self.is_given:
            self.record.add_event(STOPPING, "asked to stop at the next step boundary")
        self._begin()

    def permit(self) -> None:
        """It is known who would have to stop; begin, if it is given, or once it is."""
        self._is_permitted = True
        self._begin()

    def _begin(self) -> None:
        if not self.is_given:
            return
        self.losses.replaces = False
        if self._is_permitted and not self._is_begun:
            self._is_begun = True
            self.background.start(self._carry_out(has_members=self.control.request_stop()))

    async def _carry_out(self, *, has_members: bool) -> None:
        """Wait for the commit with which all stop, and for its checkpoint.

        Without that commit nobody makes one. What else is on its way is waited for when the run is
        closed.
        """
        if has_members and await self._wait_left():
            await self.kept.wait_stored()
        self.superior.end(STOPPED)

    async def _wait_left(self) -> bool:
        """Wait until all members that live have left their steps; False if that takes too long.

        Who hangs meanwhile is found. Each epoch, and each recovery, may take its time.
        """
        now_s = asyncio.get_running_loop().time
        stage, since_s = None, now_s()
        while not self.pool.have_left(self.control.members):
            if stage != (self.control.epoch, self.control.state):
                stage, since_s = (self.control.epoch, self.control.state), now_s()
            for member in set(self.control.members) - self._followed:
                self._followed.add(member)
                self.background.start(self._follow(member))
            if now_s() - since_s > self._patience_s:
                text = (
                    f"members did not stop within {self._patience_s:.0f} s of being "
                    f"{self.control.state}: the run ends without a checkpoint of its last step"
                )
                self.record.add_event(_GIVEN_UP, text, step=self.record.last_step)
                return False
            await self._changes.wait(_LOOK_EVERY_S)
        return True

    async def _follow(self, member: str) -> None:
        await self.pool.wait_left(member)
        self._changes.tell()

    @property
    def _patience_s(self) -> float:
        patience_s = self.response.stop_patience_s
        is_recovering = self.control.state is RunState.RECOVERING
        return max(patience_s, START_LIMIT_S) if is_recovering else patience_s
