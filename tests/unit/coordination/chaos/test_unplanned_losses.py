"""A loss that no fault of the plan explains, nor what follows from one, is told of."""

from dataclasses import replace
from typing import Any

import pytest

from trainflow.config.chaos_plan import FaultTarget, ScheduledFault
from trainflow.coordination.chaos.fallen import FallenFault
from trainflow.coordination.chaos.notice_times import NoticeTimes
from trainflow.coordination.chaos.schedule import PlannedFault
from trainflow.coordination.chaos.unplanned_losses import find_losses, tell_unplanned

FELL_AT_S = 100.0
NOTICE = NoticeTimes(lease_s=10.0, hang_s=20.0, least_hang_s=10.0)
DIED, SILENT = "The actor died unexpectedly", "its node has not been heard within its lease"
HUNG, CUT = "hung: no progress in compute of step 3", "nodes a and b can't reach each other"
STUCK = "hung: still in communicate of step 3, 9.0 s after epoch 1.1 was given up"
UNHEARD = "it did not answer the new coordinator"
GONE = "it was gone when a new coordinator looked for it"
WRONG = "its gradients are wrong: step 3"
RAISED = "it raised: ValueError"
STATELESS = "it holds no state, and no step is committed"


def lose(
    cause: str = DIED,
    worker: str = "w1",
    after_s: float = 1.0,
    host: str | None = "h1",
    node: str | None = None,
) -> dict[str, Any]:
    data = {"worker": worker, "rank": None, "cause": cause, "host": host, "node": node}
    text = f"lost {worker} (spare): {cause}"
    return {"kind": "failure", "at_s": FELL_AT_S + after_s, "text": text, "data": data}


def fault(**settings: Any) -> FallenFault:
    """One that falls on worker w1, whose node is n1, at h1."""
    config = ScheduledFault.model_validate({"at_step": 3} | settings)
    told = FallenFault.of(PlannedFault(1, config, 0.0, at_step=3))
    return replace(told, victim="who", worker_id="w1", host="h1", node_id="n1", at_s=FELL_AT_S)


def is_unplanned(event: dict[str, Any], *faults: FallenFault, skewed: bool = False) -> bool:
    steps = [{"step": 3, "committed_at_s": FELL_AT_S}]
    targets = {"coordinator"} if skewed else set[str]()
    return bool(tell_unplanned([event], steps, faults, NOTICE, skewed=targets))


KILL, STOP = fault(kind="kill"), fault(kind="stop")
PAUSE = fault(kind="stop", resume_after_s=2.0)
PARTITION, DROP = fault(kind="partition", last_s=9.0), fault(kind="drop_node")
KEEPER = fault(kind="kill", target="keeper")
COORDINATOR = fault(kind="kill", target="coordinator")


@pytest.mark.parametrize(
    ("event", "fell"),
    [
        (lose(), KILL),
        (lose(after_s=3600), KILL),
        (lose(HUNG, after_s=3600), STOP),
        (lose(HUNG, after_s=30), PAUSE),
        (lose(HUNG), fault(kind="slow")),
        (lose(), DROP),
        (lose(worker="w2"), DROP),
        (lose(GONE, "w2", host=None), DROP),
        (lose(worker="w2", node="n1"), DROP),
        (lose(HUNG, "w2"), PARTITION),
        (lose(HUNG, "w2", after_s=45), PARTITION),
        (lose(worker="w2", after_s=44), DROP),
        (lose(SILENT), PARTITION),
        (lose(worker="w2"), PARTITION),
        (lose(CUT, "w2", host="h2"), PARTITION),
        (lose(SILENT, "w2"), KEEPER),
        (lose(UNHEARD, "w2"), COORDINATOR),
        (lose(WRONG), fault(kind="flip", rank=0)),
        (lose(STUCK, "w2", host="h2"), KILL),
        (lose(STATELESS, "w2", host="h2"), KILL),
        (lose(HUNG, "w2"), fault(kind="hang_store")),
    ],
)
def test_what_a_fault_does_or_leads_to_is_of_the_plan(event: dict[str, Any], fell: FallenFault):
    assert not is_unplanned(event, fell)
    assert is_unplanned(event), "nothing fell"


