"""Which pairs of nodes are cut from each other, and which node of them gives its ranks up. Pure."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple


class Cut(NamedTuple):
    """Two nodes, by their ids in order, of which one at least can't reach the other."""

    one: str
    other: str


def find_cuts(unreachable: Mapping[str, Collection[str]]) -> frozenset[Cut]:
    """Return which pairs are cut, whichever end has noticed.

    Args:
        unreachable: of each node that has answered, which others it can't reach. What is said of
            nodes that haven't answered counts for nothing: those may be gone.
    """
    return frozenset(
        Cut(*sorted((one, other)))
        for one, others in unreachable.items()
        for other in others
        if other in unreachable and other != one
    )


def choose_leaving(cuts: Collection[Cut], ranks_on: Mapping[str, Sequence[int]]) -> list[str]:
    """Choose nodes to give their ranks up, until no two that are left are cut from each other.

    Each time the node that is cut from most others; of several that with the fewest ranks; of
    several the one whose lowest rank is highest, so that rank 0 stays.

    Args:
        cuts: between nodes with ranks.
        ranks_on: the ranks of each node.
    """
    left = {cut for cut in cuts if all(ranks_on.get(node) for node in cut)}
    leaving: list[str] = []
    while left:
        num_cuts = Counter(node for cut in left for node in cut)
        chosen = min(
            num_cuts,
            key=lambda node: (-num_cuts[node], len(ranks_on[node]), -min(ranks_on[node])),
        )
        leaving.append(chosen)
        left = {cut for cut in left if chosen not in cut}
    return leaving
