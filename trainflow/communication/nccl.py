"""NCCL as a transport: CUDA tensors between GPUs.

Process: every rank.  Thread: connected by control, used by training, aborted by control.
Ranks: all of an epoch connect together.
"""

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import Store

from trainflow.communication.transport import Work


class NcclTransport:
    """One epoch's NCCL group on one device."""

    def __init__(self, group: "dist.ProcessGroupNCCL"):
        self._group: Any = group  # the stubs leave the collectives out

    def all_reduce(self, tensor: Tensor) -> Work:
        """Sum in place; the order of summation follows NCCL's topology."""
        return self._group.allreduce([tensor])

    def all_gather(self, output: Tensor, tensor: Tensor) -> Work:
        """Gather every rank's ``tensor`` into ``output``."""
        return self._group._allgather_base(output, tensor)  # noqa: SLF001  no public flat form

    def all_to_all(self, output: Tensor, tensor: Tensor) -> Work:
        """Exchange equal parts."""
        return self._group.alltoall_base(output, tensor, [], [])

    def send(self, tensor: Tensor, to_rank: int) -> Work:
        """Send to one rank."""
        return self._group.send([tensor], to_rank, 0)

    def recv(self, tensor: Tensor, from_rank: int) -> Work:
        """Receive from one rank."""
        return self._group.recv([tensor], from_rank, 0)

    def abort(self) -> None:
        """Abort this group's communicators."""
        self._group.abort()


class NcclConnector:
    """Connects NCCL transports on this process's current device."""

    def __init__(self, device: torch.device, *, collective_timeout_s: float):
        self._device = device
        self._collective_timeout_s = collective_timeout_s

    def __call__(self, store: Store, rank: int, world_size: int) -> NcclTransport:
        """Connect eagerly, so that no rank meets the store again in a step."""
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timedelta(seconds=self._collective_timeout_s)  # noqa: SLF001
        group = dist.ProcessGroupNCCL(store, rank, world_size, options)
        group.eager_connect_single_device(self._device)
        return NcclTransport(group)
