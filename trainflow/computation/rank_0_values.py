"""What all ranks take from rank 0, where their own may differ.

Buffers (running means, say) are what each rank's own batches have made of them. A norm is added up
in an order that depends on the kind of processor, and so are its last bits, though the gradients
are the same: ranks that clipped by their own would part.

Process: every rank.  Thread: training, in a commit.  Blocks: for one sum, if there is anything.
"""

from collections.abc import Collection, Sequence
from dataclasses import replace

import torch

from trainflow.communication.buffer_sync import share_buffers
from trainflow.communication.group import Group
from trainflow.communication.reduced_gradients import ReducedGradients
from trainflow.computation.training_state import PreparedModel


def take_from_rank_0(
    models: Collection[PreparedModel],
    reduced: Sequence[ReducedGradients | None],
    group: Group,
    device: torch.device,
) -> list[ReducedGradients] | None:
    """Overwrite persistent buffers with rank 0's; returns the gradients with its norms.

    The norm of a single model is left to `clip_alike`: it is in the commit record.

    Args:
        models: of the run.
        reduced: the gradients of each of them, or None: summing them failed.
        group: of the ranks.
        device: where to put what is sent.

    Returns:
        None if this collective failed, or one before.
    """
    gradients = [each for each in reduced if each is not None]
    if len(gradients) != len(reduced):
        return None
    buffers = [buffer for model in models for buffer in model.persistent_buffers()]
    if len(gradients) == 1:
        return gradients if share_buffers(buffers, group) else None
    norms = torch.tensor([each.norm for each in gradients], dtype=torch.float64).to(device)
    if not share_buffers([norms, *buffers], group):
        return None
    return [replace(e, norm=norm) for e, norm in zip(gradients, norms.tolist(), strict=True)]


def clip_alike(gradients: Sequence[ReducedGradients], norm: float) -> list[ReducedGradients]:
    """Return the gradients with rank 0's norms.

    Args:
        gradients: as `take_from_rank_0` has returned them.
        norm: of all models, as rank 0 computes it.
    """
    return [replace(each, norm=norm) for each in gradients] if len(gradients) == 1 else [*gradients]
