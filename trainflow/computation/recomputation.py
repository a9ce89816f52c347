"""Compute again in backward what layers compute in forward, instead of keeping it.

That is activation checkpointing. A layer's forward is replaced by a recorded call of it. So names,
types and hooks of the model stay as they are, and FSDP2's hooks are outside: a layer that is
computed again has its parameters gathered. Torch's random numbers are those of the first time, and
so are buffers that are state.

Process: every rank.  Thread: training (autograd on CPU runs in it).
Fails: torch raises in backward if a layer computes other shapes the second time. That can come of
garbage after a failed collective; the step is void then.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import update_wrapper
from types import TracebackType
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

from trainflow.computation.sharding import find_units, has_forward
from trainflow.config.parallel import Recomputed
from trainflow.errors import TrainingError

_aten = torch.ops.aten
_PRODUCTS = frozenset(
    {
        _aten.mm.default,
        _aten.addmm.default,
        _aten.bmm.default,
        _aten.baddbmm.default,
        _aten.convolution.default,
        _aten._scaled_mm.default,  # noqa: SLF001  its only name
        _aten._grouped_mm.default,  # noqa: SLF001  as above
    }
)
_ATTENTION: dict[object, int] = {
    _aten._scaled_dot_product_flash_attention.default: 3,  # noqa: SLF001  as above
    _aten._scaled_dot_product_flash_attention_for_cpu.default: 3,  # noqa: SLF001  as above
    _aten._scaled_dot_product_efficient_attention.default: 5,  # noqa: SLF001  as above
    _aten._scaled_dot_product_cudnn_attention.default: 5,  # noqa: SLF001  as above
}
"""At which place each of them has its ``dropout_p``."""


def recompute_units(name: str, module: nn.Module, what: Recomputed) -> None:
    """Have each unit of a module (`find_units`) be computed again in backward.

    Args:
        name: what the module is prepared as.
        module: built, and not sharded yet.
        what: ``parallel.activation_checkpointing``.

    Raises:
        TrainingError: it has no units.
    """
    if what == "none":
        return
    units = [each for each in dict.fromkeys(find_units(module)) if has_forward(each)]
    if not units:
        raise TrainingError(
            f"prepare({name!r}): got parallel.activation_checkpointing: {what}, and a model that "
            "has no layers in an nn.ModuleList or nn.Sequential, expected some, each of which is "
            "recomputed by itself; put its layers into one, or set activation_checkpointing: none"
        )
    for unit in units:
        unit.forward = _RecordedForward(unit, what)


class _RecordedForward:
    """A layer's forward, of which backward finds little, and computes the rest again.

    An object, so that a deep copy of the layer calls the copy's own forward.
    """

    def __init__(self, unit: nn.Module, what: Literal["selective", "full"]):
        update_wrapper(self, unit.forward)
        self._forward = unit.forward
        self._unit = unit
        self._is_selective = what == "selective"
        named = dict(unit.named_buffers())
        self._state = [key for key in unit.state_dict() if key in named]

    @torch.compiler.disable(recursive=False)  # pyright: ignore[reportUntypedFunctionDecorator]  torch leaves it untyped
    def __call__(self, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401  whatever the layer takes
        """Compute; keyword arguments go along as one, or torch would not see which GPU they use."""
        if not torch.is_grad_enabled():
            return self._forward(*args, **kwargs)
        return checkpoint(self._call, kwargs, *args, use_reentrant=False, context_fn=self._contexts)

    def _call(self, kwargs: Mapping[str, Any], *args: Any) -> Any:  # noqa: ANN401  as above
        """Compute; if selectively, without autocast's cache, which may be empty the second time.

        Torch tells the kept results apart by how many operations came before them.
        """
        caches = torch.is_autocast_cache_enabled()
        torch.set_autocast_cache_enabled(caches and not self._is_selective)
        try:
            return self._forward(*args, **kwargs)
        finally:
            torch.set_autocast_cache_enabled(caches)

    def _contexts(self) -> tuple[AbstractContextManager[Any], AbstractContextManager[Any]]:
        """Return what the first computation runs in, and what the second."""
        first: AbstractContextManager[Any] = nullcontext()
        second: AbstractContextManager[Any] = nullcontext()
        if self._is_selective:
            first, second = create_selective_checkpoint_contexts(choose_policy)
        return first, _Again(self._buffers, second) if self._state else second

    def _buffers(self) -> list[Tensor]:
        named = dict(self._unit.named_buffers())
        return [named[key] for key in self._state]


class _Again:
    """Lets a computation begin with buffers as they were the first time, and leave no trace."""

    def __init__(
        self, find_buffers: Callable[[], list[Tensor]], inner: AbstractContextManager[object]
    ):
        self._find = find_buffers
        self._inner = inner
        self._before = [each.clone() for each in find_buffers()]
        self._now: list[Tensor] = []

    def __enter__(self) -> None:
        self._now = [each.clone() for each in self._find()]
        self._set(self._before)
        self._inner.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        self._inner.__exit__(kind, error, where)
        self._set(self._now)

    def _set(self, values: list[Tensor]) -> None:
        for buffer, value in zip(self._find(), values, strict=True):
            buffer.data.copy_(value)  # backward may need the buffer: to autograd it is unchanged


def choose_policy(
    _context: object, op: object, *args: object, **kwargs: object
) -> CheckpointPolicy:
    """Keep what takes longest to compute; attention that draws random numbers is computed again.

    Left out, it would leave others to those that are drawn after it.
    """
    place = _ATTENTION.get(op)
    if place is not None:
        drops_out = kwargs.get("dropout_p") or (len(args) > place and args[place])
        return CheckpointPolicy.PREFER_RECOMPUTE if drops_out else CheckpointPolicy.MUST_SAVE
    return CheckpointPolicy.MUST_SAVE if op in _PRODUCTS else CheckpointPolicy.PREFER_RECOMPUTE
