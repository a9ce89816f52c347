"""Which deaths of a run's coordinator and Keepers follow from no fault of the plan. Pure.

Another one takes the place of each, so that no event need tell of it: it is known by its pid.
"""

from collections.abc import Collection, Sequence

from trainflow.config.chaos_plan import FaultTarget
from trainflow.coordination.chaos.fallen import FallenFault
from trainflow.coordination.chaos.findings import ServiceDeath
from trainflow.coordination.chaos.notice_times import NoticeTimes

_ENDING = {"coordinator": frozenset({"kill"}), "keeper": frozenset({"kill", "stop"})}
_ABOUT_S = 1.0
_BACK_WITHIN_S = 60.0


def tell_unplanned_deaths(
    deaths: Sequence[ServiceDeath],
    faults: Sequence[FallenFault],
    notice: NoticeTimes,
    skewed: Collection[FaultTarget] = (),
) -> list[str]:
    """Say of each death that follows from no fault whose it was.

    A fault that falls on such a process explains one death. One that lasts may end the process only
    as it ends. A Keeper whose node is cut off may die as often as its node does.

    Args:
        deaths: in the order in which they were seen.
        faults: of the plan; those that fell explain.
        notice: how soon what is noticed.
        skewed: whose clocks were made wrong: the times that they tell say nothing.
    """
    away_s = sum(each.last_s or 0.0 for each in faults if each.target == "coordinator")
    within_s = notice.death_s + away_s + _BACK_WITHIN_S  # who starts it again may be away
    fell = (each for each in faults if each.at_s is not None and each.outcome.is_done)
    left = [each for each in fell if not each.is_borne(notice)]
    told: list[str] = []
    for death in deaths:
        explaining = [
            each
            for each in left
            if _may_lead_to(each, death)
            and (not each.is_timed(skewed) or _is_due(each, death, within_s))
        ]
        if not explaining:
            told.append(f"{_name(death)} died, and another came in its place")
            continue
        fault = min(explaining, key=_is_anywhere)  # the other may be what explains a later one
        if fault.target == death.target:
            left.remove(fault)
    return told


def _is_due(fault: FallenFault, death: ServiceDeath, within_s: float) -> bool:
    assert fault.at_s is not None, "it fell"
    until_s = fault.at_s + (fault.last_s or 0.0) + within_s
    return fault.at_s - _ABOUT_S <= death.seen_at_s <= until_s


def _is_anywhere(fault: FallenFault) -> bool:
    return fault.node_id is None


def _may_lead_to(fault: FallenFault, death: ServiceDeath) -> bool:
    if fault.target == death.target and fault.kind in _ENDING[death.target]:
        return death.target == "coordinator" or _is_there(fault, death)
    is_of_node = fault.kind in {"partition", "drop_node"}
    return is_of_node and death.target == "keeper" and _is_there(fault, death)


def _is_there(fault: FallenFault, death: ServiceDeath) -> bool:
    if fault.node_id is not None:
        return fault.node_id == death.node_id
    return None in {fault.host, death.host} or fault.host == death.host


def _name(death: ServiceDeath) -> str:
    return "the coordinator" if death.target == "coordinator" else f"the Keeper of {death.host}"
