"""Give every rank rank 0's buffers with each step, as DDP does: BatchNorm statistics and the like.

Process: every rank.  Thread: training.  Ranks: all call with buffers of the same shapes and types.
Blocks: until every rank has come.
Fails: never raises; returns False and leaves the buffers as they were.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from trainflow.communication.group import Group


def share_buffers(buffers: Sequence[Tensor], group: Group) -> bool:
    """Overwrite ``buffers`` with rank 0's; True when done.

    One sum of bytes, to which the other ranks add zeros: exact for every dtype.
    """
    if not buffers:
        return True
    flat = torch.cat([buffer.detach().reshape(-1).view(torch.uint8) for buffer in buffers])
    if group.rank != 0:
        flat.zero_()
    if not group.all_reduce(flat).wait():
        return False
    parts = flat.split([buffer.nbytes for buffer in buffers])
    for buffer, part in zip(buffers, parts, strict=True):
        # A copy, since a view as a wider type needs an aligned start.
        buffer.detach().copy_(part.clone().view(buffer.dtype).view(buffer.shape))
    return True
