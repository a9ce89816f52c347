"""Which rank takes which residuals when an epoch begins. Pure.

Every rank has a part of what compression has left out so far. A part is found with the member that
left it, or in the memory of a node whose worker is dead. As long as each rank finds its own,
nothing moves but that. In another world all parts are added up and dealt out anew in equal shares,
which leaves their sum what it was; and so they are after a step by whose number there is a
checkpoint, for a checkpoint holds their sum alone.
"""

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from trainflow.checkpointing.residual_file import PartId
from trainflow.epochs import INITIAL_EPOCH, EpochId


@dataclass(frozen=True)
class ResidualPlan:
    """What the members do; equal on all of them.

    Attributes:
        contributors: part -> rank that has it, or fetches it.
        fetched: the parts that no member has.
        lost: ranks of the old world whose part is nowhere; it counts as zero.
        is_dealt: all parts are added up, and each rank gets an equal share.
    """

    contributors: dict[PartId, int]
    fetched: frozenset[PartId]
    lost: tuple[int, ...]
    is_dealt: bool

    def own(self, rank: int) -> list[PartId]:
        """Return the parts that a rank contributes, in order."""
        mine = [part for part, by in self.contributors.items() if by == rank]
        return sorted(mine, key=lambda part: part.rank)


def is_complete(parts: Collection[PartId]) -> bool:
    """Whether these hold all parts of the newest deal that any of them belongs to."""
    if not parts:
        return False
    newest = max(_by_deal(parts).items())[1]
    return len(newest) == next(iter(newest.values())).world_size


def plan_residuals(
    by_member: Sequence[Collection[PartId]],
    elsewhere: Collection[PartId],
    *,
    deals_out: bool = False,
) -> ResidualPlan:
    """Decide who takes what.

    All parts go with the same state. Of several deals the newest counts that is whole: a rank
    writes over the one before only when the new one is whole on all ranks.

    Args:
        by_member: the parts that each member of the new epoch has, by its rank.
        elsewhere: those in the memory of nodes.
        deals_out: whether every rank takes an equal share, unless it has one already.
    """
    deals = _by_deal([part for parts in (*by_member, elsewhere) for part in parts])
    if not deals:
        return ResidualPlan({}, frozenset(), tuple(range(len(by_member))), is_dealt=False)
    chosen = max(deals.items(), key=lambda deal: (_share_found(deal[1]), deal[0]))[1]
    old_world = next(iter(chosen.values())).world_size
    contributors: dict[PartId, int] = {}
    for rank, parts in enumerate(by_member):
        for part in parts:
            if chosen.get(part.rank) == part:
                contributors.setdefault(part, rank)
    fetched = sorted(set(chosen.values()) - contributors.keys(), key=lambda part: part.rank)
    new_world = len(by_member)
    is_due = deals_out and next(iter(chosen.values())).dealt == INITIAL_EPOCH
    stays = old_world == new_world and all(p.rank == by for p, by in contributors.items())
    for part in fetched:
        contributors[part] = part.rank % new_world
    return ResidualPlan(
        contributors,
        frozenset(fetched),
        tuple(sorted(set(range(old_world)) - chosen.keys())),
        is_dealt=is_due or not stays,
    )


_Deal = tuple[EpochId, int]


def _by_deal(parts: Collection[PartId]) -> dict[_Deal, dict[int, PartId]]:
    deals: defaultdict[_Deal, dict[int, PartId]] = defaultdict(dict)
    for part in parts:
        deals[part.dealt, part.world_size][part.rank] = part
    return dict(deals)


def _share_found(deal: Mapping[int, PartId]) -> float:
    return len(deal) / next(iter(deal.values())).world_size
