"""Show to Prometheus which anomalies go on, however long ago each began.

Process: coordinator.  Thread: its event loop.  Blocks: never.
"""

from collections.abc import Collection, Mapping
from typing import Any

from trainflow.computation.reports import StepReport
from trainflow.coordination.anomaly_history import BEGAN, OVER
from trainflow.coordination.detector_guard import OFF
from trainflow.coordination.metric_export import MetricExport
from trainflow.monitoring import metrics
from trainflow.monitoring.anomalies.kinds import AnomalyKind
from trainflow.monitoring.detectors import Detector


class AnomalyGauges:
    """Follows one run; all kinds are there from the begin, so that an end is seen."""

    def __init__(self, export: MetricExport, told: Collection[str]):
        """Begin.

        Args:
            export: where values go.
            told: kinds of which an earlier coordinator told, and not of their end.
        """
        self._export = export
        for kind in AnomalyKind:
            self._show(kind, goes_on=kind in told)

    def on_event(self, event: Mapping[str, Any]) -> None:
        """An event was recorded.

        Where nobody looks any more, nothing is shown to go on: it would never be over.
        """
        if event["kind"] == OFF and event["data"]["detector"] == Detector.ANOMALIES:
            for kind in AnomalyKind:
                self._show(kind, goes_on=False)
        elif event["kind"] in {BEGAN, OVER}:
            self._show(AnomalyKind(event["data"]["anomaly"]), goes_on=event["kind"] == BEGAN)

    def on_step(self, report: StepReport) -> None:
        """Steps say nothing of anomalies; who looks at them records events."""

    def _show(self, kind: AnomalyKind, *, goes_on: bool) -> None:
        self._export.show(metrics.ANOMALY_ACTIVE, float(goes_on), kind=kind.value)
