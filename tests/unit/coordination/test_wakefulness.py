"""What a process that stood still with all others holds against nobody."""

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainflow.coordination.wakefulness import BEAT_EVERY_S, Wakefulness, keep_awake


def live(wakefulness: Wakefulness, now_s: float, for_s: float) -> float:
    """Beat for so long; returns the time after it."""
    for _ in range(round(for_s / BEAT_EVERY_S)):
        now_s += BEAT_EVERY_S
        wakefulness.beat(now_s)
    return now_s


def test_who_runs_all_the_time_counts_all_of_it():
    wakefulness = Wakefulness(0.0)
    now_s = live(wakefulness, 0.0, 30.0)
    assert wakefulness.age_s(5.0, now_s) == pytest.approx(25.0)


def test_a_pause_counts_for_nothing_before_it_is_noticed_and_after():
    wakefulness = Wakefulness(0.0)
    paused_at_s = live(wakefulness, 0.0, 10.0)
    now_s = paused_at_s + 60.0
    assert wakefulness.age_s(paused_at_s - 2.0, now_s) == pytest.approx(2.1)
    wakefulness.beat(now_s)
    now_s = live(wakefulness, now_s, 3.0)
    assert wakefulness.age_s(paused_at_s - 2.0, now_s) == pytest.approx(5.1)
    assert wakefulness.age_s(now_s - 3.0, now_s) == pytest.approx(3.0), "since it was over"


def test_of_a_pause_counts_what_comes_after_the_moment():
    wakefulness = Wakefulness(0.0)
    wakefulness.beat(60.1)
    assert wakefulness.age_s(50.0, 60.1) == 0.0, "a worker that ran on for some of it"


def test_a_beat_that_is_late_is_no_pause():
    wakefulness = Wakefulness(0.0)
    for number in range(1, 21):
        wakefulness.beat(number * 0.4)
    assert wakefulness.age_s(0.0, 8.0) == pytest.approx(8.0)


@given(st.lists(st.floats(0.01, 100.0), min_size=1, max_size=50), st.floats(0.0, 1.0))
def test_an_age_is_never_less_than_nothing_nor_more_than_what_has_passed(
    gaps_s: list[float], since_ratio: float
):
    wakefulness, now_s = Wakefulness(0.0), 0.0
    for gap_s in gaps_s:
        now_s += gap_s
        wakefulness.beat(now_s)
    since_s = since_ratio * now_s
    age_s = wakefulness.age_s(since_s, now_s)
    assert -1e-9 <= age_s <= now_s - since_s + 1e-9


def test_it_beats_by_itself():
    class Clock:
        def __init__(self) -> None:
            self.now_s = 0.0
            self.is_over = threading.Event()

        def monotonic_s(self) -> float:
            return self.now_s

        def unix_s(self) -> float:
            return self.now_s

        def sleep(self, duration_s: float) -> None:
            self.now_s += duration_s
            if self.now_s > 5.0:
                self.is_over.set()
                threading.Event().wait()  # a thread that no longer beats, for ever

    clock = Clock()
    wakefulness = Wakefulness(0.0)
    keep_awake(wakefulness, clock)
    assert clock.is_over.wait(10.0)
    assert wakefulness.age_s(0.0, clock.now_s) == pytest.approx(clock.now_s)
