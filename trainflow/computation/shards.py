"""Which part of a tensor a rank holds, and that part as a plain tensor.

Pure, apart from the tensors it hands on.
"""

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from trainflow.checkpointing.boxes import Box, whole
from trainflow.checkpointing.snapshot import Place


def local_part(tensor: Tensor) -> Tensor:
    """Return this rank's elements: of a sharded tensor its shard, of another one all; no copy."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def box_of(tensor: Tensor) -> Box:
    """Return where this rank's elements lie in the whole tensor.

    A sharded one is cut along its first dimension into equal parts, of which the last may be
    shorter, or empty.
    """
    if not isinstance(tensor, DTensor):
        return whole(tensor.shape)
    rows, *rest = tensor.shape
    where, ranks = tensor.device_mesh.get_coordinate(), tensor.device_mesh.size()
    assert where is not None, "a rank is in its own mesh"
    rank = where[0]
    part = -(-rows // ranks)
    start = min(rank * part, rows)
    return Box((start, *[0] * len(rest)), (min(part, rows - start), *rest))


def place_of(tensor: Tensor) -> Place | None:
    """Return where this rank's elements lie; None if they are all there are."""
    if not isinstance(tensor, DTensor):
        return None
    return Place(tuple(tensor.shape), box_of(tensor).offset)


def like(parameter: Tensor, local: Tensor) -> Tensor:
    """Return a shard as a part of a tensor that is sharded as ``parameter`` is."""
    if not isinstance(parameter, DTensor):
        return local
    if local.device.type != parameter.device_mesh.device_type:  # its shards are offloaded
        own = torch.empty_like(parameter, dtype=local.dtype)
        local_part(own).copy_(local)
        return own
    return DTensor.from_local(
        local,
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )


def rows_of(full: Tensor, parameter: Tensor) -> Tensor:
    """Return of a whole tensor what this rank holds of ``parameter``; a view."""
    return full[box_of(parameter).slices] if full.dim() else full
