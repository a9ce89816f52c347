"""What FSDP2's ranks say to each other, over the epoch's group.

FSDP2 gathers a unit's parameters before it computes with them, and scatters the sums of its
gradients after. Neither ever raises: an exception in there leaves a model that never trains again.
After a failure parameters and gradients are garbage, and the step finds out by `finish`.

A unit's gradients are on their way while backward goes on. FSDP2 may take views of the sums at
once, since they are only read after `finish`; so it must neither divide nor convert them.

Process: every rank.  Thread: training (autograd on CPU runs in it).
Ranks: all gather and scatter the same units in the same order.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from trainflow.communication.group import Group
from trainflow.communication.scattered_sum import ExactScatter, ScatteredSum

if TYPE_CHECKING:
    from trainflow.communication.aggregator import Handle


class ShardExchange:
    """One model's collectives in the step that is under way.

    Args:
        scatter: how gradients are summed.
        waiting: entered while parameters are gathered: this rank waits for others, in the middle
            of computing.

    Attributes:
        wire: names what travels.
        wire_bytes: sent so far in the step.
        plain_bytes: the same, if nothing were compressed.
    """

    def __init__(
        self,
        scatter: ScatteredSum,
        waiting: Callable[[], AbstractContextManager[object]] = nullcontext,
    ):
        self._waiting = waiting
        self.wire = scatter.wire
        self._chosen = scatter
        self._scatter: ScatteredSum = scatter
        self._group: Group | None = None
        self._handles: list[Handle] = []
        self.wire_bytes = 0
        self.plain_bytes = 0

    def begin(self, group: Group, *, exact: bool = False) -> None:
        """From now on these are the ranks; what an abandoned step has begun is waited for.

        Args:
            group: the ranks.
            exact: gradients are to be summed uncompressed in this step.
        """
        self._scatter = ExactScatter() if exact else self._chosen
        for handle in self._handles:
            handle.wait()
        self._handles = []
        self._group = group
        self.wire_bytes = self.plain_bytes = 0

    def finish(self) -> bool:
        """Wait for the sums of all gradients; False if any of them is garbage."""
        handles, self._handles = self._handles, []
        succeeded = [handle.wait() for handle in handles]
        return all(succeeded) and self._connected.failure is None

    def gather(self, output: Tensor, part: Tensor) -> None:
        """Fill ``output`` with every rank's part; blocks."""
        self._count(part.nbytes * (self._connected.world_size - 1))
        with self._waiting():
            self._connected.all_gather(output, part.clone()).wait()

    def scatter(self, output: Tensor, parts: Tensor) -> None:
        """Begin to sum gradients; `finish` ends it."""
        ranks, size = self._connected.world_size, output.numel()
        self._handles.append(self._scatter.start(output, parts, self._connected))
        plain = (ranks - 1) * output.nbytes
        self._count(plain, self._scatter.wire_bytes(size, output.element_size(), ranks))

    def _count(self, plain_bytes: int, wire_bytes: int | None = None) -> None:
        self.plain_bytes += plain_bytes
        self.wire_bytes += plain_bytes if wire_bytes is None else wire_bytes

    @property
    def _connected(self) -> Group:
        assert self._group is not None, "begin() comes before forward"
        return self._group


class GatherParameters:
    """FSDP2's all_gather of a unit's parameters."""

    def __init__(self, exchange: ShardExchange):
        self._exchange = exchange

    def allocate(
        self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        """Return memory for the gathered parameters."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        async_op: object = None,
    ) -> None:
        """Gather; done when it returns."""
        del group, async_op
        self._exchange.gather(output_tensor, input_tensor)


class ScatterGradients:
    """FSDP2's reduce_scatter of a unit's gradients."""

    def __init__(self, exchange: ShardExchange):
        self._exchange = exchange

    def allocate(
        self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        """Return memory, for gradients or for their sums."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: object,
        async_op: object = None,
    ) -> None:
        """Begin to sum; `ShardExchange.finish` ends it."""
        del group, op, async_op
        self._exchange.scatter(output_tensor, input_tensor)
