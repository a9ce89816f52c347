"""The order to stop a run, from being given to being carried out.

A coordinator may be given it before it has found the workers of the one before. Ended there and
then, the run would leave them behind, training with nobody over them. So the order waits for them;
it is on record, and would be carried out by the next coordinator too.

Members stop with a commit, whose checkpoint is the run's last. One that dies before all have copied
what that takes keeps the others from stopping: they recover as at any other time, and stop with the
commit that follows.

Process: coordinator.  Thread: its event loop.
"""

import asyncio
from dataclasses import dataclass, field

from trainflow.computation.reports import AllStop
from trainflow.coordination.background import Background
from trainflow.coordination.changes import Changes
from trainflow.coordination.epoch_control import EpochControl
from trainflow.coordination.hang_response import HangResponse
from trainflow.coordination.kept_state import KeptState
from trainflow.coordination.losses import Losses
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.run_state import STOPPED, RunState, tell_stopped
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
    _heard: set[str] = field(default_factory=set[str], init=False)
    _last_step: int | None = field(default=None, init=False)
    _changes: Changes = field(default_factory=Changes, init=False)

    def __post_init__(self) -> None:
        """Start nobody, if it was given to an earlier coordinator; it may be long until it acts."""
        self.losses.replaces = not self.is_given

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

    def on_all_stop(self, heard: AllStop) -> None:
        """A member tells that all of its epoch stop: nothing that befalls them now matters."""
        if heard.epoch == self.control.epoch:
            self._last_step = heard.step
            self.pool.left.update(self.control.members)
            self.control.leave_epoch()

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
        trouble = await self._wait_stopped() if has_members else ""
        if self.pool.have_stopped(self.control.members):
            is_stored = await self.kept.wait_stored(self._last_step)
            trouble = "" if is_stored else "it was not made"
        elif not self._loses_steps():
            trouble = ""
        ending = tell_stopped(trouble) if trouble else STOPPED
        if trouble:
            self.record.add_event(_GIVEN_UP, ending.reason, step=self.record.last_step)
        self.superior.end(ending)

    async def _wait_stopped(self) -> str:
        """Wait until all members that live have left their steps; returns why they haven't.

        Who hangs meanwhile is found. Each epoch, and each recovery, may take its time.
        """
        now_s = asyncio.get_running_loop().time
        last, since_s, patience_s = None, now_s(), 0.0
        while self.control.is_open and not self._have_all_left():
            stage = (self.control.epoch, self.control.state)
            if stage != last:
                last, since_s, patience_s = stage, now_s(), 0.0
            for member in set(self.control.members) - self._followed:
                self._followed.add(member)
                self.background.start(self._follow(member))
            if self.control.all_finished():
                since_s = now_s()  # with the last step's checkpoint it ends by itself
            patience_s = max(patience_s, self._patience_s)
            if now_s() - since_s > patience_s or self._has_nothing_to_wait_for():
                return f"its members have been {self.control.state} for {now_s() - since_s:.0f} s"
            await self._changes.wait(_LOOK_EVERY_S)
        return ""

    async def _follow(self, member: str) -> None:
        await self.pool.wait_left(member)
        self._heard.add(member)
        self._changes.tell()

    def _have_all_left(self) -> bool:
        members = self.control.members
        living = self.pool.entries.keys() & set(members)
        return self.pool.have_stopped(members) and living <= self._heard

    def _has_nothing_to_wait_for(self) -> bool:
        """Whether a recovery would make no checkpoint."""
        return self.kept.checkpoints.url is None and not self.control.is_whole

    def _loses_steps(self) -> bool:
        """Whether a run that trained ends without a checkpoint that is to be had otherwise."""
        checkpoints = self.kept.checkpoints
        newest = checkpoints.newest
        steps = (0 if newest is None else newest.step, checkpoints.last_coming or 0)
        is_over = self.control.all_finished() or not self.control.is_open
        has_steps = checkpoints.url is not None and self.record.last_step > max(steps)
        return has_steps and self.control.epoch is not None and not is_over

    @property
    def _patience_s(self) -> float:
        """How long the stage of things may last: as a start, where somebody starts or heals."""
        nodes, state = self.pool.bundle_nodes(), self.control.state
        starts = any(
            entry.description is None and entry.bundle in nodes
            for entry in self.pool.entries.values()
        )
        heals = not self.control.is_whole or self.record.fresh_epoch is not None
        takes_a_start = starts if state is RunState.WAITING else heals
        has_stopped = self.pool.have_stopped(self.control.members)
        at_least_s = START_LIMIT_S if takes_a_start and not has_stopped else 0.0
        return max(self.response.stop_patience_s, at_least_s)
