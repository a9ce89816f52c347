"""Tell whether a factory draws random numbers that follow on those of parameters without values.

Torch draws nothing into a tensor on the meta device. What is drawn after that (a buffer that isn't
state, a plain tensor, which layers there are) is another number than where parameters have values.

Process: every rank.  Thread: training.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class RealDraws(TorchDispatchMode):
    """Watches operations.

    Attributes:
        follows: a parameter has no values by now, and may have left something undrawn.
        found: since then something was drawn that isn't a parameter's value.
    """

    def __init__(self) -> None:
        super().__init__()
        self.follows = self.found = False

    @classmethod
    def _should_skip_dynamo(cls) -> bool:  # torch's name: nothing is compiled in a factory
        return False

    def __torch_dispatch__(
        self,
        func: Any,  # noqa: ANN401  torch's own, which has no public type
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401  whatever the operation returns
        """Do an operation, and look whether it draws."""
        del types
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if self.follows and torch.Tag.nondeterministic_seeded in func.tags:
            fills = isinstance(result, Tensor) and result is args[0] and result.is_meta
            self.found |= not fills or kwargs.get("generator") is not None
        return result
