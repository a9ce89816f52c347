"""Who holds which rank next: a pure function of who is there.

No Ray, no torch, no clock. The invariants that the property tests hold: never two members with one
rank, a survivor keeps its rank while the world stays the same, no member that isn't available.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Candidate:
    """A worker that can be a member now."""

    worker_id: str
    node_id: str


@dataclass(frozen=True)
class Situation:
    """All that the next move depends on.

    Attributes:
        members: worker ids of the current epoch by rank; empty before the first.
        broken: the current epoch can't go on: a member is gone or its group failed.
        available: every worker that is warm and alive, members and spares, oldest first.
        minimum: fewest members to train with.
        target: members wanted.
        pausing: the members have been asked to stop at the next step boundary.
        group_size: members come in groups of so many, one after the other.
    """

    members: tuple[str, ...]
    broken: bool
    available: tuple[Candidate, ...]
    minimum: int
    target: int
    pausing: bool = False
    group_size: int = 1


@dataclass(frozen=True)
class FormEpoch:
    """Form an epoch of these members, by rank."""

    members: tuple[str, ...]


@dataclass(frozen=True)
class PauseToGrow:
    """Ask the members to stop at the next step boundary: more can take part."""

    members: tuple[str, ...]


@dataclass(frozen=True)
class WaitForWorkers:
    """Too few to go on."""

    num_available: int
    num_needed: int


@dataclass(frozen=True)
class CarryOn:
    """Nothing to change."""


Move = FormEpoch | PauseToGrow | WaitForWorkers | CarryOn


def decide_move(situation: Situation) -> Move:
    """Decide what to do about the membership.

    A spare takes a lost rank; without one the world shrinks, down to the minimum; a larger world is
    formed at a step boundary as soon as workers for it are there.
    """
    s = situation
    wanted = next_members(s.members, s.available, s.target, s.group_size)
    if s.members and not s.broken:
        grows = len(wanted) > len(s.members) and not s.pausing
        return PauseToGrow(wanted) if grows else CarryOn()
    needed = s.minimum if s.members else s.target
    if len(wanted) < needed:
        return WaitForWorkers(len(wanted), needed)
    return FormEpoch(wanted)


def next_members(
    previous: Sequence[str], available: Sequence[Candidate], target: int, group_size: int = 1
) -> tuple[str, ...]:
    """Fill up to ``target`` ranks, in whole groups.

    Survivors keep their ranks if every lost one can be filled, and otherwise, or where there are to
    be fewer, close up in order: groups that are whole first, then others in what groups they can
    make.
    A vacancy goes to a spare on the node that most of its group are on; of several such nodes, on
    that which holds the fewest members.
    """
    by_id = {candidate.worker_id: candidate for candidate in available}
    if len(previous) > target:  # else who had a rank beyond would fill one amid the others
        there = [worker_id if worker_id in by_id else None for worker_id in previous]
        previous = _close_up(there, group_size)
    slots: list[Candidate | None] = [by_id.get(worker_id) for worker_id in previous][:target]
    slots += [None] * (target - len(slots))
    taken = {slot.worker_id for slot in slots if slot is not None}
    spares = [candidate for candidate in available if candidate.worker_id not in taken]
    load = Counter(slot.node_id for slot in slots if slot is not None)
    for rank, slot in enumerate(slots):
        if slot is None and spares:
            start = rank // group_size * group_size
            near = Counter(each.node_id for each in slots[start : start + group_size] if each)

            def rate(spare: Candidate, near: Counter[str] = near) -> tuple[int, int]:
                return -near[spare.node_id], load[spare.node_id]

            chosen = min(spares, key=rate)
            spares.remove(chosen)
            load[chosen.node_id] += 1
            slots[rank] = chosen
    return _close_up([None if slot is None else slot.worker_id for slot in slots], group_size)


def _close_up(slots: Sequence[str | None], group_size: int) -> tuple[str, ...]:
    whole: list[str] = []
    others: list[str] = []
    for start in range(0, len(slots), group_size):
        group = [worker_id for worker_id in slots[start : start + group_size] if worker_id]
        (whole if len(group) == group_size else others).extend(group)
    members = whole + others
    return tuple(members[: len(members) // group_size * group_size])
