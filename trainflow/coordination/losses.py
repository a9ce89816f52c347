"""A worker is lost: it is counted, others take its rank, and another worker takes its bundle.

Process: coordinator.  Thread: its event loop; what takes time is a task.
"""

import asyncio
from collections.abc import Sequence

from trainflow.coordination.background import Background
from trainflow.coordination.epoch_control import EpochControl
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.run_state import Ending, RunState
from trainflow.coordination.staffing import Staffing
from trainflow.coordination.superior import Superior
from trainflow.coordination.worker_pool import WorkerPool

_FIT_AGAIN_AFTER_S = 0.5


class Losses:
    """Who goes, and what follows.

    Attributes:
        replaces: others are started for those that are lost; false once the run is to stop, but for
            those without whom it can't come to the commit with which it does.
    """

    def __init__(
        self,
        pool: WorkerPool,
        record: RunRecord,
        control: EpochControl,
        staffing: Staffing,
        background: Background,
        superior: Superior,
    ):
        self.replaces = True
        self._is_over = False
        self._pool = pool
        self._record = record
        self._control = control
        self._staffing = staffing
        self._background = background
        self._superior = superior

    def lose(self, worker_ids: Sequence[str], cause: str) -> None:
        """Get rid of workers that are gone or useless, and start others in their places."""
        for each in self._pool.left.intersection(worker_ids):
            self._pool.drop(each)  # its work is done
        known = [self._pool.entries[each] for each in worker_ids if each in self._pool.entries]
        incarnation = self._control.incarnation
        # Before an epoch is taken over, only the record knows who is a member.
        rank_of = self._control.rank_of if self._control.members else self._record.losses.rank_of
        members = self._control.members or self._record.losses.members
        members_live = any(each in self._pool.entries for each in members)
        texts = [
            self._staffing.drop(
                entry, cause, rank_of(entry.worker_id), incarnation, members_live=members_live
            )
            for entry in known
        ]
        if texts and self.spend(texts[-1]):
            return
        for entry, text in zip(known, texts, strict=True):
            self._control.on_gone(entry, text)
            self.replace(entry.bundle)

    def spend(self, text: str) -> bool:
        """Judge a failure that is recorded; ends the run, and returns True, if it was too many."""
        limit = self._staffing.find_overspent()
        if limit is not None:
            self._superior.end(Ending(RunState.FAILED, f"more than {limit}; last: {text}", 1))
        return limit is not None

    def replace(self, bundle: int) -> None:
        """Start a worker in a bundle that has none, when that is of use and does no harm."""
        self._background.start(self._replace(bundle))

    def end(self) -> None:
        """Start nobody any more."""
        self.replaces, self._is_over = False, True

    async def _replace(self, bundle: int) -> None:
        """Wait until training goes on, so as not to compete with its recovery, and for the node."""
        await self._control.wait_settled()
        await self._staffing.pause(bundle)
        while self._is_there(bundle) and not self._may_start(bundle):  # noqa: ASYNC110  of Ray
            await asyncio.sleep(_FIT_AGAIN_AFTER_S)
        if self._is_there(bundle):
            await self._staffing.respawn(bundle, self._control.incarnation)

    def _is_there(self, bundle: int) -> bool:
        """Whether a worker of this bundle may have to be replaced at all."""
        return not self._is_over and bundle in self._pool.bundles.numbers()

    def _may_start(self, bundle: int) -> bool:
        is_wanted = self.replaces or self._control.state is RunState.WAITING
        return is_wanted and self._staffing.may_start(bundle)