@pytest.mark.parametrize(
    ("event", "fell"),
    [
        (lose(worker="w2"), KILL),
        (lose(worker="w2"), STOP),
        (lose(HUNG, "w2"), KILL),
        (lose(after_s=-30), KILL),
        (lose(after_s=3600), PAUSE),
        (lose(worker="w2", host="h2"), DROP),
        (lose(worker="w2", after_s=3600), DROP),
        (lose(worker="w2", after_s=46), DROP),
        (lose(SILENT), fault(kind="partition", last_s=0.5)),
        (lose(SILENT, "w2"), fault(kind="stop", target="keeper", resume_after_s=0.5)),
        (lose(worker="w2", host="h2"), PARTITION),
        (lose(worker="w2", node="n2"), DROP),
        (lose(RAISED, "w2"), DROP),
        (lose(RAISED), PARTITION),
        (lose(WRONG, "w2"), PARTITION),
        (lose(HUNG, "w2", host=None), DROP),
        (lose(CUT, "w2", host="h2", after_s=3600), PARTITION),
        (lose(), KEEPER),
        (lose(SILENT, host="h2"), KEEPER),
        (lose(), COORDINATOR),
        (lose(GONE), COORDINATOR),
        (lose(), fault(kind="flip", rank=0)),
        (lose(WRONG, "w2"), fault(kind="flip", rank=0)),
        (lose(), fault(kind="hang_store")),
        (lose(), fault(kind="fill_disk")),
        (lose(), fault(kind="skew_clock")),
        (lose(), replace(KILL, victim=None)),
        (lose(), replace(KILL, at_s=None)),
    ],
)
def test_what_no_fault_leads_to_is_not_of_the_plan(event: dict[str, Any], fell: FallenFault):
    assert is_unplanned(event, fell)


def test_it_is_told_with_the_step_and_the_first_and_last_line():
    raised = lose("it raised:\nTraceback:\n  File\nValueError: no")
    steps = [{"step": n, "committed_at_s": FELL_AT_S + n} for n in range(-5, 5)]
    told = tell_unplanned([raised], steps, (), NOTICE)
    assert told == ["after step 1: lost w1 (spare): it raised: … ValueError: no"]


def test_an_epoch_that_breaks_is_the_loss_of_nobody():
    event = {"kind": "failure", "at_s": 1.0, "text": "a collective failed", "data": {"epoch": "1"}}
    assert find_losses([event, lose()]) == [lose()]


def test_keepers_that_hear_neither_a_coordinator_nor_others_end_their_workers():
    elsewhere = lose(worker="w2", host="h2", after_s=20)
    lease = {"workers": {"w2": None}}
    ended = {"kind": "lease_ended", "at_s": FELL_AT_S + 30, "text": "", "data": lease}
    assert is_unplanned(elsewhere, COORDINATOR, DROP), "no Keeper tells that it did that"
    assert tell_unplanned([elsewhere, ended], [], [COORDINATOR, DROP], NOTICE) == []
    unheard = lose(SILENT, "w2", host="h2", after_s=20)
    assert not is_unplanned(unheard, COORDINATOR, DROP)
    assert is_unplanned(lose(HUNG, "w2", host="h2", after_s=20), COORDINATOR, DROP)
    assert is_unplanned(lose(SILENT, "w2", host="h2", after_s=120), COORDINATOR, DROP)
    long_past = replace(DROP, at_s=FELL_AT_S - 50)
    assert is_unplanned(unheard, COORDINATOR, long_past), "not at the same time"


def test_a_coordinator_that_stands_still_tells_late():
    late = lose(worker="w2", after_s=100)
    assert is_unplanned(late, DROP)
    away = fault(kind="stop", target="coordinator", resume_after_s=90.0)
    assert not is_unplanned(late, DROP, away)


def test_by_wrong_clocks_no_loss_is_too_early_or_too_late():
    for after_s in (-1e6, 1e6):
        assert is_unplanned(lose(worker="w2", after_s=after_s), DROP)
        assert not is_unplanned(lose(worker="w2", after_s=after_s), DROP, skewed=True)
        assert is_unplanned(lose(worker="w2", host="h2", after_s=after_s), DROP, skewed=True)


@pytest.mark.parametrize(("skewed", "is_told"), [("keeper", True), ("member", False)])
def test_who_tells_of_its_own_end_tells_it_by_its_own_clock(skewed: FaultTarget, *, is_told: bool):
    by_itself = replace(KILL, due_by="place")
    early = [lose(after_s=-30)]
    assert bool(tell_unplanned(early, [], [by_itself], NOTICE, skewed={skewed})) is is_told
    assert tell_unplanned(early, [], [KILL], NOTICE, skewed={skewed}), "the campaign tells it"


def test_a_fault_that_was_done_in_part_explains_as_one_that_fell():
    half = replace(PARTITION, victim=None, worker_id=None, host=None, undone="could not be done")
    assert not is_unplanned(lose(SILENT), half)
