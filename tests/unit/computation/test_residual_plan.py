"""Who takes which residuals."""

from hypothesis import given
from hypothesis import strategies as st

from trainflow.checkpointing.residual_file import PartId
from trainflow.computation.residual_plan import is_complete, plan_residuals
from trainflow.epochs import INITIAL_EPOCH, EpochId, Version

VERSION = Version(7, EpochId(1, 2))
DEALT = EpochId(1, 3)


def part(rank: int, world_size: int = 3, dealt: EpochId = INITIAL_EPOCH) -> PartId:
    return PartId(VERSION, dealt, world_size, rank)


def test_nothing_moves_while_each_rank_has_its_own():
    plan = plan_residuals([[part(0)], [part(1)], [part(2)]], [])
    assert not plan.is_dealt
    assert (plan.fetched, plan.lost) == (frozenset(), ())
    assert [plan.own(rank) for rank in range(3)] == [[part(0)], [part(1)], [part(2)]]


def test_a_spare_fetches_the_part_of_its_rank():
    plan = plan_residuals([[part(0)], [], [part(2)]], [part(1)])
    assert not plan.is_dealt
    assert plan.own(1) == [part(1)]
    assert plan.fetched == {part(1)}


def test_what_nobody_has_is_lost():
    plan = plan_residuals([[part(0)], [], [part(2)]], [])
    assert not plan.is_dealt
    assert plan.lost == (1,)
    assert plan.own(1) == []


def test_where_nothing_is_left_at_all_every_rank_has_lost_its_own():
    assert plan_residuals([[], []], []).lost == (0, 1)


def test_another_world_deals_anew():
    plan = plan_residuals([[part(0)], [part(2)]], [part(1)])
    assert plan.is_dealt
    assert plan.own(0) == [part(0)]
    assert plan.own(1) == [part(1), part(2)]


def test_ranks_that_have_changed_places_deal_anew():
    assert plan_residuals([[part(1)], [part(0)], [part(2)]], []).is_dealt


def test_of_two_deals_the_newer_counts_if_it_is_whole():
    """It may be whole only on some ranks; what was before is then whole on all."""
    new = [part(rank, 2, DEALT) for rank in range(2)]
    whole = plan_residuals([[part(0), new[0]], [part(2), new[1]]], [part(1)])
    assert not whole.is_dealt
    assert set(whole.contributors) == set(new)
    half = plan_residuals([[part(0), new[0]], [part(2)]], [part(1)])
    assert half.is_dealt
    assert set(half.contributors) == {part(0), part(1), part(2)}


def test_whether_the_newest_deal_is_complete_is_told():
    assert is_complete([part(0), part(1), part(2)])
    assert not is_complete([part(0), part(2)])
    assert not is_complete([part(0), part(1), part(2), part(0, 2, DEALT)])
    assert not is_complete([])


@given(
    st.integers(1, 6).flatmap(
        lambda old: st.tuples(
            st.just(old),
            st.integers(1, 6),
            st.lists(st.integers(-1, 7), min_size=old, max_size=old),
        )
    )
)
def test_every_part_that_is_anywhere_is_contributed_once(case):
    """Each old rank's part is with a member, with a Keeper (6), nowhere (-1), or both (7)."""
    old, new, places = case
    by_member: list[list[PartId]] = [[] for _ in range(new)]
    elsewhere: list[PartId] = []
    for rank, place in enumerate(places):
        if 0 <= place < new:
            by_member[place].append(part(rank, old))
        elif place >= new:
            elsewhere.append(part(rank, old))
    plan = plan_residuals(by_member, elsewhere)
    there = {each for parts in (*by_member, elsewhere) for each in parts}
    assert set(plan.contributors) == there
    assert plan.fetched == set(elsewhere)
    assert all(by < new for by in plan.contributors.values())
    if there:
        assert len(there) + len(plan.lost) == old
    for rank, parts in enumerate(by_member):
        assert set(parts) <= set(plan.own(rank))
    if not plan.is_dealt and there:
        assert old == new
        assert all(each.rank == by for each, by in plan.contributors.items())
