"""The oracle itself: it must see a step that was done twice, and one that was not done."""

from trainflow.coordination.chaos.used_samples import (
    UNKNOWN,
    Committed,
    Used,
    collect_samples,
    find_committing_epochs,
)

FIRST, SECOND = (1, 1), (1, 2)
A, B, C = 10, 11, 12


def test_a_step_belongs_to_the_epoch_that_committed_it():
    commits = [Committed(A, 1, FIRST), Committed(B, 1, FIRST), Committed(A, 2, SECOND)]
    assert find_committing_epochs(commits) == {1: {FIRST}, 2: {SECOND}}


def test_a_step_that_is_committed_twice_is_seen():
    twice = [Committed(A, 1, FIRST), Committed(A, 1, SECOND)]
    assert find_committing_epochs(twice) == {1: {FIRST, SECOND}}
    assert collect_samples(
        [Used(A, 1, FIRST, (3, 4)), Used(A, 1, SECOND, (3, 4))], find_committing_epochs(twice)
    ) == {1: [3, 3, 4, 4]}


def test_a_step_that_one_rank_keeps_and_the_others_do_again_is_seen():
    commits = [Committed(A, 1, FIRST), Committed(B, 1, SECOND), Committed(A, 2, SECOND)]
    assert find_committing_epochs(commits)[1] == {FIRST, SECOND}


def test_a_commit_that_died_with_all_who_had_it_is_none():
    commits = [Committed(A, 1, FIRST), Committed(B, 1, SECOND), Committed(B, 2, SECOND)]
    assert find_committing_epochs(commits) == {1: {SECOND}, 2: {SECOND}}


def test_the_samples_of_a_void_try_do_not_count():
    used = [Used(A, 1, FIRST, (5, 6)), Used(B, 1, SECOND, (7,)), Used(A, 1, SECOND, (6, 5))]
    assert collect_samples(used, {1: {SECOND}}) == {1: [5, 6, 7]}


def test_samples_of_a_rank_that_died_after_its_record_was_out_count():
    used = [Used(A, 1, FIRST, (1, 2)), Used(C, 1, FIRST, (3,))]
    assert collect_samples(used, find_committing_epochs([Committed(A, 1, FIRST)])) == {1: [1, 2, 3]}


def test_a_step_that_nobody_committed_is_missing():
    assert collect_samples([Used(A, 1, FIRST, (1, 2))], {}) == {}


def test_what_is_proven_counts_beside_what_was_told():
    assert find_committing_epochs([], {1: {FIRST}}) == {1: {FIRST}}
    told = [Committed(A, 1, FIRST), Committed(A, 2, FIRST)]
    assert find_committing_epochs(told, {1: {SECOND}})[1] == {FIRST, SECOND}


def test_a_commit_that_nobody_outlived_never_happened_if_a_later_one_is_proven():
    assert find_committing_epochs([Committed(A, 1, FIRST)], {1: {SECOND}}) == {1: {SECOND}}


def test_of_which_try_was_committed_where_that_is_unknown_no_samples_are_told():
    used = [Used(A, 1, FIRST, (1,)), Used(A, 1, SECOND, (1,)), Used(A, 2, SECOND, (2,))]
    assert collect_samples(used, {1: {UNKNOWN}, 2: {SECOND}}) == {2: [2]}
