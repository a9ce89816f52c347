"""NCCL as a transport: CUDA tensors between GPUs.

Process: every rank.  Thread: connected by control, used by training, aborted by control.
Ranks: all of an epoch connect together.
"""

from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed import Store

from trainflow.communication.process_group import ProcessGroupTransport


class NcclTransport(ProcessGroupTransport):
    """One epoch's NCCL group on one device."""

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
