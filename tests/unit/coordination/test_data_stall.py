"""Whether data is to blame, or who waits for it."""

import pytest

from trainflow.coordination.data_stall import find_held_up
from trainflow.coordination.hang_detection import Limits, Progress
from trainflow.epochs import INITIAL_EPOCH, EpochId, Phase

EPOCH = EpochId(1, 1)
LIMITS = Limits(10.0, first_step_s=30.0, fresh_epoch=EpochId(1, 2))


def reads(age_s: float, *, epoch: EpochId = EPOCH, pulse_age_s: float = 0.0) -> Progress:
    return Progress(1, 7, epoch, Phase.DATA, age_s, pulse_age_s)


def is_in(phase: Phase, age_s: float = 11.0) -> Progress:
    return Progress(1, 7, EPOCH, phase, age_s, 0.0)


WAITS, MOVES = is_in(Phase.COMMUNICATE), reads(0.2)
ON_OWN_NODES = {"a": "A", "b": "B", "c": "C"}
ON_TWO_NODES = {"a": "A", "b": "B", "c": "B"}
TOGETHER = dict.fromkeys("abc", "A")


@pytest.mark.parametrize("node_of", [ON_OWN_NODES, ON_TWO_NODES, TOGETHER])
def test_it_is_if_it_comes_to_nobody(node_of: dict[str, str]):
    members = {"a": reads(10.2), "b": reads(9.4), "c": reads(6.0)}
    assert find_held_up(members, node_of, LIMITS) == {*"abc"}


@pytest.mark.parametrize("other", [WAITS, MOVES, is_in(Phase.USER), is_in(Phase.PARKED)])
def test_it_is_if_it_comes_to_others_and_not_to_several_nodes(other: Progress):
    members = {"a": reads(10.2), "b": reads(9.4), "c": other}
    assert find_held_up(members, ON_OWN_NODES, LIMITS) == {"a", "b"}


@pytest.mark.parametrize("node_of", [ON_OWN_NODES, ON_TWO_NODES, TOGETHER])
def test_one_alone_hangs_itself(node_of: dict[str, str]):
    members = {"a": WAITS, "b": WAITS, "c": reads(12.0)}
    assert find_held_up(members, node_of, LIMITS) == frozenset()


def test_those_of_one_node_hang_on_it_unless_it_is_the_only_one():
    members = {"a": WAITS, "b": reads(12.0), "c": reads(12.0)}
    assert find_held_up(members, ON_TWO_NODES, LIMITS) == frozenset()
    assert find_held_up(members, TOGETHER, LIMITS) == {"b", "c"}


def test_the_only_member_is_compared_with_nobody():
    assert find_held_up({"a": reads(12.0)}, {"a": "A"}, LIMITS) == {"a"}


@pytest.mark.parametrize(
    "second",
    [
        reads(4.9),
        reads(11.0, pulse_age_s=11.0),
        reads(60.0, epoch=INITIAL_EPOCH),
        reads(14.0, epoch=EpochId(1, 2)),
        is_in(Phase.COMPUTE),
    ],
    ids=["has just begun", "is stopped", "rehearses", "is in its first step", "computes"],
)
def test_who_does_not_stand_still_in_reading_is_no_second_one(second: Progress):
    members = {"a": reads(12.0), "b": second, "c": WAITS}
    assert find_held_up(members, ON_OWN_NODES, LIMITS) == frozenset()


def test_without_members_there_is_nobody():
    assert find_held_up({}, {}, LIMITS) == frozenset()
