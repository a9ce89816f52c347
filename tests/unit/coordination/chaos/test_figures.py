"""What faults cost is measured from the record, and from when they fell."""

from typing import Any

import pytest

from trainflow.coordination.chaos.figures import (
    count_lost,
    find_long_gaps,
    find_stall,
    measure,
    median_step_s,
    sum_of_union,
)


def steps_at(*committed_s: float) -> list[dict[str, Any]]:
    return [{"step": n, "committed_at_s": at_s} for n, at_s in enumerate(committed_s, start=1)]


def recovered(
    noticed_s: float, healed_s: float, steps_lost: int = 0, epoch: int = 2
) -> dict[str, Any]:
    data = {"noticed_at_s": noticed_s, "healed_at_s": healed_s, "steps_lost": steps_lost}
    return {"kind": "recovered", "data": data | {"epoch": f"1.{epoch}"}}


def resumed(
    steps_lost: int, epoch: int = 2, step: int = 5, *, recovering: bool = True
) -> dict[str, Any]:
    data = {"step": step, "epoch": [1, epoch], "steps_lost": steps_lost, "recovering": recovering}
    return {"kind": "resumed", "data": data}


def test_goodput_is_what_the_steps_take_undisturbed_of_the_time_they_took():
    figures = measure(steps_at(0, 1, 2, 5, 8), [], [], steps_at(0, 1, 2, 3))
    assert (figures.wall_s, figures.step_s, figures.goodput_ratio) == (8, 1, 0.5)


def test_without_an_undisturbed_run_there_is_no_goodput():
    figures = measure(steps_at(0, 1), [], [], None)
    assert (figures.step_s, figures.goodput_ratio) == (None, None)


def test_a_step_done_again_counts_once():
    again = [*steps_at(0, 1, 2), {"step": 3, "committed_at_s": 4.0}]
    assert measure(again, [recovered(2.5, 3, 1)], [2.4], steps_at(0, 1)).goodput_ratio == 0.5
    assert measure(again, [recovered(2.5, 3, 1)], [2.4], None).steps_lost == 1


def test_steps_are_lost_as_well_where_no_recovery_tells_of_it():
    figures = measure(steps_at(0, 1), [resumed(4, recovering=False)], [], None)
    assert (figures.steps_lost, figures.recoveries) == (4, 0)


def test_steps_that_two_events_tell_of_are_lost_once_whichever_comes_first():
    both = [resumed(4), recovered(1, 2, 4)]
    assert count_lost(both) == count_lost(both[::-1]) == 4
    assert count_lost([*both, recovered(3, 4, 1, epoch=3)]) == 5


def test_a_recovery_that_needs_several_epochs_has_lost_what_each_of_them_did():
    assert count_lost([resumed(4, 2), resumed(1, 3), recovered(1, 2, 1, epoch=3)]) == 5
    assert count_lost([resumed(4, 2), recovered(1, 2, 0, epoch=3)]) == 4


def test_what_a_rewind_makes_void_is_asked_for_and_what_is_lost_later_is_not():
    rewound = {"kind": "rewound", "data": {"to_step": 5, "steps_lost": 4}}
    asked = [rewound, resumed(4, recovering=False)]
    assert count_lost(asked) == 0
    assert count_lost([*asked, resumed(2, 3, recovering=False)]) == 2
    with_a_death = [rewound, resumed(4), recovered(1, 2, 4)]
    assert count_lost([*with_a_death, resumed(2, 3)]) == 2


def test_no_step_runs_from_the_fault_until_all_hold_the_state():
    stall = find_stall(recovered(5.3, 5.6)["data"], [4.0, 5.0, 6.0], [5.2, 9.0])
    assert stall == (5.2, 5.6)


def test_a_stop_is_felt_from_its_time_on_and_not_from_when_it_was_noticed():
    assert find_stall(recovered(8.0, 8.2)["data"], [4.0, 5.0, 8.5], [5.1]) == (5.1, 8.2)


def test_a_commit_after_the_fault_was_a_step_that_ran():
    assert find_stall(recovered(5.3, 5.6)["data"], [5.25], [5.2]) == (5.25, 5.6)


def test_of_two_faults_since_the_last_commit_the_first_counts():
    assert find_stall(recovered(5.3, 5.6)["data"], [5.0], [4.9, 5.1, 5.2]) == (5.1, 5.6)


def test_without_a_fault_it_is_felt_from_the_last_commit():
    assert find_stall(recovered(5.3, 5.6)["data"], [5.0], []) == (5.0, 5.6)
    assert find_stall(recovered(5.3, 5.6)["data"], [], []) == (5.3, 5.6)


def test_stalls_that_overlap_count_once():
    assert sum_of_union([(1, 3), (2, 4), (6, 7), (6.5, 6.8)]) == 4
    events = [recovered(5.3, 5.6), recovered(5.4, 5.7)]
    figures = measure(steps_at(0, 5, 6, 10), events, [5.2, 5.3], None)
    assert figures.stalled_s == pytest.approx(0.5)
    assert figures.stalled_ratio == pytest.approx(0.05)
    assert figures.recoveries == 2


def test_what_holds_steps_up_counts_also_where_nobody_was_lost():
    before = [float(second) for second in range(12)]
    after = [20.0 + second for second in range(12)]
    assert find_long_gaps(steps_at(*before, *after)) == [(11.0, 19.0)]
    figures = measure(steps_at(*before, *after), [recovered(12.0, 12.5)], [11.5], None)
    assert figures.stalled_s == pytest.approx(8.0), "the recovery lies within"


def test_a_step_that_is_slow_is_no_stall_nor_is_a_world_that_becomes_slower():
    assert find_long_gaps(steps_at(0.0, 1.0, 2.0, 4.9, 5.9, 6.9)) == []
    slower = [*range(10), *range(12, 32, 3)]
    assert find_long_gaps(steps_at(*map(float, slower))) == []
    assert find_long_gaps(steps_at(1.0, 9.0)) == []


def run_with(pause_s: float = 0.0, after: int = 15, begin_s: float = 0.0) -> list[dict[str, Any]]:
    """Steps of a second, with a pause before the one after ``after``."""
    return steps_at(*(begin_s + n + (pause_s if n > after else 0.0) for n in range(1, 31)))


def test_a_pause_that_the_undisturbed_run_makes_too_is_no_stall():
    assert measure(run_with(8.0, begin_s=50.0), [], [], run_with(8.0)).stalled_s == 0
    assert measure(run_with(9.0), [], [], run_with(8.0)).stalled_s == 0, "a little longer"
    assert measure(run_with(8.0), [], [], None).stalled_s == 8, "no pause is known"
    elsewhere = measure(run_with(8.0, after=14), [], [], run_with(8.0))
    assert elsewhere.stalled_s == 8, "it is made before another step"


def test_of_a_stall_in_a_pause_what_is_beyond_the_pause_counts():
    assert find_long_gaps(run_with(20.0), run_with(8.0)) == [(15.0, 27.0)]


def test_a_run_without_steps_has_figures():
    figures = measure([], [], [], [])
    assert (figures.wall_s, figures.stalled_ratio, figures.goodput_ratio) == (0, 0, None)
    assert median_step_s(steps_at(1)) is None
