"""Who has given its rank to a spare, as events tell."""

from typing import Any

import pytest

from trainflow.coordination.relief_history import ReliefHistory

RELIEVED = ("straggler_relieved", {"worker_id": "w2"})
WITHOUT = ("epoch", {"members": ["w0", "w1", "w3"]})
WITH = ("epoch", {"members": ["w0", "w2", "w3"]})


def tell(*events: tuple[str, dict[str, Any]]) -> set[str]:
    history = ReliefHistory()
    for kind, data in events:
        history.take({"kind": kind, "data": data})
    return history.relieved


def test_it_is_relieved_once_an_epoch_begins_without_it():
    assert tell(RELIEVED) == set()
    assert tell(RELIEVED, WITHOUT) == {"w2"}
    assert tell(WITHOUT) == set()


def test_it_stays_relieved_whatever_rank_it_is_given_later():
    assert tell(RELIEVED, WITHOUT, WITH, WITHOUT) == {"w2"}


def test_one_that_stays_after_all_is_not_relieved_if_it_leaves_for_something_else():
    assert tell(RELIEVED, WITH, WITHOUT) == set()


def test_workers_that_are_launched_from_nothing_have_not_straggled():
    assert tell(RELIEVED, WITHOUT, ("submitted", {})) == set()
    assert tell(RELIEVED, ("submitted", {}), WITHOUT) == set()


@pytest.mark.parametrize("damaged", [("straggler_relieved", {}), ("epoch", {})], ids=str)
def test_what_can_not_be_read_keeps_no_coordinator_from_the_rest(
    damaged: tuple[str, dict[str, Any]],
):
    assert tell(damaged, RELIEVED, WITHOUT) == {"w2"}
