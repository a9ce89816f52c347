"""What a run shows is told once a second, and for as long as it holds, though Ray forgets it."""

import pytest

from tests.unit.coordination.fakes import FakeClock
from tests.unit.coordination.noted_export import NotedExport
from trainflow.coordination.paced_export import PacedExport
from trainflow.monitoring import metrics


class ForgetfulExport(NotedExport):
    """As Ray: it shows what was set since it was last looked at."""

    def forget(self) -> None:
        self._values.clear()


class Scene:
    def __init__(self) -> None:
        self.clock = FakeClock()
        self.export = ForgetfulExport()
        self.paced = PacedExport(self.export, self.clock)

    def tick(self, passed_s: float) -> None:
        self.export.forget()
        self.clock.now_s += passed_s
        self.paced.tick()


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_gauge_is_shown_again_and_again_as_it_was_set_last(scene: Scene):
    scene.paced.show(metrics.DETECTOR_OFF, 0.0, detector="hangs")
    scene.paced.show(metrics.DETECTOR_OFF, 1.0, detector="hangs")
    scene.paced.show(metrics.DETECTOR_OFF, 0.0, detector="cuts")
    for _ in range(3):
        scene.tick(passed_s=1.0)
        assert scene.export.value(metrics.DETECTOR_OFF, detector="hangs") == 1
        assert scene.export.value(metrics.DETECTOR_OFF, detector="cuts") == 0


def test_all_is_told_no_more_often_than_ray_looks(scene: Scene):
    scene.tick(passed_s=0.0)
    for loss in (3.0, 2.0):
        scene.paced.show(metrics.LOSS, loss)
        scene.paced.add(metrics.EPOCHS)
    scene.tick(passed_s=0.5)
    assert scene.export.value(metrics.LOSS) is None
    assert scene.export.value(metrics.EPOCHS) is None
    scene.tick(passed_s=0.5)
    assert scene.export.value(metrics.LOSS) == 2
    assert scene.export.value(metrics.EPOCHS) == 2


def test_what_is_over_does_not_wait(scene: Scene):
    scene.tick(passed_s=0.0)
    scene.paced.add(metrics.EPOCHS)
    scene.paced.flush()
    assert scene.export.value(metrics.EPOCHS) == 1


def test_one_that_is_not_known_any_more_is_not_shown_again(scene: Scene):
    scene.paced.show_known(metrics.MFU, 0.5)
    scene.paced.show(metrics.WORKER_MEMORY, 900.0, statistic="min")
    scene.paced.show(metrics.WORKER_MEMORY, 900.0, statistic="max")
    scene.paced.show(metrics.LOSS, 3.0)
    scene.paced.show_known(metrics.MFU, None)
    scene.paced.hide(metrics.WORKER_MEMORY)
    scene.tick(passed_s=1.0)
    assert scene.export.value(metrics.MFU) is None
    assert scene.export.value(metrics.WORKER_MEMORY, statistic="min") is None
    assert scene.export.value(metrics.WORKER_MEMORY, statistic="max") is None
    assert scene.export.value(metrics.LOSS) == 3


def test_values_wait_only_up_to_a_bound_where_nobody_ticks(scene: Scene):
    for _ in range(10_500):
        scene.paced.observe(metrics.STEP_DURATION, 0.5)
    (told,) = scene.export.observed.values()
    assert 10_500 - 2000 < len(told) <= 10_500


def test_a_counter_is_given_each_amount_once_and_a_histogram_each_value_in_its_order(scene: Scene):
    scene.tick(passed_s=0.0)
    scene.paced.add(metrics.EPOCHS)
    scene.paced.observe(metrics.STEP_DURATION, 0.5)
    scene.paced.observe(metrics.PHASE_DURATION, 0.125, phase="commit")
    scene.paced.observe(metrics.STEP_DURATION, 0.25)
    scene.tick(passed_s=0.5)
    assert scene.export.observed == {}, "no more often than all else"
    shown = {"step_duration_seconds": [0.5, 0.25], "phase_duration_seconds|commit": [0.125]}
    for amount in (1, None):
        scene.tick(passed_s=1.0)
        assert scene.export.value(metrics.EPOCHS) == amount
        assert scene.export.observed == shown, "each once"
