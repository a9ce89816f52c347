"""How values of all workers are told in a few."""

from hypothesis import given
from hypothesis import strategies as st

from trainflow.monitoring.usage import STATISTICS, Usage, spread, spread_usage


def test_the_spread_of_many_ranks_is_of_values_that_are_there():
    values = [float(n) for n in range(1000, 0, -1)]
    assert spread(values) == {"min": 1.0, "p50": 501.0, "p99": 990.0, "max": 1000.0}
    assert spread([7.0]) == dict.fromkeys(STATISTICS, 7.0)


@given(st.lists(st.floats(allow_nan=False), min_size=1))
def test_they_come_in_order_from_the_least_to_the_most(values: list[float]):
    found = list(spread(values).values())
    assert found == sorted(found)
    assert (found[0], found[-1]) == (min(values), max(values))
    assert set(found) <= set(values)


def test_each_figure_is_of_the_workers_that_have_it():
    usages = [Usage(10), Usage(30, 7, 0.5), Usage(20, 9)]
    found = spread_usage(usages)
    assert found["memory_bytes"] == {"min": 10, "p50": 20, "p99": 30, "max": 30}
    assert (found["device_bytes"]["min"], found["device_bytes"]["max"]) == (7, 9)
    assert found["device_busy_ratio"] == dict.fromkeys(STATISTICS, 0.5)


def test_what_nobody_has_is_not_there():
    assert spread_usage([Usage(10)]).keys() == {"memory_bytes"}
    assert spread_usage([]) == {}
