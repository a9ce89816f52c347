"""Shard a model over ranks with FSDP2, layer by layer.

Process: every rank.  Thread: training.
"""

from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard

from trainflow.communication.fsdp_collectives import (
    GatherParameters,
    ScatterGradients,
    ShardExchange,
)
from trainflow.communication.mesh import RankMesh


def find_units(module: nn.Module) -> Iterator[nn.Module]:
    """Yield what is gathered as one: the layers of each outermost list or sequence of modules.

    Whatever is in none of them (embeddings, a head) is gathered with the model itself.
    """
    for child in module.children() if _is_list(module) else ():
        if any(parameter.requires_grad for parameter in child.parameters()):
            yield child
    if not _is_list(module):
        for child in module.children():
            yield from find_units(child)


def shard(module: nn.Module, mesh: RankMesh, exchange: ShardExchange) -> FSDPModule:
    """Shard a module in place.

    Args:
        module: built, perhaps on the meta device.
        mesh: the ranks that share each parameter.
        exchange: carries its collectives.
    """
    for unit in find_units(module):
        fully_shard(unit, mesh=mesh)
    root = fully_shard(module, mesh=mesh)
    gather: Any = GatherParameters(exchange)  # FSDP2's own types of these aren't public
    scatter: Any = ScatterGradients(exchange)
    for unit in module.modules():
        if isinstance(unit, FSDPModule):
            unit.set_custom_all_gather(gather)
            unit.set_custom_reduce_scatter(scatter)
            # Plain sums, which nothing is done to: they may still be on their way.
            unit.set_gradient_divide_factor(1.0)
            unit.set_force_sum_reduction_for_comms(True)
            unit.set_reduce_scatter_unused_params(True)
    return root


def _is_list(module: nn.Module) -> bool:
    return isinstance(module, nn.ModuleList | nn.Sequential)
