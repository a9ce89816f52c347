"""What events tell of a run that goes back for its loss."""

from typing import Any

import pytest

from trainflow.coordination.rewind_history import Rewind, RewindHistory
from trainflow.epochs import INITIAL_EPOCH, EpochId, Version


def history(*events: tuple[str, dict[str, Any]]) -> RewindHistory:
    found = RewindHistory()
    for kind, data in events:
        found.take({"kind": kind, "data": data})
    return found


def stored(step: int) -> Version:
    return Version(step, INITIAL_EPOCH)


ASKED = ("rewind", {"to_step": 100, "position": 1500})
DONE = ("rewound", {"to_step": 100, "position": 1500, "steps_lost": 40})


def test_what_was_asked_for_is_pending_until_it_is_done_or_given_up():
    assert history().pending is None
    assert history(ASKED).pending == Rewind(100, 1500)
    for end in (DONE, ("rewind_given_up", {})):
        found = history(ASKED, end)
        assert (found.pending, found.num_asked) == (None, 1)
    assert history(ASKED, ("attempt", {"attempt": 2})).pending == Rewind(100, 1500)


def test_from_a_checkpoint_that_it_went_back_to_it_goes_on_at_the_same_place_ever_after():
    found = history(ASKED, DONE, ("attempt", {"attempt": 2}))
    assert found.position_after(stored(100)) == 1500
    assert found.position_after(stored(90)) is None
    assert found.position_after(stored(200)) is None
    assert found.position_after(Version(100, EpochId(1, 1))) is None, "of its own steps"


def test_the_newest_counts_where_it_has_gone_back_to_one_twice():
    again = ("rewound", {"to_step": 100, "position": 1800, "steps_lost": 40})
    assert history(DONE, again).position_after(stored(100)) == 1800


def test_what_was_only_asked_for_says_nothing_of_positions():
    assert history(ASKED).position_after(stored(100)) is None
    assert history(ASKED, ("rewind_given_up", {})).position_after(stored(100)) is None


def test_from_an_older_one_it_goes_on_there_too_if_that_was_damaged():
    damaged = ("checkpoint_unusable", {"step": 100})
    assert history(DONE, damaged).position_after(stored(60)) == 1500
    assert history(DONE, damaged).position_after(stored(200)) is None


def test_the_furthest_counts_of_what_it_went_back_to_and_meant_to():
    later = ("rewound", {"to_step": 120, "position": 1800, "steps_lost": 40})
    damaged = ("checkpoint_unusable", {"step": 120})
    found = history(DONE, later, damaged)
    assert found.position_after(stored(100)) == 1800
    assert found.find_position(60) == 1800, "it meant to go on from there"
    assert found.find_position(200) is None


def test_what_is_made_again_in_the_place_of_what_it_went_back_to_has_its_own_position():
    further = ("rewound", {"to_step": 60, "position": 1900, "steps_lost": 90})
    found = history(DONE, ("checkpoint_unusable", {"step": 100}), further)
    assert found.position_after(stored(60)) == 1900
    assert found.position_after(stored(100)) is None
    again = ("rewound", {"to_step": 100, "position": 3000, "steps_lost": 9})
    assert history(DONE, further, again).position_after(stored(60)) == 1900
    damaged_before = history(DONE, ("checkpoint_unusable", {"step": 100}), further, again)
    assert damaged_before.position_after(stored(60)) == 1900, "the new one is whole"


def test_what_is_made_again_after_a_damaged_one_has_its_own_position_and_follows_without_a_break():
    damaged = ("checkpoint_unusable", {"step": 100})
    found = history(DONE, damaged, ("resumed", {"step": 60, "epoch": [2, 1]}))
    assert found.find_position(60) == 1500, "it meant to go on from there"
    assert found.find_position(100) is None
    assert found.find_jump(60, 130) is None
    assert found.find_jump(10, 130) == 60
    before = history(DONE, ("resumed", {"step": 60, "epoch": [2, 1]}))
    assert (before.find_position(60), before.find_jump(10, 130)) == (None, None), "it was told to"
    later = history(DONE, ("resumed", {"step": 140, "epoch": [2, 1]}))
    assert later.find_position(100) == 1500


def test_samples_are_passed_over_within_steps_that_go_on_beyond_where_it_went_back_to():
    later = ("rewound", {"to_step": 120, "position": 1800, "steps_lost": 40})
    found = history(DONE, later)
    assert (found.find_jump(60, 130), found.find_jump(60, 110)) == (120, 100)
    assert found.find_jump(100, 130) == 120
    assert [found.find_jump(*each) for each in [(60, 100), (120, 130), (0, 60)]] == [None] * 3


@pytest.mark.parametrize("step", [60, 200])
def test_damage_of_others_changes_nothing(step: int):
    found = history(DONE, ("checkpoint_unusable", {"step": step}))
    assert found.position_after(stored(50)) is None
    assert found.position_after(stored(100)) == 1500
