"""Give every member of a new epoch its part of the residuals.

Process: every rank.  Thread: training, parked between steps.  Ranks: all, with the same state.
Blocks: until the others have come, and on Keepers for a few seconds at most.
Fails: returns None when the group breaks; nothing that was whole is lost by that. What can't be had
from anywhere is zero from then on, and said.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass

import torch
from torch import Tensor

from trainflow.checkpointing.residual_client import fetch_part, list_parts
from trainflow.checkpointing.residual_file import PartId
from trainflow.communication.group import Group
from trainflow.computation.residual_memory import ResidualMemory, fill
from trainflow.computation.residual_plan import ResidualPlan, is_complete, plan_residuals
from trainflow.computation.residual_state import AfterEach, ResidualState, gather, sum_over_ranks
from trainflow.epochs import PeerAddress, Version
from trainflow.errors import TrainFlowError

logger = logging.getLogger(__name__)

_NUMBERS = 7
_NOTHING = (-1,) * _NUMBERS
_LISTED_WITHIN_S = 2.0

_Places = Mapping[PartId, PeerAddress]


@dataclass(frozen=True)
class Surroundings:
    """What settling needs of its rank.

    Attributes:
        group: of the new epoch.
        keepers: of nodes that may hold what dead members have left.
        device: of collectives.
        after_each: called after each collective.
        deals_out: after the step that all have, every rank takes an equal share.
    """

    group: Group
    keepers: Sequence[PeerAddress]
    device: torch.device
    after_each: AfterEach
    deals_out: bool = False


def settle(state: ResidualState, around: Surroundings) -> tuple[int, ...] | None:
    """Make `ResidualState.memory` hold this rank's part.

    Returns:
        The ranks of the world before whose residuals are lost, the same on every rank; None if the
        group failed.
    """
    memory, version = state.memory, state.version
    memory.enter(around.group.spec.epoch)
    if state.sums is not None or version is None:
        memory.forget(memory.counts)
        memory.kept.zero_()
        if state.sums is not None:
            fill(memory.named(memory.kept), state.sums, around.group.world_size)
        return ()
    found = _find(memory, version, around)
    if found is None:
        return None
    by_member, elsewhere = found
    plan = plan_residuals(by_member, elsewhere.keys(), deals_out=around.deals_out)
    own = {part: _fetch(part, elsewhere[part], memory) for part in _to_fetch(plan, around.group)}
    placed = (_deal if plan.is_dealt else _take)(memory, version, plan, own, around)
    if placed is None:
        return None
    failed = [part.rank for part, fetched in own.items() if fetched is None]
    failed += [-1] * (1 + len(plan.fetched) - len(failed))
    # Who gets past this knows that all have theirs, and may write over what was before.
    told = gather(around.group, failed, around.device)
    if told is None:
        return None
    memory.use(placed)
    return tuple(sorted({*plan.lost, *(rank for row in told for rank in row if rank >= 0)}))


def _find(
    memory: ResidualMemory, version: Version, around: Surroundings
) -> tuple[list[list[PartId]], _Places] | None:
    """Tell each other who has what, and ask Keepers for the rest."""
    mine = [part if part is not None and part.version == version else None for part in memory.parts]
    numbers = [n for part in mine for n in (_NOTHING if part is None else part.pack())]
    rows = gather(around.group, numbers, around.device)
    if rows is None:
        return None
    by_member = [_unpack(row) for row in rows]
    known = {part for parts in by_member for part in parts}
    if is_complete(known):
        return by_member, {}
    elsewhere = _share(_ask(version, known, around), around)
    return None if elsewhere is None else (by_member, elsewhere)


def _unpack(numbers: Sequence[int]) -> list[PartId]:
    packed = [tuple(numbers[i : i + _NUMBERS]) for i in range(0, len(numbers), _NUMBERS)]
    return [PartId.unpack(each) for each in packed if each != _NOTHING]


def _ask(
    version: Version, known: Collection[PartId], around: Surroundings
) -> list[tuple[PartId, int]]:
    """On rank 0, ask every Keeper for parts that no member has; returns each with whose it is."""
    if around.group.rank != 0 or not around.keepers:
        return []
    pool = ThreadPoolExecutor(len(around.keepers))
    asked = [pool.submit(list_parts, keeper, version) for keeper in around.keepers]
    done, _ = wait(asked, timeout=_LISTED_WITHIN_S)
    pool.shutdown(wait=False)
    found: dict[PartId, int] = {}
    for number, answer in enumerate(asked):
        error = answer.exception() if answer in done else TimeoutError("no answer in time")
        if error is not None:
            logger.warning("%s was not asked: %s", around.keepers[number].host, error)
            continue
        for part in answer.result():
            if part not in known:
                found.setdefault(part, number)
    return sorted(found.items(), key=lambda each: each[0].pack())


def _share(found: Sequence[tuple[PartId, int]], around: Surroundings) -> _Places | None:
    """Tell all ranks what rank 0 has found."""
    counts = gather(around.group, [len(found)], around.device)
    if counts is None or counts[0][0] == 0:
        return None if counts is None else {}
    numbers = [n for part, keeper in found for n in (*part.pack(), keeper)]
    rows = gather(around.group, numbers or [0] * (_NUMBERS + 1) * counts[0][0], around.device)
    if rows is None:
        return None
    entries = [rows[0][i : i + _NUMBERS + 1] for i in range(0, len(rows[0]), _NUMBERS + 1)]
    return {PartId.unpack(tuple(part)): around.keepers[keeper] for *part, keeper in entries}


def _to_fetch(plan: ResidualPlan, group: Group) -> list[PartId]:
    return [part for part in plan.own(group.rank) if part in plan.fetched]


def _fetch(part: PartId, keeper: PeerAddress, memory: ResidualMemory) -> Tensor | None:
    """Read a part from a Keeper; None if it can't be had."""
    fetched = torch.empty(memory.kept.numel())
    try:
        fetch_part(keeper, part, fetched.numpy().data.cast("B"))
    except (OSError, TrainFlowError) as error:
        logger.warning("residuals of rank %d are lost: %s", part.rank, error)
        return None
    return fetched


