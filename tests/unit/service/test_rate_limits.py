"""Buckets of permits."""

from hypothesis import given
from hypothesis import strategies as st

from trainflow.service.rate_limits import RateLimit

TIMES = st.lists(st.floats(0, 10, allow_nan=False), min_size=1, max_size=60).map(sorted)


@given(TIMES, st.floats(0.5, 20), st.integers(1, 10))
def test_no_more_is_allowed_than_the_burst_and_the_rate(
    times: list[float], per_s: float, burst: int
):
    limit = RateLimit(per_s, burst)
    taken = [at_s for at_s in times if limit.take("a", at_s) == 0]
    for first in range(len(taken)):
        for last in range(first, len(taken)):
            allowed = burst + per_s * (taken[last] - taken[first])
            assert last - first + 1 <= allowed + 1e-6


@given(TIMES, st.floats(0.5, 20), st.integers(1, 10))
def test_after_the_wait_that_is_told_there_is_a_permit(
    times: list[float], per_s: float, burst: int
):
    limit = RateLimit(per_s, burst)
    for at_s in times:
        wait_s = limit.take("a", at_s)
        if wait_s > 0:
            assert limit.wait_s("a", at_s + wait_s + 1e-9) < 1e-6
            break


def test_clients_count_by_themselves():
    limit = RateLimit(1.0, 1)
    assert (limit.take("a", 0.0), limit.take("b", 0.0)) == (0.0, 0.0)
    assert limit.take("a", 0.5) == 0.5


def test_many_clients_take_bounded_room():
    limit = RateLimit(1.0, 1)
    for number in range(20_000):
        limit.take(str(number), 0.0)
    assert len(limit._buckets) <= 10_000


def test_a_clock_that_goes_back_gives_nothing():
    limit = RateLimit(1.0, 1)
    limit.take("a", 100.0)
    assert limit.take("a", 50.0) == 1.0
