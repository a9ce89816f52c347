"""Put weights that another program saved into a model, and look at tensors as bytes.

Process: one of its own, for `trainflow checkpoints`.
"""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from trainflow.errors import StateError

_SHOWN = 8
_CHANGE = "import weights of the model that the job's training function builds"


@torch.no_grad()
def load_weights(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Copy ``tensors`` into ``module``, which must have use for each, and miss none.

    A tensor that the module has under several names may come under any of them. Buffers that aren't
    in ``module.state_dict()`` may be left out. Frozen parameters may be left out too, and must be
    equal where they are given: a run has them from its training function, not from a checkpoint.
    A floating-point type may be widened, which is exact.

    Raises:
        StateError: a tensor is missing, unknown, of another shape or of a type that doesn't fit, or
            a frozen parameter differs.
    """
    own = _tensors_by_every_name(module)
    _refuse("tensors that the model doesn't have", tensors.keys() - own.keys())
    given = {id(own[name]) for name in tensors}
    needed = module.state_dict(keep_vars=True)
    _refuse(
        "nothing for some of its tensors",
        (key for key, each in needed.items() if id(each) not in given and not _is_frozen(each)),
    )
    written: set[int] = set()
    for name, tensor in tensors.items():
        _require_fit(name, own[name], tensor)
        if not _is_frozen(own[name]) and id(own[name]) not in written:
            own[name].copy_(tensor)
            written.add(id(own[name]))
        elif not torch.equal(own[name].cpu(), tensor.to(own[name].dtype)):
            kind = "frozen parameter" if _is_frozen(own[name]) else "tensor under its other name"
            raise StateError(
                f"weights: {name}: got other values than those of the {kind}, expected the same; "
                "a frozen parameter is as the training function makes it"
            )


def bytes_of(tensor: Tensor) -> memoryview:
    """Return the bytes of a tensor on the CPU, its elements in C order; a copy only if need be."""
    data: Any = tensor.detach().contiguous().view(-1).view(torch.uint8).numpy()
    return memoryview(data)


def names_in(module: nn.Module) -> frozenset[str]:
    """Return every name under which `load_weights` takes a tensor."""
    return frozenset(_tensors_by_every_name(module))


def _tensors_by_every_name(module: nn.Module) -> dict[str, Tensor]:
    """Return parameters and buffers by every name that they have."""
    parameters = module.named_parameters(remove_duplicate=False)
    return {**dict(parameters), **dict(module.named_buffers(remove_duplicate=False))}


def _is_frozen(tensor: object) -> bool:
    return isinstance(tensor, nn.Parameter) and not tensor.requires_grad


def _require_fit(name: str, own: Tensor, incoming: Tensor) -> None:
    widens = (
        incoming.is_floating_point()
        and own.is_floating_point()
        and torch.promote_types(incoming.dtype, own.dtype) == own.dtype
    )
    if own.shape != incoming.shape or not (own.dtype == incoming.dtype or widens):
        raise StateError(
            f"weights: {name}: got {tuple(incoming.shape)} {incoming.dtype}, expected "
            f"{tuple(own.shape)} {own.dtype}; {_CHANGE}"
        )


def _refuse(what: str, names: Iterable[str]) -> None:
    found = sorted(names)
    if found:
        more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        raise StateError(
            f"weights: got {what} ({', '.join(found[:_SHOWN])}{more}), expected the model's own "
            f"names; {_CHANGE}"
        )
