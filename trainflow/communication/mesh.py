"""A device mesh that names ranks, and carries nothing.

FSDP2 asks a mesh how many ranks share a parameter and which of them this one is. What they say to
each other goes over the epoch's own group instead (`fsdp_collectives`), which can be aborted, and
changes with every epoch while model and mesh stay. So there is no process group of torch's, no
rendezvous, and no default group in a process.

Process: every rank.  Thread: training.
"""

from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from trainflow.errors import TrainingError


class _RanksOnly(dist.ProcessGroup):
    """Knows rank and size; a collective over it is an error, since it has no backend."""

    def getBackendName(self) -> str:  # noqa: N802  torch's name
        return "trainflow"


class RankMesh(DeviceMesh):
    """One dimension of ranks that hold a model's shards.

    Args:
        device: where the model lives.
        rank: this one.
        world_size: number of ranks.
    """

    def __init__(self, device: torch.device, rank: int, world_size: int):
        super().__init__(device.type, torch.arange(world_size), _init_backend=False, _rank=rank)
        make: Any = _RanksOnly  # the stubs have another constructor
        self._ranks: dist.ProcessGroup = make(rank, world_size)

    # torch keeps what it has worked out for a mesh, and finds it again by equality: a process that
    # is given another rank has another mesh, though a process usually has one rank for life.

    def __eq__(self, other: object) -> bool:
        """Tell whether it is a mesh of the same ranks, seen from the same one."""
        return (
            isinstance(other, RankMesh)
            and super().__eq__(other)
            and self.get_coordinate() == other.get_coordinate()
        )

    def __hash__(self) -> int:
        """Hash what `__eq__` compares."""
        return hash((super().__hash__(), self.get_coordinate()))

    @property
    def _dim_group_names(self) -> list[str]:
        """What torch asks for a collective's group by."""
        raise TrainingError(
            "got a collective over a sharded tensor (full_tensor(), or a norm, a mean or a product "
            "of whole parameters), expected what each rank can compute of its own part: other "
            "ranks may have died, and only a step's own collectives survive that; take to_local() "
            "for this rank's part, session.full_state_dict() for whole parameters, "
            "Committed.grad_norm for the gradient's norm, or set parallel.mode: ddp"
        )

    def get_group(self, mesh_dim: int | str | None = None) -> dist.ProcessGroup:
        """Return what knows rank and size; of a mesh of one dimension there is one."""
        del mesh_dim
        return self._ranks
