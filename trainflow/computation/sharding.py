"""Shard a model over ranks with FSDP2, layer by layer.

Process: every rank.  Thread: training.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
)

from trainflow.communication.fsdp_collectives import (
    GatherParameters,
    ScatterGradients,
    ShardExchange,
)
from trainflow.communication.mesh import RankMesh
from trainflow.communication.parameter_gather import ParameterPart
from trainflow.config.parallel import ParallelConfig

_HOST = torch.device("cpu")


@dataclass(frozen=True)
class Sharding:
    """How a model is sharded.

    Attributes:
        stays_in_forward: a unit's parameters stay gathered from forward to backward.
        stays_in_step: and from one microbatch to the next.
        offloads: shards lie in the host's memory, and a GPU computes.
        in_bf16: units are computed with in bf16; what the model returns is fp32.
        is_digested: sums of gradients are hashed also where no other rank has them.
    """

    stays_in_forward: bool = False
    stays_in_step: bool = False
    offloads: bool = False
    in_bf16: bool = False
    is_digested: bool = False

    @classmethod
    def of(cls, parallel: ParallelConfig, device: torch.device) -> "Sharding":
        """Return what a job asks for where its models compute on ``device``."""
        offloads = parallel.cpu_offload and device != _HOST
        return cls(
            stays_in_forward=parallel.mode in {"zero1", "zero2"},
            stays_in_step=parallel.mode == "zero1",
            offloads=offloads,
            in_bf16=parallel.gather != "fp32",
        )

    def precision(self, *, is_root: bool) -> MixedPrecisionPolicy:
        """Return FSDP2's types for a unit. Gradients are summed in fp32, the type of shards."""
        if not self.in_bf16:
            return MixedPrecisionPolicy()
        returned = torch.float32 if is_root else None
        return MixedPrecisionPolicy(torch.bfloat16, torch.float32, returned)

    def home(self, device: torch.device) -> torch.device:
        """Return where shards lie if the model computes on ``device``."""
        return _HOST if self.offloads else device


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


def find_gathered(module: nn.Module) -> list[nn.Module]:
    """Return the units that are gathered by themselves; the model itself has all else.

    That has what is called not as a whole, and what others use a part of, as where weights are
    tied across layers: it must stay one parameter.
    """
    users: dict[object, set[nn.Module]] = defaultdict(set)
    for each in module.modules():
        for used in (*each.children(), *each.parameters(recurse=False)):
            users[used].add(each)

    def stands_alone(unit: nn.Module) -> bool:
        inside = set(unit.modules())
        parts = (*unit.parameters(), *(inside - {unit}))
        return has_forward(unit) and all(users[part] <= inside for part in parts)

    return [unit for unit in dict.fromkeys(find_units(module)) if stands_alone(unit)]


def has_forward(unit: nn.Module) -> bool:
    """Whether it is called itself, and not only what it contains."""
    return type(unit).forward is not nn.Module.forward


def shard(
    module: nn.Module, mesh: RankMesh, exchange: ShardExchange, sharding: Sharding
) -> FSDPModule:
    """Shard a module in place.

    Args:
        module: built, perhaps on the meta device.
        mesh: the ranks that share each parameter.
        exchange: carries its collectives.
        sharding: how.
    """
    policy = CPUOffloadPolicy() if sharding.offloads else OffloadPolicy()
    frees = False if sharding.stays_in_forward else None  # None: all but the root, which is next
    how: dict[str, Any] = {
        "mesh": mesh,
        "reshard_after_forward": frees,
        "offload_policy": policy,
    }
    for unit in find_gathered(module):
        fully_shard(unit, **how, mp_policy=sharding.precision(is_root=False))
    root = fully_shard(module, **how, mp_policy=sharding.precision(is_root=True))
    for name, unit in module.named_modules():
        if isinstance(unit, FSDPModule):
            parts = [
                ParameterPart.of(each.sharded_param.shape, each.padded_sharded_param_size.numel())
                for each in records_of(unit)
            ]
            of_what = name or "what is in no unit"
            gather: Any = GatherParameters(exchange, parts, of_what)  # FSDP2's types aren't public
            unit.set_custom_all_gather(gather)
            scatter: Any = ScatterGradients(exchange, of_what)
            unit.set_custom_reduce_scatter(scatter)
            # Plain sums, which nothing is done to: they may still be on their way.
            unit.set_gradient_divide_factor(1.0)
            unit.set_force_sum_reduction_for_comms(True)
            unit.set_reshard_after_backward(not sharding.stays_in_step, recurse=False)
    return root


def free_gathered(module: nn.Module) -> None:
    """Let go of gathered parameters: of those that no backward has followed upon.

    Until then they are what ``module.parameters()`` gives, and what the next forward takes.
    """
    for unit in module.modules():
        if isinstance(unit, FSDPModule):
            unit.reshard()


def forget_gradients(module: nn.Module) -> None:
    """Let go of whole gradients that an abandoned step's microbatches have left.

    FSDP2's `reset_iter_state` says so, and in torch 2.13 doesn't: the next step would add to them.
    """
    for each in (each for records in _records_of_units(module) for each in records):
        each.unsharded_accumulated_grad = None
        if hasattr(each, "unsharded_param"):  # it has been gathered
            each.unsharded_param.grad = None


def scale_gradients(module: nn.Module, factor: float) -> None:
    """Multiply whole gradients that a step's microbatches have left so far."""
    for each in (each for records in _records_of_units(module) for each in records):
        whole = each.unsharded_param.grad if hasattr(each, "unsharded_param") else None
        for grad in (each.unsharded_accumulated_grad, whole):
            if grad is not None:
                grad.mul_(factor)


def fill_up_gradients(module: nn.Module) -> None:
    """Where some of a unit's parameters have sums of earlier microbatches, give the others zeros.

    FSDP2 keeps these sums in the type that travels, and in torch 2.13 refuses to send them together
    with gradients of another type, which those may have, or get, that have none yet.
    """
    for records in _records_of_units(module):
        kept = [each.unsharded_accumulated_grad for each in records]
        some = next((grad for grad in kept if grad is not None), None)
        if some is None:
            continue
        for each, grad in zip(records, kept, strict=True):
            whole = each.unsharded_param
            if grad is None and whole.requires_grad:
                each.unsharded_accumulated_grad = torch.zeros_like(whole, dtype=some.dtype)


def _records_of_units(module: nn.Module) -> Iterator[list[Any]]:
    return (records_of(unit) for unit in module.modules() if isinstance(unit, FSDPModule))


def records_of(unit: FSDPModule) -> list[Any]:
    """Return FSDP2's own records of the parameters that a unit gathers, in the order it does."""
    fsdp: Any = unit
    groups = fsdp._get_fsdp_state()._fsdp_param_groups  # noqa: SLF001  there is no other way
    return [each for group in groups for each in group.fsdp_params]


def _is_list(module: nn.Module) -> bool:
    return isinstance(module, nn.ModuleList | nn.Sequential)
