"""A base proves a commit that no rank has told of, but not if the run went back before it."""

from typing import Any

import pytest

from trainflow.coordination.chaos.epoch_bases import Base, find_bases, find_proven
from trainflow.coordination.chaos.used_samples import UNKNOWN, Committed, Used

FIRST, SECOND, THIRD = (1, 1), (1, 2), (2, 1)
HAD_SIXTH = Base(SECOND, 6, FIRST)  # the second epoch begins after step 6
WENT_BACK = Base(THIRD, 5, FIRST)
READ_SIXTH = Base(SECOND, 6, UNKNOWN)


def began(epoch: str, **data: Any) -> dict[str, Any]:
    return {"kind": "epoch", "data": {"epoch": epoch, **data}}


def test_bases_are_read_from_events_but_for_the_jobs_beginning():
    begun = began("1.1", base="0@0.0")
    others = [{"kind": "failure", "data": {"epoch": "1.1", "base": "3@1.1"}}, began("1.2")]
    later = [began("1.3", base="6@1.1"), began("2.10", base="7@0.0")]
    assert find_bases([begun, *others, *later]) == [
        Base((1, 3), 6, FIRST),
        Base((2, 10), 7, UNKNOWN),
    ]


def test_a_step_that_an_epoch_begins_after_was_committed():
    assert find_proven([HAD_SIXTH], [], []) == {6: {FIRST}}
    assert find_proven([], [Committed("a", 6, FIRST)], []) == {}, "a rank told of it"


@pytest.mark.parametrize("again", [[], [Committed("a", 6, THIRD)], [Committed("a", 5, THIRD)]])
def test_a_base_before_which_the_run_went_back_proves_nothing(again: list[Committed]):
    assert find_proven([HAD_SIXTH, WENT_BACK], again, []) == {5: {FIRST}}


def test_a_base_proves_nothing_if_its_step_was_done_again_later():
    assert find_proven([HAD_SIXTH], [Committed("a", 6, THIRD)], []) == {}


@pytest.mark.parametrize(
    ("commits", "bases"),
    [([Committed("a", 7, SECOND)], []), ([], [Base(THIRD, 7, SECOND)])],
)
def test_a_base_that_others_went_on_from_stays_one_whatever_came_later(
    commits: list[Committed], bases: list[Base]
):
    again = [WENT_BACK, Base((2, 2), 5, FIRST)]
    assert find_proven([HAD_SIXTH, *bases, *again], commits, [])[6] == {FIRST}


def test_what_was_read_from_a_checkpoint_is_of_the_only_try_there_was():
    late = Used("a", 6, SECOND, (1,))
    assert find_proven([READ_SIXTH], [], [Used("a", 6, FIRST, (1,)), late]) == {6: {FIRST}}
    assert find_proven([READ_SIXTH], [], [late]) == {}, "nobody had computed it"


def test_which_of_several_tries_a_checkpoint_is_of_is_unknown_unless_a_rank_has_told():
    read = Base(THIRD, 6, UNKNOWN)
    used = [Used("a", 6, FIRST, (1,)), Used("a", 6, SECOND, (1,))]
    assert find_proven([read], [], used) == {6: {UNKNOWN}}
    assert find_proven([read], [Committed("a", 6, SECOND)], used) == {}
    assert find_proven([read, HAD_SIXTH], [], used) == {6: {FIRST}}
    later = [Committed("a", 7, THIRD), Committed("a", 6, (3, 1))]
    assert find_proven([read], later, used) == {6: {UNKNOWN}}, "it was done again after that"
