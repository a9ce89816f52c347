"""For how long nobody was answered, by what was asked meanwhile."""

import math

from benchmarks.prober import Look, Prober, Silence, measure_silence
from trainflow.clock import SYSTEM_CLOCK


def looks(*told: tuple[float, bool]) -> list[Look]:
    """Make requests by when each was over, and whether it was answered well."""
    return [Look(at_s - 0.25, 0.25, is_good) for at_s, is_good in told]


def test_a_silence_is_counted_from_one_good_answer_to_the_next():
    asked = looks((1.0, True), (2.0, True), (3.0, False), (6.0, False), (6.5, True), (7.0, True))
    assert measure_silence(asked, killed_s=2.5) == Silence(4.5, 2, 4)
    assert measure_silence(asked, killed_s=6.75) == Silence(0.5, 0, 1)


def test_what_was_silent_before_does_not_count():
    asked = looks((1.0, True), (9.0, False), (10.0, True), (10.5, True))
    assert measure_silence(asked, killed_s=10.25).longest_s == 0.5


def test_who_answers_no_more_is_silent_for_ever():
    asked = looks((1.0, True), (2.0, True), (3.0, False))
    assert measure_silence(asked, killed_s=1.5) == Silence(math.inf, 1, 2)
    assert measure_silence([], killed_s=1.5) == Silence(math.inf, 0, 0)


def test_an_address_at_which_nothing_listens_is_asked_again():
    with Prober({"nowhere": "http://127.0.0.1:9/"}) as prober:
        while len(prober.looks["nowhere"]) < 2:
            SYSTEM_CLOCK.sleep(0.01)
    assert not any(look.is_good for look in prober.looks["nowhere"])
