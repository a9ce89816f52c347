import pytest

from benchmarks.throttled_store import Throttle, growth
from trainflow.clock import SYSTEM_CLOCK


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ([900, 100, 100, 100, 100, 100], 1.0),
        ([1, 2, 3, 4, 5, 6, 7, 8, 9, 10], 9.5 / 3.5),
        ([7], 1.0),
    ],
)
def test_what_is_flat_after_warm_up_does_not_grow(samples: list[int], expected: float):
    assert growth(samples) == expected


def test_a_throttle_lets_through_what_it_says():
    throttle, start_s = Throttle(1_000_000.0), SYSTEM_CLOCK.monotonic_s()
    for _ in range(5):
        throttle.wait(20_000)
    assert SYSTEM_CLOCK.monotonic_s() - start_s >= 0.1
