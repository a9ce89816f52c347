"""How many workers fit, and which of them begin as members. Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence

from trainflow.coordination.topology import Labels, choose_apart


def count_slots(nodes: Sequence[Mapping[str, float]], worker: Mapping[str, float]) -> int:
    """Return how many workers that need ``worker`` fit on nodes that have ``nodes`` resources."""
    wanted = {kind: amount for kind, amount in worker.items() if amount > 0}
    total = 0
    for node in nodes:
        fits = [int(node.get(kind, 0.0) / amount) for kind, amount in wanted.items()]
        total += min(fits, default=1)
    return total


def choose_members(bundle_nodes: Mapping[int, str], num_members: int) -> tuple[int, ...]:
    """Choose the bundles whose workers begin as members, evenly over nodes.

    The fuller a node is with members the fewer of the spares are elsewhere, so that evenness keeps
    the loss of any one node within what the spares of the others can take, where that is possible
    at all.
    """
    load: Counter[str] = Counter()
    left = sorted(bundle_nodes)
    chosen: list[int] = []
    while left and len(chosen) < num_members:
        bundle = min(left, key=lambda b: (load[bundle_nodes[b]], b))
        left.remove(bundle)
        load[bundle_nodes[bundle]] += 1
        chosen.append(bundle)
    return tuple(chosen)


def number_nodes(nodes: Sequence[str]) -> tuple[int, ...]:
    """Return for each rank a number for its node, in the order in which they come up."""
    numbers = {node: number for number, node in enumerate(dict.fromkeys(nodes))}
    return tuple(numbers[node] for node in nodes)


def choose_snapshot_ranks(
    nodes: Sequence[str], labels: Mapping[str, Labels], num_copies: int
) -> tuple[int, ...]:
    """Choose who copies a state out that every rank holds: rank 0, and one on each further node.

    Args:
        nodes: by rank.
        labels: of each of these nodes.
        num_copies: how many at most.
    """
    first = {node: rank for rank, node in reversed(list(enumerate(nodes)))}
    home, *others = sorted(first, key=lambda node: first[node])
    apart = choose_apart([labels[home]], [labels[node] for node in others], num_copies - 1)
    return tuple(sorted([0, *(first[others[index]] for index in apart)]))


def choose_room(
    free: Mapping[str, Mapping[str, float]], worker: Mapping[str, float], load: Mapping[str, int]
) -> str | None:
    """Choose the node for one more worker: of those with room, the one with fewest; None: none has.

    Args:
        free: by node, what nobody has reserved.
        worker: what a worker needs.
        load: by node, how many workers have a place there already.
    """
    with_room = [node for node in free if count_slots([free[node]], worker)]
    return min(with_room, key=lambda node: load.get(node, 0), default=None)
