"""What a run has committed, as changes of its world and what they cost."""

from typing import Any

import pytest

from benchmarks.elasticity import Change, find_changes, to_rows


def make_steps(*worlds_and_times: tuple[int, float]) -> list[dict[str, Any]]:
    """Make a line a step from the world's size and when it was committed."""
    return [
        {"step": number, "world_size": world_size, "committed_at_s": at_s}
        for number, (world_size, at_s) in enumerate(worlds_and_times, start=1)
    ]


def test_a_change_is_told_with_the_usual_step_of_the_new_world():
    steps = make_steps((2, 1.0), (2, 1.5), (4, 2.5), (4, 2.75), (4, 3.0), (3, 3.5), (3, 3.75))
    changes = find_changes(steps)
    assert changes == [Change(2, 4, 1.0, 0.25), Change(4, 3, 0.5, 0.25)]
    assert [change.beyond_s for change in changes] == [0.75, 0.25]


def test_a_world_that_stays_has_not_changed():
    assert find_changes(make_steps((2, 1.0), (2, 9.0))) == []
    assert find_changes([]) == []


def test_a_step_that_is_missing_or_done_twice_fails():
    steps = make_steps((2, 1.0), (2, 2.0), (2, 3.0))
    with pytest.raises(ValueError, match="expected each once"):
        find_changes([steps[0], steps[2]])
    with pytest.raises(ValueError, match="expected each once"):
        find_changes([*steps, steps[2]])


def test_growing_and_shrinking_are_told_apart():
    changes = [Change(2, 4, 0.5, 0.25), Change(3, 4, 1.0, 0.25), Change(4, 3, 0.25, 0.25)]
    rows = {(row.system, row.metric): row.value for row in to_rows(changes, 0)}
    assert rows["grow", "changes"] == 2
    assert rows["grow", "gap_beyond_a_step_s"] == 0.5
    assert rows["grow", "gap_beyond_a_step_at_most_s"] == 0.75
    assert rows["shrink", "gap_beyond_a_step_s"] == 0.0
    assert rows["survivors", "processes_lost"] == 0
