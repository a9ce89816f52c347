"""Which detectors are off is shown, whatever else of what explains a run has failed."""

from pathlib import Path

from tests.unit.coordination.fakes import FakeClock
from tests.unit.coordination.noted_export import NotedExport
from trainflow.coordination.detector_gauges import DetectorGauges
from trainflow.coordination.run_record import RunRecord
from trainflow.monitoring import metrics
from trainflow.monitoring.detectors import Detector


def test_a_detector_that_is_off_is_shown_until_it_looks_again(tmp_path: Path):
    export = NotedExport()
    gauges, record = DetectorGauges(export), RunRecord(tmp_path, FakeClock())
    record.follow(gauges)

    def values() -> list[float | None]:
        names = ("hangs", "stragglers")
        return [export.value(metrics.DETECTOR_OFF, detector=each) for each in names]

    assert values() == [0, 0]
    record.add_event("detector_off", "it failed", detector="hangs")
    assert values() == [1, 0]
    assert (gauges.is_off(Detector.HANGS), gauges.is_off(Detector.STRAGGLERS)) == (True, False)
    record.add_event("detector_on", "it looks again", detector="hangs")
    assert values() == [0, 0]
    assert not gauges.is_off(Detector.HANGS)
