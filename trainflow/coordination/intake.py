"""Take what workers tell; whose message can't be taken is given up, or it would be sent for ever.

A worker sends a message again until it is heard (`reporter`). One that the coordinator fails at
would hold up all that comes after it, with nobody to hear of it. Who is warm on a node without a
Keeper is not heard of before there is one: nobody could end it there, were it cut off.

Process: coordinator.  Thread: its event loop.  Fails: never; a worker is lost, or the run ends.
"""

import logging
import traceback
from collections.abc import Callable

from trainflow.coordination.background import Background
from trainflow.coordination.death_causes import explain_trace
from trainflow.coordination.last_words import keep_last_words
from trainflow.coordination.messages import Ready, WorkerMessage
from trainflow.coordination.node_watch import NodeWatch
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.run_state import Ending, RunState
from trainflow.coordination.superior import Superior

logger = logging.getLogger(__name__)

Take = Callable[[str, WorkerMessage], None]


class Intake:
    """Stands between workers and what takes their messages."""

    def __init__(
        self,
        take: Take,
        record: RunRecord,
        nodes: NodeWatch,
        background: Background,
        superior: Superior,
    ):
        """Begin.

        Args:
            take: takes a message of a worker, by its id; may raise.
            record: of the run.
            nodes: knows which have Keepers.
            background: runs what waits for one.
            superior: is told who is lost for it.
        """
        self._take = take
        self._record = record
        self._nodes = nodes
        self._background = background
        self._superior = superior

    def take(self, worker_id: str, message: WorkerMessage) -> None:
        """Take a message."""
        if isinstance(message, Ready) and message.description.node_id not in self._nodes.node_ids:
            self._background.start(self._take_attended(worker_id, message))
        else:
            self._take_now(worker_id, message)

    async def _take_attended(self, worker_id: str, message: Ready) -> None:
        """Take it once there is a Keeper where the worker is, or there will be none any more."""
        try:
            await self._nodes.ensure({message.description.node_id})
        except Exception:
            logger.exception("%s is on a node that gets no Keeper", worker_id)
            self._give_up(worker_id, "its node gets no Keeper", traceback.format_exc())
        else:
            self._take_now(worker_id, message)

    def _take_now(self, worker_id: str, message: WorkerMessage) -> None:
        try:
            self._take(worker_id, message)
        except Exception:
            trace = traceback.format_exc()
            told = type(message).__name__
            logger.exception("%s told %s, which can't be taken", worker_id, told)
            self._give_up(worker_id, f"what it told ({told}) can't be taken", trace)

    def _give_up(self, worker_id: str, why: str, trace: str) -> None:
        cause = f"{why}: {explain_trace(trace)}"
        keep_last_words(self._record.directory, worker_id, cause, trace)
        try:
            self._superior.lose([worker_id], cause)
        except Exception:
            logger.exception("%s can't be given up", worker_id)
            reason = f"{worker_id} can't be given up: {cause}\n{traceback.format_exc()}"
            self._superior.end(Ending(RunState.FAILED, reason, 1))
