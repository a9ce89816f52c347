"""Show which detectors are off, apart from what else is shown, which may be what has failed.

Process: coordinator.  Thread: its event loop.  Blocks: never.
"""

from collections.abc import Mapping
from typing import Any

from trainflow.computation.reports import StepReport
from trainflow.coordination.metric_export import MetricExport
from trainflow.monitoring import metrics
from trainflow.monitoring.detectors import Detector


class DetectorGauges:
    """Follows one run."""

    def __init__(self, export: MetricExport):
        self._export = export
        self._off: set[str] = set()
        for detector in Detector:
            export.show(metrics.DETECTOR_OFF, 0.0, detector=detector.value)

    def is_off(self, detector: Detector) -> bool:
        """Whether it has failed, and has not succeeded since."""
        return detector.value in self._off

    def on_event(self, event: Mapping[str, Any]) -> None:
        """An event was recorded."""
        if event["kind"] not in {"detector_off", "detector_on"}:
            return
        detector: str = event["data"]["detector"]
        is_off = event["kind"] == "detector_off"
        (self._off.add if is_off else self._off.discard)(detector)
        self._export.show(metrics.DETECTOR_OFF, float(is_off), detector=detector)

    def on_step(self, report: StepReport) -> None:
        """Steps say nothing of detectors."""
