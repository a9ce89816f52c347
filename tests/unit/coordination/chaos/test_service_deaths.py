"""A coordinator or Keeper that dies without a fault of the plan is told of."""

from dataclasses import replace
from typing import Any

import pytest

from trainflow.config.chaos_plan import ScheduledFault
from trainflow.coordination.chaos.fallen import FallenFault
from trainflow.coordination.chaos.findings import ServiceDeath
from trainflow.coordination.chaos.notice_times import NoticeTimes
from trainflow.coordination.chaos.schedule import PlannedFault
from trainflow.coordination.chaos.service_deaths import tell_unplanned_deaths

FELL_AT_S = 100.0
NOTICE = NoticeTimes(lease_s=10.0, hang_s=20.0, least_hang_s=10.0)
WITHIN_S = 100.0  # a lease, 30 s for another coordinator, and as long for who starts it
COORDINATOR = ServiceDeath("coordinator", FELL_AT_S + 5.0)
KEEPER = ServiceDeath("keeper", FELL_AT_S + 5.0, "n1", "h1")


def fault(**settings: Any) -> FallenFault:
    config = ScheduledFault.model_validate({"at_step": 3} | settings)
    told = FallenFault.of(PlannedFault(1, config, 0.0, at_step=3))
    return replace(told, victim="who", host="h1", node_id="n1", at_s=FELL_AT_S)


KILL = fault(kind="kill", target="keeper")
KILL_HEAD = fault(kind="kill", target="coordinator")
PARTITION = fault(kind="partition", last_s=9.0)


@pytest.mark.parametrize(
    ("death", "fell"),
    [
        (COORDINATOR, KILL_HEAD),
        (replace(COORDINATOR, seen_at_s=FELL_AT_S + WITHIN_S - 1), KILL_HEAD),
        (KEEPER, KILL),
        (KEEPER, replace(KILL, node_id=None)),
        (KEEPER, fault(kind="stop", target="keeper", resume_after_s=30)),
        (KEEPER, PARTITION),
        (replace(KEEPER, seen_at_s=FELL_AT_S + 9.0 + WITHIN_S - 1), PARTITION),
    ],
)
def test_what_a_fault_ends_is_of_the_plan(death: ServiceDeath, fell: FallenFault):
    assert tell_unplanned_deaths([death], [fell], NOTICE) == []


@pytest.mark.parametrize(
    ("death", "fell"),
    [
        (COORDINATOR, KILL),
        (COORDINATOR, PARTITION),
        (COORDINATOR, fault(kind="slow", target="coordinator")),
        (COORDINATOR, fault(kind="stop", target="coordinator", resume_after_s=30)),
        (replace(COORDINATOR, seen_at_s=FELL_AT_S - 2), KILL_HEAD),
        (replace(COORDINATOR, seen_at_s=FELL_AT_S + WITHIN_S + 1), KILL_HEAD),
        (KEEPER, fault(kind="kill")),
        (KEEPER, replace(KILL, victim=None)),
        (KEEPER, replace(KILL, at_s=None, victim=None)),
        (replace(KEEPER, node_id="n2"), KILL),
        (replace(KEEPER, host="h2"), replace(KILL, node_id=None)),
        (replace(KEEPER, node_id="n2"), PARTITION),
        (KEEPER, fault(kind="partition", last_s=0.5)),
        (KEEPER, fault(kind="stop", target="keeper", resume_after_s=0.5)),
    ],
)
def test_what_no_fault_ends_is_told(death: ServiceDeath, fell: FallenFault):
    name = "the coordinator" if death.target == "coordinator" else f"the Keeper of {death.host}"
    told = tell_unplanned_deaths([death], [fell], NOTICE)
    assert told == [f"{name} died, and another came in its place"]


def test_one_fault_explains_one_death_and_a_cut_as_many_as_there_are():
    assert len(tell_unplanned_deaths([KEEPER, KEEPER], [KILL], NOTICE)) == 1
    assert tell_unplanned_deaths([KEEPER, KEEPER], [KILL, KILL], NOTICE) == []
    assert tell_unplanned_deaths([KEEPER, KEEPER], [PARTITION], NOTICE) == []


def test_a_fault_that_is_known_not_to_be_elsewhere_explains_before_one_that_may_be_anywhere():
    anywhere = replace(KILL, node_id=None, host=None)
    elsewhere = replace(KEEPER, node_id="n2", host="h2")
    assert tell_unplanned_deaths([KEEPER, elsewhere], [anywhere, KILL], NOTICE) == []


def test_where_no_coordinator_is_there_to_tell_it_is_seen_late():
    late = replace(KEEPER, seen_at_s=FELL_AT_S + 150)
    assert tell_unplanned_deaths([late], [KILL], NOTICE)
    away = fault(kind="stop", target="coordinator", resume_after_s=60)
    assert tell_unplanned_deaths([late], [KILL, away], NOTICE) == []


def test_by_its_own_wrong_clock_a_process_ends_itself_at_any_time():
    by_itself = replace(KILL, due_by="place", at_s=FELL_AT_S + 3600)
    assert tell_unplanned_deaths([KEEPER], [by_itself], NOTICE, {"coordinator"})
    assert tell_unplanned_deaths([KEEPER], [by_itself], NOTICE, {"keeper"}) == []
