"""The same seed draws the same faults; whom they fall on follows from who is there."""

from collections import Counter
from typing import Any

import pytest

from trainflow.config.chaos_plan import ChaosPlan
from trainflow.coordination.chaos.schedule import PlannedFault, choose_worker, draw_faults

MIX = [{"kind": "kill", "weight": 3}, {"kind": "stop", "weight": 1}]


def make_plan(**changes: object) -> ChaosPlan:
    plan = {"for_s": 100, "every_s": 10, "mix": MIX, "timeout_s": 1e5}
    return ChaosPlan.model_validate(plan | changes)


def row(worker_id: str, rank: int | None, **changes: object) -> dict[str, object]:
    state = "spare" if rank is None else "member"
    row = {"worker_id": worker_id, "rank": rank, "state": state, "pid": 1, "node_id": "n"}
    return row | changes


WORKERS = [row("a", 0), row("b", 1), row("c", 2), row("d", None), row("e", None)]


def planned(pick: float = 0.0, **fault: object) -> PlannedFault:
    plan = ChaosPlan.model_validate({"schedule": [{"kind": "kill", "at_s": 1} | fault]})
    return PlannedFault(1, plan.schedule[0], pick, at_s=1.0)


def test_a_seed_draws_the_same_faults_each_time():
    first, again, other = (draw_faults(make_plan(seed=seed)) for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_faults_fall_at_even_distances_up_to_the_end():
    faults = draw_faults(make_plan(for_s=35))
    assert [each.at_s for each in faults] == [10, 20, 30]
    assert [each.number for each in faults] == [1, 2, 3]
    assert [each.at_s for each in draw_faults(make_plan(for_s=30))] == [10, 20, 30]


@pytest.mark.parametrize(("for_s", "every_s"), [(0.3, 0.1), (1.2, 0.4), (0.35, 0.1)])
def test_no_fault_is_lost_to_rounding(for_s: float, every_s: float):
    assert len(draw_faults(make_plan(for_s=for_s, every_s=every_s))) == 3


def test_kinds_are_drawn_by_their_weights():
    faults = draw_faults(make_plan(for_s=10_000))
    counts = Counter(each.fault.kind for each in faults)
    assert sum(counts.values()) == 1000
    assert 700 < counts["kill"] < 800


def test_whom_a_fault_falls_on_is_drawn_too():
    picks = {each.pick for each in draw_faults(make_plan())}
    assert len(picks) == 10
    assert all(0 <= pick < 1 for pick in picks)


def test_what_is_listed_comes_as_it_is():
    listed = {"kind": "kill", "rank": 2, "at_step": 7, "phase": "optimizer"}
    *_, last = draw_faults(make_plan(schedule=[listed]))
    assert (last.number, last.at_s, last.at_step, last.phase) == (11, None, 7, "optimizer")
    assert last.is_ordered
    assert last.what == "kill rank 2 in optimizer"


@pytest.mark.parametrize(
    ("fault", "silent_s"),
    [
        ({"kind": "stop", "target": "coordinator", "resume_after_s": 75}, 75.0),
        ({"kind": "stop", "target": "keeper", "resume_after_s": 75}, 0.0),
        ({"kind": "kill", "target": "coordinator"}, 0.0),
    ],
)
def test_only_a_stop_of_the_coordinator_silences_it(fault: dict[str, Any], silent_s: float):
    *_, last = draw_faults(make_plan(schedule=[fault | {"at_s": 1}]))
    assert last.silences_s == silent_s


def test_a_member_is_chosen_by_the_pick():
    picks = [choose_worker(planned(pick), WORKERS) for pick in (0.0, 0.5, 0.99)]
    assert [each and each["worker_id"] for each in picks] == ["a", "b", "c"]


def test_a_rank_is_chosen_by_its_number():
    chosen = choose_worker(planned(0.0, rank=2), WORKERS)
    assert chosen is not None
    assert chosen["worker_id"] == "c"


def test_a_spare_is_no_member():
    chosen = choose_worker(planned(0.9, target="spare"), WORKERS)
    assert chosen is not None
    assert chosen["worker_id"] == "e"


def test_a_keeper_is_found_by_a_member():
    chosen = choose_worker(planned(0.0, target="keeper"), WORKERS)
    assert chosen is not None
    assert chosen["worker_id"] == "a"


def test_nobody_is_chosen_where_nobody_is():
    assert choose_worker(planned(target="spare"), WORKERS[:3]) is None
    assert choose_worker(planned(rank=3), WORKERS) is None
    assert choose_worker(planned(), [row("a", 0, pid=None), row("b", 1, node_id=None)]) is None
