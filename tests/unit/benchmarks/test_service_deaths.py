"""What the deaths of a service's parts come to, by what was answered and recorded."""

from benchmarks.prober import Look
from benchmarks.service_deaths import find_fresh, find_longest, to_rows


def test_the_longest_step_since_a_death_may_have_begun_before_it():
    times_s = [1.0, 5.0, 5.5, 7.0, 7.25]
    assert find_longest(times_s, since_s=5.75) == 1.5
    assert find_longest(times_s, since_s=4.0) == 4.0
    assert find_longest(times_s, since_s=8.0) == 0.0


def test_a_status_is_anew_only_if_it_was_published_since():
    looks = [
        Look(1.0, 0.1, True, {"published_at_s": 0.5}),
        Look(2.0, 0.1, False),
        Look(3.0, 0.1, True, {"published_at_s": 2.5}),
    ]
    assert find_fresh(looks, since_s=1.0) == looks[2:]


def test_times_are_told_by_median_and_worst_and_requests_are_counted():
    rows = to_rows({"replica_longest_silence": [0.1, 0.3, 0.2], "replica_failed": [1, 0, 2]})
    assert {(row.metric, row.value, row.unit) for row in rows} == {
        ("replica_longest_silence", 0.2, "s"),
        ("replica_longest_silence_worst", 0.3, "s"),
        ("replica_failed", 3, "requests"),
    }
