"""What is known of a fault once it is over."""

from typing import Any

import pytest

from trainflow.coordination.chaos.fallen import FallenFault, Outcome, find_unfelt_fills

FELL_AT_S = 100.0
FILL = FallenFault(
    4, "fill_disk", victim="the disk", at_s=FELL_AT_S, kind="fill_disk", last_s=5.0, due_by="time"
)


def events(*told: tuple[str, float]) -> list[dict[str, Any]]:
    return [{"kind": kind, "at_s": FELL_AT_S + after_s} for kind, after_s in told]


@pytest.mark.parametrize(
    ("told", "is_felt"),
    [
        ([], False),
        ([("record_unwritable", 2.0), ("record_writable", 6.0)], True),
        ([("record_unwritable", 2.0)], True),
        ([("record_unwritable", -9.0), ("record_writable", 1.0)], True),
        ([("record_unwritable", -9.0), ("record_writable", -3.0)], False),
        ([("record_unwritable", 9.0)], False),
        ([("coordinator_restarted", 20.0)], True),
        ([("coordinator_restarted", 90.0)], False),
        ([("submitted", 20.0)], True),
        ([("submitted", -90.0)], False),
    ],
)
def test_a_full_disk_that_nobody_wrote_to_has_shown_nothing(
    told: list[tuple[str, float]], *, is_felt: bool
):
    assert find_unfelt_fills([FILL], events(*told), ()) == ([] if is_felt else [4])
    assert find_unfelt_fills([FILL], events(*told), {"keeper"}) == ([] if is_felt else [4])
    assert find_unfelt_fills([FILL], events(*told), {"coordinator"}) == []


def test_what_nobody_came_upon_is_told_so():
    unfelt = FallenFault(4, "fill_disk", at_s=FELL_AT_S, is_missed=True, due_by="time")
    assert unfelt.outcome is Outcome.NOT_REACHED
    assert unfelt.told == "nobody came upon it while it lasted"
