"""Batch norms whose parameters are gathered in bf16, which not every device can compute.

Process: every rank.  Thread: training.
"""

import torch
from torch import nn
from torch.nn import functional

from trainflow.errors import TrainingError

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def require_norms_in_bf16(module: nn.Module, device: torch.device) -> None:
    """Refuse norms that a device doesn't compute with bf16 parameters and wider statistics.

    Args:
        module: built, and not sharded yet.
        device: where it computes.

    Raises:
        TrainingError: says which they are, and what to change.
    """
    norms = [
        name
        for name, each in module.named_modules()
        if isinstance(each, _BATCH_NORMS)
        and each.affine
        and each.running_mean is not None
        and each.running_mean.dtype != torch.bfloat16
    ]
    if norms and not _computes_mixed(device):
        raise TrainingError(
            "prepare: got parallel.gather: bf16 or fp8, and batch norms with parameters and "
            f"running statistics ({', '.join(norms)}), expected none on {device.type}, where torch "
            "doesn't compute them with bf16 parameters and fp32 statistics; set gather: fp32, and "
            "compute in bf16 with session.autocast(), or take nn.GroupNorm, nn.LayerNorm or "
            "affine=False"
        )


def _computes_mixed(device: torch.device) -> bool:
    """Try it; which devices do is a matter of torch's version."""
    values = torch.zeros(2, 1, dtype=torch.bfloat16, device=device)
    weight, statistics = values[0], torch.ones(1, device=device)
    try:
        functional.batch_norm(values, statistics, statistics.clone(), weight, weight, training=True)
    except RuntimeError:
        return False
    return True
