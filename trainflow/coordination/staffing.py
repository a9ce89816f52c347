"""Workers that are lost are ended for good, and others take their bundles.

Process: coordinator.  Thread: its event loop.
"""

import asyncio
from collections import Counter
from collections.abc import Sequence

from trainflow.clock import Clock
from trainflow.coordination.failure_budget import FailureBudget
from trainflow.coordination.node_watch import NodeWatch
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.worker_pool import WorkerEntry, WorkerPool

_RESPAWN_AFTER_S = 1.5
_RESPAWN_AT_MOST_AFTER_S = 300.0


class Staffing:
    """Who has been lost, where, and when another may be tried.

    Attributes:
        budget: how many failures the run may have.
    """

    def __init__(
        self,
        pool: WorkerPool,
        nodes: NodeWatch,
        record: RunRecord,
        budget: FailureBudget,
        clock: Clock,
    ):
        self.budget = budget
        self._pool = pool
        self._nodes = nodes
        self._record = record
        self._clock = clock
        self._num_spawned = 0
        self._num_never_ready = Counter[int]()  # by bundle, since one was ready there

    def on_ready(self, bundle: int) -> None:
        """A worker of this bundle is warm: the bundle is in order."""
        self._num_never_ready.pop(bundle, None)

    def drop(self, entry: WorkerEntry, cause: str, rank: int | None, incarnation: int) -> str:
        """Make sure that a worker is dead; returns what happened, in words."""
        worker_id, description = entry.worker_id, entry.description
        pid = None if description is None else description.pid
        text = self._tell(worker_id, cause, rank, pid)
        self._pool.drop(worker_id)
        if description is None:
            self._num_never_ready[entry.bundle] += 1
        else:
            self._nodes.fence(incarnation, description.node_id, worker_id)
        return text

    def tell_missing(self, lineup: Sequence[str]) -> None:
        """Tell of members that went while no coordinator was there to hear of it.

        Args:
            lineup: members by rank of the newest epoch that the workers know of.
        """
        missing = self._record.losses.find_untold(self._pool.entries, lineup)
        for worker_id, rank in missing.items():
            self._tell(worker_id, "it was gone when a new coordinator looked for it", rank, None)

    def _tell(self, worker_id: str, cause: str, rank: int | None, pid: int | None) -> str:
        """Record a worker's loss, once: an earlier coordinator may have died right after that."""
        text = f"lost {worker_id} ({'spare' if rank is None else f'rank {rank}'}): {cause}"
        if not self._record.losses.is_told(worker_id):
            data = {"worker": worker_id, "rank": rank, "pid": pid, "cause": cause}
            self._record.add_event("failure", text, **data)
        return text

    def is_overspent(self) -> bool:
        """Whether the run has had more failures than it may have."""
        return self.budget.is_overspent(self._record.losses.failed_at_s, self._clock.unix_s())

    async def pause(self, bundle: int) -> None:
        """Wait before a bundle gets another worker: the longer, the more have failed there."""
        delay_s = _RESPAWN_AFTER_S * 2 ** min(self._num_never_ready[bundle], 10)
        await asyncio.sleep(min(delay_s, _RESPAWN_AT_MOST_AFTER_S))

    def respawn(self, bundle: int, incarnation: int) -> None:
        """Start another worker in a bundle.

        While no step is committed any worker may begin the training: none is rehearsed, which would
        cost it its fresh state.
        """
        self._num_spawned += 1
        serial = f"{incarnation}.r{self._num_spawned}"
        entry = self._pool.spawn(bundle, serial, rehearse=self._record.last_step > 0)
        self._record.add_event("respawned", f"started {entry.worker_id} as a spare")
