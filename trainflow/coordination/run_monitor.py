"""Everything that explains a run and that it doesn't need to go on.

Process: coordinator.  Thread: its event loop.  Blocks: never.
Fails: never; what raises is left out from then on.
"""

import logging

from trainflow.clock import Clock
from trainflow.config.job import JobConfig
from trainflow.coordination.metric_export import RayExport
from trainflow.coordination.run_metrics import RunMetrics
from trainflow.coordination.run_record import RunRecord

logger = logging.getLogger(__name__)


class RunMonitor:
    """What follows one run.

    Attributes:
        metrics: what it shows to Prometheus.
    """

    def __init__(self, job_id: str, job: JobConfig, record: RunRecord, clock: Clock):
        self.metrics = RunMetrics(job, RayExport(job_id), clock, record.events_since(0))
        self._ticks = True
        record.follow(self.metrics)

    def tick(self, world_size: int, num_spares: int) -> None:
        """Look at what changes with time alone; called about twice a second."""
        if not self._ticks:
            return
        try:
            self.metrics.tick(world_size, num_spares)
        except Exception:  # whatever it is, training goes on
            logger.exception("what changes with time is shown no more")
            self._ticks = False
