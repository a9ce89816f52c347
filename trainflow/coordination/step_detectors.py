"""What is looked for in the times of steps.

Process: coordinator.  Thread: its event loop.  Fails: never; the run goes on without it.
"""

from typing import Any

from trainflow.clock import SYSTEM_CLOCK
from trainflow.computation.reports import StepReport
from trainflow.config.job import JobConfig
from trainflow.coordination.background import Background
from trainflow.coordination.epoch_control import EpochControl
from trainflow.coordination.network_watch import NetworkWatch
from trainflow.coordination.node_watch import NodeWatch
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.straggler_watch import StragglerWatch
from trainflow.coordination.worker_pool import WorkerPool


class StepDetectors:
    """Ranks that are slow, and links that are."""

    def __init__(
        self,
        job: JobConfig,
        pool: WorkerPool,
        control: EpochControl,
        nodes: NodeWatch,
        record: RunRecord,
        background: Background,
    ):
        self._stragglers = StragglerWatch(job, pool, control, record)
        self._network = NetworkWatch(pool, control, nodes, record, background, SYSTEM_CLOCK)

    def on_step(self, report: StepReport) -> None:
        """A member committed a step."""
        self._stragglers.on_step(report)
        self._network.on_step(report)

    def describe(self) -> dict[str, Any]:
        """Return what is slow now, as JSON."""
        return {"stragglers": self._stragglers.current(), "slow_network": self._network.current()}
