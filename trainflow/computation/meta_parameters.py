"""Build a module whose parameters take no memory, and whose buffers are what they should be.

Process: every rank.  Thread: training.
"""

import weakref
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

_META = torch.device("meta")


@contextmanager
def meta_parameters() -> Generator[None]:
    """Have every parameter that a module is given inside be one on the meta device.

    Each is made as it is, and dropped at once: no more than one is in memory at a time. Buffers
    stay: those that aren't state (rotary frequencies, masks) exist nowhere but in the code that
    makes them.
    """
    register = nn.Module.register_parameter
    made: dict[int, tuple[weakref.ref[nn.Parameter], nn.Parameter]] = {}

    def on_meta(param: nn.Parameter) -> nn.Parameter:
        """Return what stands in its place; where several modules are given it, the same."""
        original, stand_in = made.get(id(param), (None, None))
        if original is None or stand_in is None or original() is not param:
            stand_in = nn.Parameter(param.detach().to(_META), requires_grad=param.requires_grad)
            made[id(param)] = weakref.ref(param), stand_in
        return stand_in

    def register_on_meta(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        if param is not None and param.device != _META:
            param = on_meta(param)
        register(self, name, param)

    nn.Module.register_parameter = register_on_meta
    try:
        yield
    finally:
        nn.Module.register_parameter = register


def find_hollow_buffers(module: nn.Module) -> list[str]:
    """Return the buffers that aren't state, and were made from values that parameters here lack.

    A tensor that is a plain attribute may be computed again before it is used, as weight_norm's is.
    """
    state = module.state_dict().keys()
    return [name for name, each in module.named_buffers() if each.is_meta and name not in state]


def materialise(module: nn.Module, device: torch.device) -> None:
    """Give what is on the meta device memory, of zeros."""

    def make(tensor: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(tensor, device=device) if tensor.is_meta else tensor

    any_module: Any = module
    any_module._apply(make)  # noqa: SLF001  as Module.to_empty does, which leaves no tensor out
