"""Training functions that have raised: whose they are decides what follows.

Process: coordinator.  Thread: its event loop.  Blocks: never.
"""

from collections.abc import Mapping

from trainflow.coordination.death_causes import explain_trace
from trainflow.coordination.epoch_control import EpochControl
from trainflow.coordination.last_words import keep_last_words
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.run_state import Ending, RunState
from trainflow.coordination.superior import Superior
from trainflow.coordination.worker_pool import WorkerPool


class Raised:
    """Hears of them; judges none before it is known who has which rank.

    A worker tells it once, maybe to a coordinator that has yet to find it, and again when it is
    asked how it is.
    """

    def __init__(
        self, pool: WorkerPool, record: RunRecord, control: EpochControl, superior: Superior
    ):
        self._pool = pool
        self._record = record
        self._control = control
        self._superior = superior
        self._early: dict[str, str] | None = {}  # None: ranks are known

    def take(self, worker_id: str, trace: str) -> None:
        """A worker's training function has raised."""
        if self._early is not None:
            self._early[worker_id] = trace
        else:
            self._judge(worker_id, trace)

    def begin(self, told: Mapping[str, str]) -> None:
        """From now on it is known who has which rank: judge those that raised before.

        Args:
            told: what workers have answered that they raised, by id.
        """
        raised = {**(self._early or {}), **told}
        self._early = None
        for worker_id, trace in raised.items():
            self._judge(worker_id, trace)

    def _judge(self, worker_id: str, trace: str) -> None:
        """The job's own code raised: a member's would again on any other worker.

        A spare's trouble may be its node's, and the members train: it is only tried again.
        """
        if worker_id not in self._pool.entries:
            return  # lost before; what it says is about a group that is past
        rank = self._control.rank_of(worker_id)
        what = explain_trace(trace)
        cause = f"it raised: {what}"
        keep_last_words(self._record.directory, worker_id, cause, trace)
        if rank is None and self._record.has("epoch"):
            self._superior.lose([worker_id], cause)
            return
        who = worker_id if rank is None else f"rank {rank} ({worker_id})"
        self._superior.end(Ending(RunState.FAILED, f"{who} raised: {what}\n{trace}", 1))
