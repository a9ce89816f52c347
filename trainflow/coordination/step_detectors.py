"""What is looked for in the times of steps.

Process: coordinator.  Thread: its event loop.  Fails: never; the run goes on without them, and says
so.
"""

from typing import Any

from trainflow.clock import SYSTEM_CLOCK
from trainflow.computation.reports import StepReport
from trainflow.config.job import JobConfig
from trainflow.coordination.detector_guard import DetectorGuard
from trainflow.coordination.epoch_control import EpochControl
from trainflow.coordination.network_watch import NetworkWatch
from trainflow.coordination.node_watch import NodeWatch
from trainflow.coordination.rank_times import RankTimes
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.straggler_watch import StragglerWatch
from trainflow.coordination.worker_pool import WorkerPool
from trainflow.monitoring.detectors import Detector


class StepDetectors:
    """Ranks that are slow, and links that are."""

    def __init__(
        self,
        job: JobConfig,
        pool: WorkerPool,
        control: EpochControl,
        nodes: NodeWatch,
        record: RunRecord,
        guard: DetectorGuard,
    ):
        self._stragglers = StragglerWatch(job, pool, control, record)
        own = guard.background_of(Detector.NETWORK)
        self._network = NetworkWatch(pool, control, nodes, record, own, SYSTEM_CLOCK)
        self._times = RankTimes(pool, control)
        self._guard = guard

    def on_step(self, report: StepReport) -> None:
        """A member committed a step."""
        self._times.on_step(report)
        self._guard.look(Detector.STRAGGLERS, lambda: self._stragglers.on_step(report))
        self._guard.look(Detector.NETWORK, lambda: self._network.on_step(report))

    def describe(self) -> dict[str, Any]:
        """Return what is slow now, and which detectors are off, as JSON."""
        return {
            "stragglers": self._stragglers.current(),
            "slow_network": self._network.current(),
            "detectors_off": self._guard.describe(),
        }
