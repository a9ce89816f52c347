"""A model's weights in one piece, whoever holds which part of them.

Process: every rank.  Thread: training.  Ranks: all call, or none; rank 0 gets them.
Blocks: until every rank has come.  Fails: `StepAborted` when a rank is lost.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from trainflow.communication.group import Group
from trainflow.computation.aborted import StepAborted
from trainflow.computation.shards import local_part
from trainflow.computation.stamps import StampWriter


@torch.no_grad()
def gather_weights(module: nn.Module, group: Group, stamps: StampWriter) -> dict[str, Any]:
    """Return ``module.state_dict()`` with whole tensors, copied to the host; empty but on rank 0.

    One tensor after the other is whole on every rank, and gone again before the next.
    """
    weights: dict[str, Any] = {}
    for name, value in module.state_dict().items():
        whole = _gather(value, group, stamps) if isinstance(value, DTensor) else value
        if group.rank == 0:
            weights[name] = _copy_to_host(whole) if isinstance(whole, Tensor) else whole
    return weights


def _gather(tensor: DTensor, group: Group, stamps: StampWriter) -> Tensor:
    """Put a tensor's shards together: equal parts along the first dimension, but for the last."""
    rows, *rest = tensor.shape
    part = -(-rows // group.spec.shard_size)
    local = local_part(tensor)
    mine = local.new_zeros((part, *rest))
    mine[: local.shape[0]] = local
    everyone = local.new_empty((group.world_size * part, *rest))
    with stamps.waiting():
        if not group.all_gather(everyone, mine).wait():
            raise StepAborted
    return everyone[:rows]  # of the first that hold it all between them


def _copy_to_host(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", copy=True)
