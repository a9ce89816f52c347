"""Which nodes hold the others up: by the slowest rank of each. Pure."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

PLACES = ("1", "2", "3", "4", "5")
"""How many nodes are told of, the slowest first: few enough for a run of a thousand."""


@dataclass(frozen=True)
class SlowestRank:
    """The rank of a node that the others wait for.

    Attributes:
        rank: of all of the node's the one that computes longest; of equals the first.
        compute_s: that it does in a step.
    """

    rank: int
    compute_s: float


def find_slowest(times_s: Mapping[int, float], nodes: Sequence[Hashable]) -> list[SlowestRank]:
    """Return the slowest rank of each node, that of the slowest node first.

    Args:
        times_s: that each rank computes, by its number in ascending order; some may be left out.
        nodes: where each rank is.
    """
    slowest: dict[Hashable, SlowestRank] = {}
    for rank, compute_s in times_s.items():
        node = nodes[rank]
        if node not in slowest or compute_s > slowest[node].compute_s:
            slowest[node] = SlowestRank(rank, compute_s)
    return sorted(slowest.values(), key=lambda each: (-each.compute_s, each.rank))
