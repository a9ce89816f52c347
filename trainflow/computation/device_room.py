"""Whether a rank's part of a model can fit on its device at all, told before anything is computed.

Only what must be there is counted: neither activations nor what an unknown optimizer keeps. So what
is refused never fits; what is not may still run out of memory.

Process: every rank.  Thread: training.  Pure, but for `total_bytes`.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.optim import Adam, Optimizer

from trainflow.computation.sharding import Sharding, find_gathered
from trainflow.computation.shards import local_part
from trainflow.errors import TrainingError

_BF16_BYTES = 2
_GIB = 2**30


@dataclass(frozen=True)
class Needs:
    """Bytes that a sharded model takes of a rank's device.

    Attributes:
        shards: the rank's parts of parameters.
        gradients: of those parts.
        states: what the optimizer keeps of them, as far as that is known.
        whole: parameters and gradients that are whole at once, at the worst moment.
        layer: whose moment that is; empty: the model's own.
    """

    shards: int
    gradients: int
    states: int
    whole: int
    layer: str

    @property
    def total(self) -> int:
        """What is whole is gone before the rank's part of all gradients is there."""
        return self.shards + self.states + max(self.gradients, self.whole)

    def with_states(self, optimizer: Optimizer) -> "Needs":
        """Count what an optimizer keeps from its first step on, once it is made: Adam's moments."""
        if not isinstance(optimizer, Adam) or not self.shards:
            return self
        parameters = (each for group in optimizer.param_groups for each in group["params"])
        return replace(self, states=2 * sum(local_part(each).nbytes for each in parameters))


def count_needs(module: nn.Module, num_shards: int, sharding: Sharding) -> Needs:
    """Count what a rank of a world needs.

    Args:
        module: built, perhaps on the meta device, and not sharded yet.
        num_shards: ranks that hold the model between them.
        sharding: how it is sharded.
    """
    names = {unit: name for name, unit in module.named_modules()}
    own = {names[unit]: list(unit.parameters()) for unit in find_gathered(module)}
    everything = list(module.parameters())
    apart = {each for parameters in own.values() for each in parameters}
    rest = [each for each in everything if each not in apart]
    # The model's own parameters stay gathered; of one unit at a time there are gradients too.
    whole = {
        name: _gathered_bytes(sharding, [*rest, *parameters, *_trained(parameters)])
        for name, parameters in own.items()
    }
    whole[""] = _gathered_bytes(sharding, [*rest, *_trained(rest)])
    if sharding.stays_in_forward:
        whole[""] = max(whole[""], _gathered_bytes(sharding, everything))
    layer = max(whole, key=whole.__getitem__)
    parts = 0 if sharding.offloads else 1
    return Needs(
        shards=parts * _part_bytes(everything, num_shards),
        gradients=parts * _part_bytes(_trained(everything), num_shards),
        states=0,
        whole=whole[layer],
        layer=layer,
    )


def require_room(needs: Needs, room_bytes: int | None, sharding: Sharding) -> None:
    """Refuse what can't fit.

    Args:
        needs: of the device.
        room_bytes: its memory; None: nobody knows.
        sharding: how the model is sharded, which may be changed.

    Raises:
        TrainingError: it needs more; says for what, and what to change.
    """
    if room_bytes is None or needs.total <= room_bytes:
        return
    at_once = f"layer {needs.layer}" if needs.layer else "what no layer has by itself"
    changes: list[str] = []
    if needs.whole > room_bytes:
        changes.append(f"put parts of {at_once} into an nn.ModuleList, to be gathered one by one")
    else:
        changes.append("raise workers.target and workers.minimum, or parallel.shard with hsdp")
        changes.append("set parallel.cpu_offload: true")
    if sharding.stays_in_forward:
        changes.append("set parallel.mode: fsdp")
    if not sharding.in_bf16:
        changes.append("set parallel.gather: bf16")
    raise TrainingError(
        f"prepare: got {_show(room_bytes)} of memory on the device, expected at least "
        f"{_show(needs.total)}: {_show(needs.shards)} for this rank's shards, "
        f"{_show(needs.states)} for what the optimizer keeps, and then {_show(needs.gradients)} "
        f"for gradients, or before that {_show(needs.whole)} for what is whole at once, when "
        f"{at_once} is; {', or '.join(changes)}"
    )


def total_bytes(device: torch.device) -> int | None:
    """Return how much memory a device has, whoever uses it; None if that isn't known."""
    return torch.cuda.mem_get_info(device)[1] if device.type == "cuda" else None


def _trained(parameters: Iterable[nn.Parameter]) -> list[nn.Parameter]:
    return [each for each in parameters if each.requires_grad]


def _gathered_bytes(sharding: Sharding, tensors: Iterable[Tensor]) -> int:
    """Return what whole parameters take, or their gradients, which are of the same type."""
    sizes = ((_BF16_BYTES if sharding.in_bf16 else t.element_size(), t.numel()) for t in tensors)
    return sum(element_bytes * number for element_bytes, number in sizes)


def _part_bytes(parameters: Iterable[Tensor], num_shards: int) -> int:
    """Return what a rank has of them: equal parts, along the first dimension."""
    return sum(
        -(-len(each) // num_shards) * each[:1].numel() * each.element_size() for each in parameters
    )


def _show(num_bytes: int) -> str:
    return f"{num_bytes / _GIB:.1f} GiB"
