"""A record may lack as many steps as anybody died with, and what nobody lived to tell."""

from collections.abc import Sequence
from typing import Any

import pytest

from trainflow.coordination.chaos.missing_steps import (
    count_coordinator_deaths,
    find_missing_steps,
    tell_missing_steps,
)
from trainflow.coordination.chaos.used_samples import Committed

LAST = 20


def step(number: int, epoch: str = "1.1") -> dict[str, Any]:
    return {"step": number, "epoch": epoch, "committed_at_s": float(number)}


def tell(kind: str, **data: Any) -> dict[str, Any]:
    return {"kind": kind, "data": data}


def lose(worker: str, rank: int | None) -> dict[str, Any]:
    return tell("failure", worker=worker, rank=rank)


FORMED = tell("epoch", epoch="1.1", members=["a", "b"])
RESTARTED = tell("coordinator_restarted", workers=["a", "b"])


def wrong(
    steps: Sequence[dict[str, Any]],
    events: Sequence[dict[str, Any]] = (),
    filled_at_s: Sequence[float] = (),
) -> list[str]:
    """Judge a run in which workers a and b commit up to step 10, and c and d the rest."""
    commits = [
        Committed(worker, number, (1, 1) if number <= 10 else (2, 2))
        for number in range(1, LAST + 1)
        for worker in ("ab" if number <= 10 else "cd")
    ]
    missing = find_missing_steps(steps, LAST)
    return tell_missing_steps(missing, steps, events, commits, filled_at_s, has_wrong_clocks=False)


def without(*missing: int) -> list[dict[str, Any]]:
    return [
        step(number, "1.1" if number <= 10 else "2.2")
        for number in range(1, LAST + 1)
        if number not in missing
    ]


def test_what_is_missing_is_found():
    assert find_missing_steps(without(3, 20), LAST) == [3, 20]
    assert find_missing_steps([], 3) == [1, 2, 3]
    assert wrong(without()) == []


@pytest.mark.parametrize("events", [[RESTARTED], [tell("submitted"), tell("submitted")]])
def test_each_death_of_a_coordinator_excuses_one_step(events: list[dict[str, Any]]):
    assert wrong(without(5), events) == []
    assert wrong(without(5, 6), events) != []
    assert wrong(without(5, 6), [*events, RESTARTED]) == []


def test_the_death_of_a_rank_excuses_the_last_step_of_an_epoch():
    lost = lose("a", 0)
    assert wrong(without(10), [lost]) == []
    assert wrong(without(10), []) != []
    assert wrong(without(5), [lost]) != [], "others went on, and would have told of it"
    assert wrong(without(5, 10), [lost, RESTARTED]) == []


def test_the_last_step_of_an_epoch_may_be_one_that_only_the_next_ones_base_proves():
    commits = [Committed("a", number, (1, 1)) for number in range(1, 10)]
    commits += [Committed("b", number, (2, 2)) for number in range(11, LAST + 1)]
    went_on = tell("epoch", epoch="2.2", members=["b"], base="10@1.1")

    def judge(*events: dict[str, Any]) -> list[str]:
        return tell_missing_steps([10], without(10), events, commits, [], has_wrong_clocks=False)

    assert judge(lose("a", 0), went_on) == []
    assert judge(lose("a", 0)) != []


@pytest.mark.parametrize(
    "event", [lose("c", None), tell("failure", epoch="1.1"), tell("submitted"), FORMED]
)
def test_what_is_no_death_of_a_rank_excuses_none(event: dict[str, Any]):
    (told,) = wrong(without(5), [event])
    assert told.startswith("1 steps are not in the record, more than anybody died with: steps 5,")


def test_an_empty_record_is_wrong_however_many_died():
    deaths = [RESTARTED] * 30
    assert wrong([], deaths) == ["no step is in the record"]


def test_a_record_that_ends_with_the_coordinator_is_wrong():
    (told,) = wrong(without(*range(5, LAST + 1)), [FORMED, RESTARTED])
    assert told.startswith("16 steps are not in the record")
    assert "steps 5, 6, 7, 8, 9, …, 14 of them not the last of their epoch" in told
    assert told.endswith("with 0 ranks and 1 coordinators that died")


def test_what_waited_for_a_coordinator_with_ranks_of_whom_none_went_on_is_excused():
    went_on = tell("epoch", epoch="2.2", members=["c", "d"])
    assert wrong(without(*range(5, 11)), [FORMED, RESTARTED, went_on]) == []
    assert wrong(without(*range(5, 11)), [FORMED, went_on]) != [], "no coordinator died"
    assert wrong(without(*range(5, 10)), [FORMED, RESTARTED, went_on]) != [], "10 was heard"
    survived = tell("epoch", epoch="2.2", members=["b", "d"])
    assert wrong(without(*range(5, 11)), [FORMED, RESTARTED, survived]) != [], "b knew them"


def test_what_waited_for_room_on_the_disk_is_lost_with_the_coordinator_alone():
    hole = without(5, 6, 7)
    assert wrong(hole, [RESTARTED], [4.5]) == []
    assert wrong(hole, [], [4.5]) != []
    assert wrong(hole, [RESTARTED], [8.5]) != []
    assert wrong(hole, [RESTARTED], [2.0]) != []


def test_coordinators_that_died_are_counted():
    assert count_coordinator_deaths([tell("submitted"), RESTARTED, RESTARTED]) == 2
    assert count_coordinator_deaths([]) == 0
