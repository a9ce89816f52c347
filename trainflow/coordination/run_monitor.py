"""Everything that explains a run and that it doesn't need to go on.

Process: coordinator.  Thread: its event loop.  Blocks: never.
Fails: never; what raises is left out from then on.
"""

import logging
from typing import Any

from trainflow.clock import Clock
from trainflow.config.job import JobConfig
from trainflow.coordination.anomaly_watch import AnomalyWatch
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
        self._anomalies: AnomalyWatch | None = None
        record.follow(self.metrics)
        self._watch_anomalies(job, record)

    def _watch_anomalies(self, job: JobConfig, record: RunRecord) -> None:
        """Begin to look for anomalies; what is kept of them may be damaged."""
        if not job.monitoring.anomalies.enabled:
            return
        try:
            self._anomalies = AnomalyWatch(job, record)
            record.follow(self._anomalies)
        except Exception as error:  # whatever it is, training goes on
            logger.exception("anomalies are not looked for")
            text = f"anomalies are not looked for: {type(error).__name__}: {error}"
            record.add_event("monitoring_failed", text, follower=AnomalyWatch.__name__)

    def describe(self) -> dict[str, Any]:
        """Return what there is to tell of now, as JSON."""
        return {"anomalies": [] if self._anomalies is None else self._anomalies.current()}

    def tick(self, world_size: int, num_spares: int) -> None:
        """Look at what changes with time alone; called about twice a second."""
        if not self._ticks:
            return
        try:
            self.metrics.tick(world_size, num_spares)
        except Exception:  # whatever it is, training goes on
            logger.exception("what changes with time is shown no more")
            self._ticks = False
