"""Which nodes are to take no more ranks, workers or copies, as long as there are others. Plain."""

from collections.abc import Collection
from dataclasses import dataclass, field


@dataclass
class UnfitNodes:
    """Node ids; whoever finds out puts them here, and who places something looks.

    Attributes:
        draining: nodes that are to be emptied, with the CLOCK_REALTIME of their deadlines: ranks
            leave them between two steps. Those that are gone meanwhile stay here.
        isolated: nodes that have failed too often: who has a rank there keeps it.
        cut_off: nodes that can't reach others with ranks, and have given theirs up.
        unheard: nodes that were given up as silent, though Ray has them alive.
    """

    draining: dict[str, float] = field(default_factory=dict[str, float])
    isolated: frozenset[str] = frozenset()
    cut_off: frozenset[str] = frozenset()
    unheard: frozenset[str] = frozenset()

    def __contains__(self, node_id: str) -> bool:
        return node_id in self.all()

    def all(self) -> frozenset[str]:
        """Return all of them."""
        return self.isolated.union(self.cut_off, self.unheard, self.draining)

    def leave_out(self, node_ids: Collection[str], at_least: int) -> list[str]:
        """Return those that are fit, where that leaves enough; else all, in their order."""
        fit = [node_id for node_id in node_ids if node_id not in self]
        return fit if len(fit) >= at_least else list(node_ids)
