from hypothesis import given
from hypothesis import strategies as st

from trainflow.coordination.membership import (
    Candidate,
    CarryOn,
    FormEpoch,
    PauseToGrow,
    Situation,
    WaitForWorkers,
    decide_move,
    next_members,
)

A, B, C, D = (Candidate(name, f"node-{name}") for name in "abcd")


def situation(members: str, available: tuple[Candidate, ...], **changes) -> Situation:
    given = {"broken": False, "minimum": 1, "target": 3} | changes
    return Situation(members=tuple(members), available=available, **given)


def test_the_first_epoch_waits_for_the_target_and_not_for_the_minimum():
    assert decide_move(situation("", (A, B))) == WaitForWorkers(2, 3)
    assert decide_move(situation("", (A, B, C))) == FormEpoch(("a", "b", "c"))


def test_a_spare_takes_the_lost_rank():
    move = decide_move(situation("abc", (A, C, D), broken=True))
    assert move == FormEpoch(("a", "d", "c"))


def test_without_a_spare_the_world_closes_up_in_order():
    assert decide_move(situation("abc", (A, C), broken=True)) == FormEpoch(("a", "c"))


def test_below_the_minimum_it_waits():
    move = decide_move(situation("abc", (A,), broken=True, minimum=2))
    assert move == WaitForWorkers(1, 2)


def test_a_failed_group_with_everybody_there_is_formed_again_as_it_was():
    assert decide_move(situation("abc", (C, B, A), broken=True)) == FormEpoch(("a", "b", "c"))


def test_a_running_world_asks_once_to_pause_when_it_can_grow():
    grown = ("a", "c", "d")
    assert decide_move(situation("ac", (A, C, D))) == PauseToGrow(grown)
    assert decide_move(situation("ac", (A, C, D), pausing=True)) == CarryOn()


def test_a_lost_spare_changes_nothing():
    assert decide_move(situation("abc", (A, B, C))) == CarryOn()


def test_a_vacancy_goes_to_the_node_with_the_fewest_members():
    near, far = Candidate("near", A.node_id), Candidate("far", "node-far")
    assert next_members("ab", (A, near, far), 2) == ("a", "far")


names = st.text("abcdefghij", min_size=1, max_size=1)
candidates = st.lists(
    st.builds(Candidate, names, st.sampled_from(["n1", "n2", "n3"])),
    unique_by=lambda candidate: candidate.worker_id,
)


@given(st.lists(names, unique=True, max_size=6), candidates, st.integers(1, 6))
def test_members_are_present_distinct_and_no_more_than_wanted(previous, available, target):
    members = next_members(previous, available, target)
    assert len(set(members)) == len(members) == min(target, len(available))
    assert set(members) <= {candidate.worker_id for candidate in available}


@given(st.lists(names, unique=True, max_size=6), candidates, st.integers(1, 6))
def test_survivors_stay_before_all_others_and_in_order(previous, available, target):
    members = next_members(previous, available, target)
    present = {candidate.worker_id for candidate in available}
    survivors = [worker for worker in previous if worker in present][:target]
    assert [worker for worker in members if worker in previous] == survivors
    if len(members) == target >= len(previous):
        kept = {worker: previous.index(worker) for worker in survivors}
        assert {worker: members.index(worker) for worker in survivors} == kept


def test_where_ranks_are_given_up_survivors_close_up_in_order_before_others_come():
    other = Candidate("e", "node-e")
    assert next_members("abcd", (A, C, D, other), 3) == ("a", "c", "d")
    assert next_members("abcd", (A, D, other), 3) == ("a", "d", "e")
    left = on("n1", "a", "c", "d", "e", "f")
    assert next_members("abcdef", left, 4, group_size=2) == ("c", "d", "e", "f")


def on(node: str, *workers: str) -> tuple[Candidate, ...]:
    return tuple(Candidate(worker, node) for worker in workers)


def test_a_group_begins_on_one_node():
    available = (*on("n1", "a"), *on("n2", "b"), *on("n1", "c"), *on("n2", "d"))
    assert next_members((), available, 4, group_size=2) == ("a", "c", "b", "d")


def test_groups_that_are_whole_come_first_and_members_in_whole_groups():
    left = on("n1", "a", "c", "d")
    assert next_members("abcd", left, 4, group_size=2) == ("c", "d")
    left = on("n1", "a", "d", "e", "f")
    assert next_members("abcdef", left, 6, group_size=2) == ("e", "f", "a", "d")


def test_a_vacancy_goes_to_a_spare_on_its_groups_node():
    available = (*on("n1", "a"), *on("n2", "c", "d", "x"), *on("n1", "y"))
    assert next_members("abcd", available, 4, group_size=2) == ("a", "y", "c", "d")


def test_it_grows_by_whole_groups_alone():
    grown = on("n1", "a", "b", "c")
    assert decide_move(situation("ab", grown, target=4, group_size=2)) == CarryOn()
    more = (*grown, *on("n1", "d"))
    assert decide_move(situation("ab", more, target=4, group_size=2)) == PauseToGrow(tuple("abcd"))
