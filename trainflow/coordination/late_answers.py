"""Workers that have yet to answer a coordinator that follows another: what they say in the end.

Process: coordinator.  Thread: its event loop; what takes time is a task.
"""

from collections.abc import Callable, Collection

from trainflow.coordination.background import Background
from trainflow.coordination.messages import Crashed, Finished, Ready, WorkerMessage
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.stop_order import STOPPING
from trainflow.coordination.superior import Superior
from trainflow.coordination.worker_pool import WorkerPool

RETURNED = "its training was over while the run was not"


class LateAnswers:
    """Waits for workers that are starting, or slow. One that hangs is for the detectors."""

    def __init__(
        self,
        pool: WorkerPool,
        record: RunRecord,
        background: Background,
        take: Callable[[str, WorkerMessage], None],
        superior: Superior,
    ):
        """Begin.

        Args:
            pool: the workers.
            record: knows whether they were asked to stop.
            background: runs what waits.
            take: is given what a worker would have told, by its id.
            superior: is told who is lost.
        """
        self._pool = pool
        self._record = record
        self._background = background
        self._take = take
        self._superior = superior

    def wait_for(self, worker_ids: Collection[str]) -> None:
        """Take what these say once they do."""
        for worker_id in worker_ids:
            self._background.start(self._wait(worker_id))

    async def _wait(self, worker_id: str) -> None:
        description = await self._pool.wait_description(worker_id)
        if description is None:
            return
        if description.raised is not None:
            self._take(worker_id, Crashed(description.raised))
            return
        if description.returned:
            if self._record.has(STOPPING):
                self._pool.left.add(worker_id)
            else:
                self._superior.lose([worker_id], RETURNED)
            return
        if description.ready:
            self._take(worker_id, Ready(description))
        if description.standing is not None and description.standing.finished:
            self._take(worker_id, Finished())
