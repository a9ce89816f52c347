"""What is set once is shown for as long as it holds, though Ray forgets it."""

import pytest

from tests.unit.coordination.fakes import FakeClock
from tests.unit.coordination.noted_export import NotedExport
from trainflow.coordination.lasting_gauges import LastingGauges
from trainflow.monitoring import metrics


class ForgetfulExport(NotedExport):
    """As Ray: it shows what was set since it was last looked at."""

    def forget(self) -> None:
        self._values.clear()


class Scene:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.export = ForgetfulExport()
        self.gauges = LastingGauges(self.export, self.clock)

    def tick(self, passed_s: float) -> None:
        self.export.forget()
        self.clock.now_s += passed_s
        self.gauges.tick()


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_gauge_is_shown_again_and_again_as_it_was_set_last(scene: Scene):
    scene.gauges.show(metrics.DETECTOR_OFF, 0.0, detector="hangs")
    scene.gauges.show(metrics.DETECTOR_OFF, 1.0, detector="hangs")
    scene.gauges.show(metrics.DETECTOR_OFF, 0.0, detector="cuts")
    for _ in range(3):
        scene.tick(passed_s=1.0)
        assert scene.export.value(metrics.DETECTOR_OFF, detector="hangs") == 1
        assert scene.export.value(metrics.DETECTOR_OFF, detector="cuts") == 0


def test_it_is_no_more_often_than_ray_looks(scene: Scene):
    scene.gauges.show(metrics.LOSS, 3.0)
    scene.tick(passed_s=0.5)
    assert scene.export.value(metrics.LOSS) is None
    scene.tick(passed_s=0.5)
    assert scene.export.value(metrics.LOSS) == 3


def test_one_that_is_not_known_any_more_is_not_shown_again(scene: Scene):
    scene.gauges.show_known(metrics.MFU, 0.5)
    scene.gauges.show(metrics.WORKER_MEMORY, 900.0, statistic="min")
    scene.gauges.show(metrics.WORKER_MEMORY, 900.0, statistic="max")
    scene.gauges.show(metrics.LOSS, 3.0)
    scene.gauges.show_known(metrics.MFU, None)
    scene.gauges.hide(metrics.WORKER_MEMORY)
    scene.tick(passed_s=1.0)
    assert scene.export.value(metrics.MFU) is None
    assert scene.export.value(metrics.WORKER_MEMORY, statistic="min") is None
    assert scene.export.value(metrics.WORKER_MEMORY, statistic="max") is None
    assert scene.export.value(metrics.LOSS) == 3


def test_counters_and_histograms_are_moved_once(scene: Scene):
    scene.gauges.add(metrics.EPOCHS)
    scene.gauges.observe(metrics.STEP_DURATION, 0.5)
    assert scene.export.value(metrics.EPOCHS) == 1
    scene.tick(passed_s=1.0)
    assert scene.export.value(metrics.EPOCHS) is None
    assert scene.export.observed == {"step_duration_seconds": [0.5]}
