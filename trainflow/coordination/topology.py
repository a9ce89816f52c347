"""How near nodes are to each other, and which of them fail together: by the labels they have. Pure.

Ray knows a node's region and zone on most clouds; its rack is known where somebody has said so
(``ray start --labels rack=a1``). Only racks tell what fails together: another zone or region is a
longer way, which each copy would go after every step.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

Labels = Mapping[str, str]

REGION = "ray.io/region"
ZONE = "ray.io/availability-zone"
RACK = "rack"

_SAME, _UNKNOWN, _OTHER = range(3)


def choose_apart(holding: Sequence[Labels], others: Sequence[Labels], count: int) -> list[int]:
    """Choose nodes to hold a state that others hold: in a rack of its own each, and near otherwise.

    Of a node without a rack it is unknown whether it is apart, wherever it is.

    Args:
        holding: labels of the nodes that hold it; the first is the one that copies come from.
        others: labels of those that may.
        count: how many at most.

    Returns:
        Indices into ``others``, the best first; where labels make no difference, in their order.
    """
    holding = list(holding)
    left = list(range(len(others)))
    chosen: list[int] = []
    while left and len(chosen) < count:
        best = min(left, key=lambda index: _unfitness(others[index], holding))
        left.remove(best)
        holding.append(others[best])
        chosen.append(best)
    return chosen


def rank_apart(holding: Sequence[Labels], others: Sequence[Labels]) -> list[int]:
    """Return indices of all others, the best to hold a copy first, each judged by itself.

    Other than with `choose_apart` those that come first may fail together; it takes less time.
    """
    return sorted(range(len(others)), key=lambda index: _unfitness(others[index], holding))


def find_apart(source: Labels, others: Sequence[Labels]) -> list[int]:
    """Return indices of the others that aren't known to fail together with ``source``.

    Where all of them are, there is nothing to choose: all count.
    """
    apart = [
        index
        for index, other in enumerate(others)
        if _compare(source, other, (REGION, ZONE, RACK)) != _SAME
    ]
    return apart or list(range(len(others)))


def choose_neighbours(
    ranked: Mapping[str, Sequence[str]],
    apart: Mapping[str, Collection[str]],
    willing: Collection[str],
    count: int,
) -> dict[str, list[str]]:
    """Choose for each node those that hold copies of its shards, so that none holds many.

    Args:
        ranked: for each node the others, the best first.
        apart: for each node those that don't fail together with it; they come before all others.
        willing: those that take copies.
        count: how many each is to have.

    Returns:
        For each node up to ``count`` others, of those apart the least loaded, of these the best.
    """
    load: Counter[str] = Counter()
    chosen: dict[str, list[str]] = {}
    for node, others in ranked.items():
        left = [other for other in others if other in willing and other != node]
        near = {other: other not in apart.get(node, ()) for other in left}
        left.sort(key=lambda other: (near[other], load[other]))  # of equal ones the best
        chosen[node] = left[:count]
        load.update(chosen[node])
    return chosen


def _unfitness(node: Labels, holding: Sequence[Labels]) -> tuple[int, int, int]:
    """Return what to minimise: what would be lost with a rack first, then the way there."""
    racks = [_compare(node, each, (REGION, ZONE, RACK)) for each in holding]
    source = holding[0] if holding else {}
    return (
        -min(racks, default=_OTHER),
        _compare(node, source, (REGION,)),
        _compare(node, source, (REGION, ZONE)),
    )


def _compare(one: Labels, other: Labels, keys: tuple[str, ...]) -> int:
    """Tell whether two nodes are at the same place, as narrow as the last key says.

    A wider place that is unknown of both is taken to be the same: racks of one hall need no zone.
    """
    if any(keys[-1] not in each for each in (one, other)):
        return _UNKNOWN
    for key in keys:
        if one.get(key) != other.get(key):
            return _OTHER if key in one and key in other else _UNKNOWN
    return _SAME
