"""Which losses of workers follow from no fault of the plan, as far as is known. Pure.

A loss is told with its worker, its node and its cause; a fault with whom it fell on, when, and for
how long. What may follow from which kind of fault is what docs/chaos.md lists.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainflow.config.chaos_plan import FaultTarget
from trainflow.coordination.chaos.fallen import FallenFault
from trainflow.coordination.chaos.notice_times import NoticeTimes
from trainflow.monitoring.failure_causes import FailureCause, name_cause

Line = Mapping[str, Any]

_ABOUT_S = 1.0
_BACK_WITHIN_S = 30.0  # a Keeper or a coordinator that Ray starts again
_OF_ITS_OWN = frozenset({FailureCause.RAISED, FailureCause.WRONG_BITS, FailureCause.PREEMPTED})
_OF_ITS_NODE = frozenset({FailureCause.DIED, FailureCause.SILENT, FailureCause.UNSEEN})
_BY_A_CUT = frozenset(
    {FailureCause.HUNG, FailureCause.CUT_OFF, FailureCause.SILENT, FailureCause.UNSEEN}
)
_BY_A_STORE = frozenset({FailureCause.HUNG, FailureCause.RAISED})
_BY_NO_MAJORITY = frozenset({FailureCause.DIED, FailureCause.SILENT, FailureCause.UNSEEN})
_BY_A_NEW_COORDINATOR = (
    "it did not answer the new coordinator",
    "its training was over while the run was not",
)
_STUCK = "was given up"  # in an epoch that was broken, by whatever fault


@dataclass(frozen=True)
class _Loss:
    """A worker that was lost; host: address of its node, None where nobody knew; so node_id."""

    worker_id: str
    host: str | None
    node_id: str | None
    cause: FailureCause
    text: str
    at_s: float


def find_losses(events: Sequence[Line]) -> list[Line]:
    """Return the events that tell of the loss of a worker."""
    return [event for event in events if event["kind"] == "failure" and "worker" in event["data"]]


def tell_unplanned(
    events: Sequence[Line],
    steps: Sequence[Line],
    faults: Sequence[FallenFault],
    notice: NoticeTimes,
    *,
    skewed: Collection[FaultTarget] = (),
) -> list[str]:
    """Say of each loss that follows from no fault what was told of it.

    Args:
        events: lines of the run's ``events.jsonl``.
        steps: lines of its ``metrics.jsonl``.
        faults: of its plan; those that fell explain.
        notice: how soon what is told after what it follows from.
        skewed: whose clocks were made wrong: the times that they tell say nothing.
    """
    fell = [each for each in faults if _has_fallen(each) and not each.is_borne(notice)]
    away_s = [each.last_s or 0.0 for each in fell if each.target == "coordinator"]
    ended = {w for e in events if e["kind"] == "lease_ended" for w in e["data"]["workers"]}
    is_timed = "coordinator" not in skewed
    cut_s = _find_headless(fell, skewed) if is_timed else []
    told: list[str] = []
    for event in find_losses(events):
        loss = _read(event)
        is_explained = any(
            _may_follow(loss, each)
            for each in fell
            if not (is_timed and each.is_timed(skewed))
            or _is_due(loss, each, _find_within_s(loss, notice) + sum(away_s))
        )
        # A Keeper that hears no majority ends its workers, and tells of it once it is heard again.
        is_ended = loss.cause is not FailureCause.DIED or loss.worker_id in ended
        is_cut_off = is_ended and any(begin_s <= loss.at_s <= end_s for begin_s, end_s in cut_s)
        if not is_explained and not (is_cut_off and loss.cause in _BY_NO_MAJORITY):
            before = (line["step"] for line in steps if line["committed_at_s"] <= loss.at_s)
            told.append(f"after step {max(before, default=0)}: {_shorten(loss.text)}")
    return told


def _find_headless(
    fell: Sequence[FallenFault], skewed: Collection[FaultTarget]
) -> list[tuple[float, float]]:
    """Return when Keepers may have heard neither the coordinator nor most others, and told late.

    Such a one ends its workers.
    """
    heads = [_find_away(each) for each in fell if each.target == "coordinator"]
    peers = [
        _find_away(each) if each.is_timed(skewed) else (-math.inf, math.inf)
        for each in fell
        if each.target == "keeper" or each.kind in {"partition", "drop_node"}
    ]
    return [
        (max(head[0], peer[0]), max(head[1], peer[1]) + _BACK_WITHIN_S)
        for head in heads
        for peer in peers
        if max(head[0], peer[0]) <= min(head[1], peer[1])
    ]


def _find_away(fault: FallenFault) -> tuple[float, float]:
    """Return from when until when a fault may keep whom it fell on away."""
    assert fault.at_s is not None, "it fell"
    last_s = _BACK_WITHIN_S if fault.last_s is None else fault.last_s
    return fault.at_s, fault.at_s + last_s


def _has_fallen(fault: FallenFault) -> bool:
    """Whether it fell, if only in part."""
    return fault.at_s is not None and (fault.victim is not None or fault.undone is not None)


def _read(event: Line) -> _Loss:
    data = event["data"]
    cause = name_cause(event["text"], data)
    where = data.get("host"), data.get("node")
    return _Loss(data["worker"], *where, cause, event["text"], event["at_s"])


def _is_due(loss: _Loss, fault: FallenFault, within_s: float) -> bool:
    """Whether a loss comes while a fault lasts, or so soon after it that it may follow from it."""
    assert fault.at_s is not None, "it fell"
    if loss.at_s < fault.at_s - _ABOUT_S:
        return False
    is_gone = fault.last_s is None and fault.worker_id == loss.worker_id
    return is_gone or loss.at_s <= fault.at_s + (fault.last_s or 0.0) + within_s


def _is_there(loss: _Loss, fault: FallenFault) -> bool:
    """Whether a loss is on the node that a fault fell on, not on another under its address.

    Where that isn't known it is one that the loss of a node leads to.
    """
    if loss.node_id is not None and fault.node_id is not None:
        return loss.node_id == fault.node_id
    if loss.host is not None and fault.host is not None:
        return loss.host == fault.host
    return loss.cause in _OF_ITS_NODE


def _find_within_s(loss: _Loss, notice: NoticeTimes) -> float:
    """Return how long after what it follows from a loss may be told; coordinators there."""
    is_slow = loss.cause in {FailureCause.HUNG, FailureCause.CUT_OFF} or _STUCK in loss.text
    return notice.any_s if is_slow else notice.death_s


def _may_follow(loss: _Loss, fault: FallenFault) -> bool:
    """Whether a loss is what a fault does, or is known to lead to."""
    is_own = fault.worker_id == loss.worker_id
    is_there = _is_there(loss, fault)
    goes_along = is_there and loss.cause not in _OF_ITS_OWN
    is_late = loss.cause is FailureCause.STATELESS or _STUCK in loss.text
    match fault.kind, fault.target:
        case "kill" | "stop", "coordinator":
            follows = any(text in loss.text for text in _BY_A_NEW_COORDINATOR)
        case "kill" | "stop", "keeper":
            follows = is_there and loss.cause is FailureCause.SILENT
        case "kill" | "stop" | "slow", _:
            follows = is_own or is_late
        case "drop_node", _:
            follows = goes_along or is_late
        case "partition", _:
            follows = goes_along or is_late or loss.cause in _BY_A_CUT
        case "flip", _:
            follows = is_late or (is_own and loss.cause is FailureCause.WRONG_BITS)
        case kind, _:
            follows = kind == "hang_store" and loss.cause in _BY_A_STORE
    return follows


def _shorten(text: str) -> str:
    """Return the first line, and of a traceback the last one too, which has the error."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " … ".join(dict.fromkeys([lines[0], lines[-1]]))[:300]
