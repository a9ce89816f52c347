"""Build a module whose parameters take no memory, and whose buffers are what they should be.

Process: every rank.  Thread: training.
"""

import weakref
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from trainflow.computation.parameter_marks import copy_marks
from trainflow.computation.real_draws import RealDraws

_META = torch.device("meta")
_REGISTERED = frozenset({"_parameters", "_buffers", "_modules"})  # where a module has them


@contextmanager
def meta_parameters() -> Generator[RealDraws]:
    """Have every parameter that a module is given inside be one on the meta device.

    Each is made as it is, and dropped at once: no more than one is in memory at a time. Buffers
    stay: those that aren't state (rotary frequencies, masks) exist nowhere but in the code that
    makes them.

    Yields:
        What tells whether the module is another one than with values: where something was drawn.
    """
    register = nn.Module.register_parameter
    draws = RealDraws()
    made: dict[int, tuple[weakref.ref[nn.Parameter], nn.Parameter]] = {}

    def on_meta(param: nn.Parameter) -> nn.Parameter:
        """Return what stands in its place; where several modules are given it, the same."""
        original, stand_in = made.get(id(param), (None, None))
        if original is None or stand_in is None or original() is not param:
            stand_in = nn.Parameter(param.detach().to(_META), requires_grad=param.requires_grad)
            copy_marks(param, stand_in)
            made[id(param)] = weakref.ref(param), stand_in
        return stand_in

    def register_on_meta(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        if param is not None and param.device != _META:
            draws.follows = True
            param = on_meta(param)
        register(self, name, param)

    nn.Module.register_parameter = register_on_meta
    try:
        with draws:
            yield draws
    finally:
        nn.Module.register_parameter = register


def find_hollow_buffers(module: nn.Module) -> list[str]:
    """Return the buffers that aren't state, and were made from values that parameters here lack."""
    state = module.state_dict().keys()
    return [name for name, each in module.named_buffers() if each.is_meta and name not in state]


def has_hollow_attributes(module: nn.Module) -> bool:
    """Whether modules have plain tensors, in lists too, that were made from such values.

    Parameters may be there beside being registered, as in an LSTM.
    """
    plain = (
        value
        for each in module.modules()
        for name, value in vars(each).items()
        if name not in _REGISTERED
    )
    return any(
        isinstance(leaf, torch.Tensor) and leaf.is_meta and not isinstance(leaf, nn.Parameter)
        for leaf in tree_leaves(list(plain))
    )


def materialise(module: nn.Module, device: torch.device) -> None:
    """Give what is on the meta device memory, of zeros."""

    def make(tensor: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(tensor, device=device) if tensor.is_meta else tensor

    any_module: Any = module
    any_module._apply(make)  # noqa: SLF001  as Module.to_empty does, which leaves no tensor out
