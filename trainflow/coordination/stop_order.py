"""The order to stop a run, from being given to being carried out.

A coordinator may be given it before it has found the workers of the one before. Ended there and
then, the run would leave them behind, training with nobody over them. So the order waits for them;
it is on record, and would be carried out by the next coordinator too.

Process: coordinator.  Thread: its event loop.
"""

from dataclasses import dataclass, field

from trainflow.coordination.background import Background
from trainflow.coordination.epoch_control import EpochControl
from trainflow.coordination.hang_response import HangResponse
from trainflow.coordination.kept_state import KeptState
from trainflow.coordination.losses import Losses
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.run_state import STOPPED
from trainflow.coordination.superior import Superior
from trainflow.coordination.worker_pool import WorkerPool

_STOPPING = "stopping"


@dataclass
class StopOrder:
    """One run's order to stop.

    Attributes:
        record: keeps it.
        pool: knows who trains.
        control: passes it on to them.
        kept: knows which checkpoint is on its way.
        response: knows how long they may take.
        losses: replaces nobody from then on.
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

    @property
    def is_given(self) -> bool:
        """Whether this coordinator or one before was given it."""
        return self.record.has(_STOPPING)

    def give(self) -> None:
        """Give it; a repeat changes nothing."""
        if not self.is_given:
            self.record.add_event(_STOPPING, "asked to stop at the next step boundary")
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
            self.background.start(self._carry_out())

    async def _carry_out(self) -> None:
        """Ask for a stop with the next commit, and wait for it: who hangs meanwhile is found.

        Without that commit nobody makes its checkpoint. What else is on its way is waited for when
        the run is closed.
        """
        if self.control.request_stop():
            patience_s = self.response.stop_patience_s
            if await self.pool.wait_trained(self.control.members, patience_s):
                await self.kept.wait_stored()
        self.superior.end(STOPPED)
