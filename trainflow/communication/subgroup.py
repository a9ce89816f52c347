"""Some of a group's ranks, for sums that only they make: a model's shards, or its replicas.

They go over the group's own connections, so that whatever aborts the group aborts them.

Process: every rank.  Thread: training.
"""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from trainflow.communication.group import Group, Pending


class Ranks(Protocol):
    """What a two-hop sum asks of those that make it; a `Group`, or some of its ranks."""

    rank: int

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        ...

    @property
    def failure(self) -> str | None:
        """Why nothing they exchange counts any more, or None."""
        ...

    def all_gather(self, output: Tensor, tensor: Tensor) -> Pending:
        """Fill ``output`` (world_size * n elements) with every rank's ``tensor`` (n), by rank."""
        ...

    def all_to_all(self, output: Tensor, tensor: Tensor) -> Pending:
        """Send the r-th equal part of ``tensor`` to rank r; ``output`` holds parts by sender."""
        ...


class Subgroup:
    """See `Ranks`. Every rank of the group is in one such, and all issue the same at once.

    Args:
        group: the whole.
        ranks: of the group, ascending, its own among them; here they count from 0.
    """

    def __init__(self, group: Group, ranks: Sequence[int]):
        self._group = group
        self._ranks = tuple(ranks)
        self.rank = self._ranks.index(group.rank)

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self._ranks)

    @property
    def failure(self) -> str | None:
        """See `Ranks`."""
        return self._group.failure

    def all_gather(self, output: Tensor, tensor: Tensor) -> Pending:
        """See `Ranks`."""
        return self.all_to_all(output, tensor.reshape(1, -1).repeat(self.world_size, 1).view(-1))

    def all_to_all(self, output: Tensor, tensor: Tensor) -> Pending:
        """See `Ranks`."""
        return self._group.all_to_all_among(output, tensor, self._ranks)


def split(group: Group) -> tuple[Ranks, Ranks | None]:
    """Return this rank's own shard group and the ranks that hold the same shard.

    Returns:
        Those that hold the whole state between them, and, if there are several such groups, those
        of all of them that hold what this rank does.
    """
    size = group.spec.shard_size
    if size == group.world_size:
        return group, None
    first = group.rank // size * size
    shards = Subgroup(group, range(first, first + size))
    return shards, Subgroup(group, range(group.rank % size, group.world_size, size))