def _take(
    memory: ResidualMemory,
    version: Version,
    plan: ResidualPlan,
    fetched: Mapping[PartId, Tensor | None],
    around: Surroundings,
) -> int:
    """Have this rank's part, as it is, in one of the places; returns which."""
    rank, world_size = around.group.rank, around.group.world_size
    part = next(iter(plan.own(rank)), None)
    if part is not None and part in memory.parts:
        return memory.parts.index(part)
    memory.forget(0)
    content = None if part is None else fetched[part]
    if content is None:
        memory.places[0].zero_()
    else:
        memory.places[0].copy_(content)
    dealt = next((each.dealt for each in plan.contributors), around.group.spec.epoch)
    memory.complete(0, PartId(version, dealt, world_size, rank))
    return 0


def _deal(
    memory: ResidualMemory,
    version: Version,
    plan: ResidualPlan,
    fetched: Mapping[PartId, Tensor | None],
    around: Surroundings,
) -> int | None:
    """Add all parts up and take an equal share; returns the place it is in."""
    group = around.group
    held = [part for part in plan.own(group.rank) if part in memory.parts]
    place = 1 - memory.parts.index(held[0]) if held else 0
    memory.forget(place)
    total = memory.places[place]
    if held:
        total.copy_(memory.places[1 - place])
    else:
        total.zero_()
    for content in fetched.values():
        if content is not None:
            total.add_(content.to(total.device))
    if not sum_over_ranks(total, group, around.after_each):
        return None
    total.div_(group.world_size)
    memory.complete(place, PartId(version, group.spec.epoch, group.world_size, group.rank))
    return place
