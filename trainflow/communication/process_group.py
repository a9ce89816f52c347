"""Collectives as torch's process groups of every library offer them.

Process: every rank.  Thread: training.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from trainflow.communication.transport import Work

if TYPE_CHECKING:
    import torch.distributed as dist
    from torch.distributed import ProcessGroup, ProcessGroupGloo, ProcessGroupNCCL


class ProcessGroupTransport:
    """One epoch's process group; how it is aborted differs by library."""

    def __init__(self, group: "ProcessGroup | ProcessGroupGloo | ProcessGroupNCCL"):
        self._group: Any = group  # the stubs leave the collectives out

    def _lend(self, tensor: Tensor) -> Tensor:
        """Return what the library gets for ``tensor``: the same memory."""
        return tensor

    def _watch(self, work: "dist.Work", *lent: Tensor) -> Work:
        """Return what is waited for: the library's work, unless its ``wait`` won't do."""
        del lent
        return work

    def _watch_transfer(self, work: "dist.Work", lent: Tensor) -> Work:
        """Return what is waited for when one rank sends to another."""
        return self._watch(work, lent)

    def all_reduce(self, tensor: Tensor) -> Work:
        """Sum in place; the order of summation is the library's."""
        lent = self._lend(tensor)
        return self._watch(self._group.allreduce([lent]), lent)

    def all_gather(self, output: Tensor, tensor: Tensor) -> Work:
        """Gather every rank's ``tensor`` into ``output``."""
        gather = self._group._allgather_base  # noqa: SLF001  no public flat form
        lent = self._lend(output), self._lend(tensor)
        return self._watch(gather(*lent), *lent)

    def all_to_all(self, output: Tensor, tensor: Tensor) -> Work:
        """Exchange equal parts."""
        lent = self._lend(output), self._lend(tensor)
        return self._watch(self._group.alltoall_base(*lent, [], []), *lent)

    def all_to_all_among(self, output: Tensor, tensor: Tensor, ranks: Sequence[int]) -> Work:
        """Exchange equal parts with some, and nothing with the others."""
        lent = self._lend(output), self._lend(tensor)
        part = tensor.numel() // len(ranks)
        splits = [part if rank in ranks else 0 for rank in range(self._group.size())]
        return self._watch(self._group.alltoall_base(*lent, splits, splits), *lent)

    def send(self, tensor: Tensor, to_rank: int) -> Work:
        """Send to one rank."""
        lent = self._lend(tensor)
        return self._watch_transfer(self._group.send([lent], to_rank, 0), lent)

    def recv(self, tensor: Tensor, from_rank: int) -> Work:
        """Receive from one rank."""
        lent = self._lend(tensor)
        return self._watch_transfer(self._group.recv([lent], from_rank, 0), lent)
