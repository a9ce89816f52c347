"""How a worker's process is started on each node: as a fork, or by Python.

Process: coordinator.  Thread: its event loop.  Blocks: never; a Keeper is waited for within bounds.
"""

import asyncio
import logging
from typing import Any

from trainflow.config.job import JobConfig
from trainflow.coordination.forkserver.settings import ForkServerSettings
from trainflow.coordination.node_watch import NodeWatch

logger = logging.getLogger(__name__)

_FIRST_ANSWER_WITHIN_S = 10.0  # it may be starting
_ANSWER_WITHIN_S = 2.0


class Launchers:
    """What Ray is told to start workers by, as the Keepers of their nodes say."""

    def __init__(self, job: JobConfig, nodes: NodeWatch):
        """Take a job, and who knows the Keepers."""
        self._nodes = nodes
        self._runtime_env = dict(job.runtime_env)
        self._is_off = ForkServerSettings.of(job, ()) is None
        self._asked: set[str] = set()

    async def find_environment(self, node_id: str | None) -> dict[str, Any]:
        """Return the runtime environment of a worker on a node; of one that isn't known if None."""
        keeper = None if node_id is None else self._nodes.keeper_of(node_id)
        if self._is_off or node_id is None or keeper is None:
            return self._runtime_env
        within_s = _ANSWER_WITHIN_S if node_id in self._asked else _FIRST_ANSWER_WITHIN_S
        self._asked.add(node_id)
        try:
            async with asyncio.timeout(within_s):
                command = await asyncio.ensure_future(keeper.fork_command.remote())
        except Exception:  # Python does as well
            logger.exception("%s does not say how workers are started there", node_id)
            return self._runtime_env
        return self._runtime_env | ({} if command is None else {"py_executable": command})
