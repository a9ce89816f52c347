"""A rank on which a bit flipped was named, or nobody could, or it was missed."""

from dataclasses import replace
from typing import Any

import pytest

from trainflow.coordination.chaos.flips import Flip, Naming, find_naming

FLIP = Flip(1, 3, (1, 2), at_s=5.0, world_size=3)
STEPS = [{"step": step, "committed_at_s": 5.0 * step} for step in (1, 2, 3, 4)]
"""Step 3 is committed 10 s after the flip."""


def tell(kind: str, at_s: float = 6.0, text: str = "", **data: Any) -> dict[str, Any]:
    return {"kind": kind, "at_s": at_s, "text": text, "data": data}


def name_rank(**changes: Any) -> dict[str, Any]:
    data = {"step": 3, "epoch": "1.2", "ranks": [1], "no_majority": False}
    return tell("ranks_differ", **data | changes)


def find(*events: dict[str, Any], flips: tuple[Flip, ...] = (FLIP,), **changes: Any) -> Naming:
    facts = {"events": events, "steps": STEPS, "has_wrong_clocks": False} | changes
    return find_naming(flips[0], flips, **facts)


def test_it_is_named_by_an_event_of_its_epoch_whatever_a_clock_said():
    assert find(name_rank()) is Naming.GIVEN
    assert find(name_rank() | {"at_s": 1.0}) is Naming.GIVEN


@pytest.mark.parametrize(
    "event",
    [
        name_rank(epoch="1.1"),
        name_rank(step=2),
        name_rank(ranks=[0]),
        name_rank(ranks=[0, 1, 2], no_majority=True),
        tell(
            "failure", text="a collective failed on a: gradients differ on ranks [0]", epoch="1.2"
        ),
        tell("failure", text="lost a (rank 0): its gradients are wrong: step 3", rank=0),
        tell("failure", 4.9, rank=0),  # before
        tell("failure", 15.1, rank=0),  # after that step was committed
        tell("failure", epoch="1.1"),  # of another epoch
        tell("failure", rank=None),  # a spare, without which an epoch goes on
        tell("straggler", rank=0),
    ],
)
def test_nothing_else_names_or_excuses_it(event: dict[str, Any]):
    assert find(event) is Naming.MISSING


@pytest.mark.parametrize(
    "event",
    [tell("failure", rank=0), tell("failure", epoch="1.2"), tell("coordinator_restarted")],
)
def test_what_ends_the_epoch_first_excuses_it_unless_the_sums_were_compared(event: dict[str, Any]):
    assert find(event) is Naming.NOT_COMPARED
    assert find(event, name_rank(ranks=[0])) is Naming.MISSING


@pytest.mark.parametrize(("world_size", "naming"), [(2, "NO_MAJORITY"), (3, "MISSING")])
def test_of_two_ranks_nobody_can_tell_which(world_size: int, naming: str):
    assert find(flips=(replace(FLIP, world_size=world_size),)) is Naming[naming]


@pytest.mark.parametrize(("world_size", "naming"), [(4, "NO_MAJORITY"), (5, "MISSING")])
def test_where_half_of_the_ranks_are_wrong_nobody_can_tell_either(world_size: int, naming: str):
    one = replace(FLIP, world_size=world_size)
    others = (
        replace(one, rank=2),
        replace(one, rank=0, step=2),
        replace(one, rank=0, epoch=(1, 1)),
    )
    assert find(flips=(one, *others)) is Naming[naming]
