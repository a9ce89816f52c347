"""Call a model's factory again and again, each time with the same random numbers.

What isn't state (buffers, plain tensors, choices) is the same on every rank, whenever the model was
built there, and whether with values or without: if the factory draws any of it after a parameter,
which has drawn nothing if it has no values, or makes a plain tensor from it, all are given values.
So they are if it can't do without: it reads them back, or computes with them.

Process: every rank.  Thread: training.
"""

from collections.abc import Callable, Generator
from contextlib import contextmanager

import torch
from torch import nn

from trainflow.computation.meta_parameters import (
    find_hollow_buffers,
    has_hollow_attributes,
    meta_parameters,
)
from trainflow.computation.seeding import RandomState
from trainflow.errors import TrainingError


class ModuleFactory:
    """Makes a module; each time generators are then where the first time has left them.

    Args:
        model: builds it.
        device: whose generator it may draw from, beside the host's.
    """

    def __init__(self, model: Callable[[], nn.Module], device: torch.device):
        self._model = model
        self._device = device
        self._begin = RandomState.capture(device)
        self._end: RandomState | None = None
        self._needs_values = False

    def make(self, *, with_values: bool) -> nn.Module:
        """Call the factory.

        Args:
            with_values: parameters are what it makes them; else they may be on the meta device.

        Raises:
            TrainingError: a buffer would be other than where it is called with values.
        """
        module = None if with_values or self._needs_values else self._make_without_values()
        if module is None:
            self._begin.restore()
            module = self._model()
        if self._end is None:
            self._end = self._find_end()
        self._end.restore()
        return module

    def _make_without_values(self) -> nn.Module | None:
        """Return a module on the meta device; None if it must have values."""
        self._begin.restore()
        try:
            with _settings_back_on_error(), meta_parameters() as draws:
                module = self._model()
        except Exception:  # noqa: BLE001  not swallowed: with values it raises again, or works
            self._needs_values = True
            return None
        # What is frozen is in no state: it must come from the factory.
        is_frozen = any(not parameter.requires_grad for parameter in module.parameters())
        self._needs_values = is_frozen or draws.found or has_hollow_attributes(module)
        if self._needs_values:
            return None
        _require_no_values(module)
        return module

    def _find_end(self) -> RandomState:
        """Return where generators go on: not where they began, though nothing may be drawn."""
        if not self._needs_values:
            torch.manual_seed(int(torch.randint(2**63 - 1, ())))
        return RandomState.capture(self._device)


@contextmanager
def _settings_back_on_error() -> Generator[None]:
    """Have torch as it was if what is inside ends before it has put that right itself."""
    dtype, with_gradients = torch.get_default_dtype(), torch.is_grad_enabled()
    try:
        yield
    except Exception:
        torch.set_default_dtype(dtype)
        torch.set_grad_enabled(with_gradients)
        raise


def _require_no_values(module: nn.Module) -> None:
    hollow = find_hollow_buffers(module)
    if hollow:
        raise TrainingError(
            "prepare: got buffers that the factory makes from parameters' values "
            f"({', '.join(hollow)}), expected none where parallel.mode shards the model: a spare "
            "builds it without values; register them with persistent=True, which makes "
            "them part of the state, or compute them in forward"
        )
