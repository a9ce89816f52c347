"""A rank's clock is believed where it can be right."""

import pytest

from trainflow.coordination.moments import place_moment


@pytest.mark.parametrize(
    ("told_s", "moment_s"),
    [(9.9, 12.0), (10.0, 10.0), (11.5, 11.5), (12.0, 12.0), (12.1, 12.0), (3612.0, 12.0)],
)
def test_what_a_rank_tells_of_was_after_what_led_to_it_and_before_it_was_heard_of(
    told_s: float, moment_s: float
):
    assert place_moment(told_s, 10.0, 12.0) == moment_s
