"""A group whose other ranks are all as this one: to run a step in before there is a world.

Process: every rank.  Thread: training.  Blocks: never.
"""

import logging
from collections.abc import Sequence

from torch import Tensor

from trainflow.communication.group import Group
from trainflow.epochs import EpochId, EpochSpec

logger = logging.getLogger(__name__)


class _Done:
    def wait(self) -> bool:
        return True


class EchoTransport:
    """Gives back what is sent, as if every rank had sent it. See `Transport`."""

    def __init__(self, world_size: int):
        self._world_size = world_size

    def all_reduce(self, tensor: Tensor) -> _Done:
        """Leave it as it is: its numbers don't matter, its size does."""
        del tensor
        return _Done()

    def all_gather(self, output: Tensor, tensor: Tensor) -> _Done:
        """Repeat it."""
        output.view(self._world_size, -1).copy_(tensor.view(1, -1))
        return _Done()

    def all_to_all(self, output: Tensor, tensor: Tensor) -> _Done:
        """Return it."""
        output.copy_(tensor)
        return _Done()

    def all_to_all_among(self, output: Tensor, tensor: Tensor, ranks: Sequence[int]) -> _Done:
        """Return it."""
        del ranks
        output.copy_(tensor)
        return _Done()

    def send(self, tensor: Tensor, to_rank: int) -> _Done:
        """Nobody is there."""
        del tensor, to_rank
        return _Done()

    def recv(self, tensor: Tensor, from_rank: int) -> _Done:
        """Nobody is there."""
        del tensor, from_rank
        return _Done()

    def abort(self) -> None:
        """Nothing waits."""


def rehearsal_group(world_size: int, shard_size: int) -> Group:
    """Return a group of this rank, as rank 0, and its echoes; see `EpochSpec.shard_size`."""
    members = tuple(f"echo-{rank}" for rank in range(world_size))
    spec = EpochSpec(EpochId(0, 0), members, "", 0, shard_size=shard_size)
    return Group(
        spec,
        0,
        EchoTransport(world_size),
        lambda _epoch, reason: logger.warning("rehearsal: %s", reason),
    )
