"""What FSDP2's ranks say to each other, over the epoch's group.

FSDP2 gathers a unit's parameters before it computes with them, and scatters the sums of its
gradients after. Neither ever raises: an exception in there leaves a model that never trains again.
After a failure parameters and gradients are garbage, and the step finds out by `finish`.

A unit's gradients are on their way while backward goes on, of a few units at a time: what is on
its way takes as much memory as whole gradients. FSDP2 may take views of the sums at once, since
they are only read after `finish`; so it must neither divide nor convert them. Where it copies them,
or adds them to sums of a unit that runs twice, they are waited for.

Process: every rank.  Thread: training (autograd on CPU runs in it).
Ranks: all gather and scatter the same units in the same order.
"""

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from trainflow.communication.group import Group
from trainflow.communication.hybrid_sum import EXACT, HybridScatter
from trainflow.communication.parameter_gather import (
    PLAIN,
    ParameterGather,
    ParameterPart,
    UnitGather,
)
from trainflow.communication.subgroup import split

if TYPE_CHECKING:
    from trainflow.communication.aggregator import Handle


_DEPTH = 2


class ShardExchange:
    """One model's collectives in the step that is under way.

    Args:
        scatter: how gradients are summed.
        waiting: entered while this rank waits for others, as a rule in the middle of computing; is
            told for what, empty if that isn't known.
        gathering: how parameters travel.
        sums_at_once: gradients are summed before backward goes on, since FSDP2 copies the sums off
            the device as soon as it has them.

    Attributes:
        gathering: how parameters travel.
        wire: names what travels.
        unscale: what gradients are multiplied with before they are sent, on this rank in this step.
        wire_bytes: sent so far in the step.
        plain_bytes: the same, if nothing were compressed.
    """

    def __init__(
        self,
        scatter: HybridScatter,
        waiting: Callable[[str], AbstractContextManager[object]] = nullcontext,
        *,
        gathering: ParameterGather = PLAIN,
        sums_at_once: bool = False,
    ):
        self._waiting = waiting
        self._sums_at_once = sums_at_once
        self.gathering = gathering
        self.wire = f"{scatter.wire}; parameters {gathering.wire}"
        self._chosen = scatter
        self._scatter = scatter
        self._group: Group | None = None
        self._handles: deque[tuple[str, Handle]] = deque()  # with their units' names
        self._summed: set[object] = set()
        self._succeeded = True
        self.unscale = 1.0
        self.wire_bytes = 0
        self.plain_bytes = 0

    def begin(self, group: Group, *, exact: bool = False) -> None:
        """From now on these are the ranks; what an abandoned step has begun is waited for.

        Args:
            group: the ranks.
            exact: gradients are to be summed uncompressed in this step.
        """
        self._scatter = EXACT if exact else self._chosen
        self._wait_for_all_but(0)
        self._summed.clear()
        self._succeeded = True
        self._group = group
        self.unscale = 1.0
        self.wire_bytes = self.plain_bytes = 0

    def finish(self) -> bool:
        """Wait for the sums of all gradients; False if any of them is garbage."""
        self._wait_for_all_but(0)
        return self._succeeded and self._connected.failure is None

    def gather(self, output: Tensor, part: Tensor, unit: UnitGather, name: str = "") -> None:
        """Fill ``output`` with every rank's part of a unit, which has that name; blocks."""
        sharers, _ = split(self._connected)
        num_ranks = sharers.world_size
        self._count(PLAIN.wire_bytes(part, num_ranks), unit.wire_bytes(part, num_ranks))
        with self._waiting(f"parameters of {name}" if name else ""):
            unit.gather(output, part, sharers)

    def scatter(self, output: Tensor, parts: Tensor, unit: object, name: str = "") -> None:
        """Begin to sum gradients; `finish` ends it, if it isn't to be done at once.

        Args:
            output: gets this rank's part of the sums.
            parts: the gradients; they are written over.
            unit: what they are of.
            name: of that.
        """
        if self.unscale != 1.0:
            parts.mul_(self.unscale)
        group, described = self._connected, (output.numel(), output.element_size())
        self._handles.append((name, self._scatter.start(output, parts, group)))
        at_once = self._sums_at_once or unit in self._summed
        self._wait_for_all_but(0 if at_once else _DEPTH)
        self._summed.add(unit)
        plain_bytes = EXACT.wire_bytes(*described, group)
        self._count(plain_bytes, self._scatter.wire_bytes(*described, group))

    def _wait_for_all_but(self, num_left: int) -> None:
        while len(self._handles) > num_left:
            name, handle = self._handles.popleft()
            with self._waiting(f"the sums of gradients of {name}" if name else ""):
                self._succeeded = handle.wait() and self._succeeded

    def _count(self, plain_bytes: int, wire_bytes: int) -> None:
        self.plain_bytes += plain_bytes
        self.wire_bytes += wire_bytes

    @property
    def _connected(self) -> Group:
        assert self._group is not None, "begin() comes before forward"
        return self._group


class _OverExchange:
    """What FSDP2 asks of both of its collectives."""

    def __init__(self, exchange: ShardExchange):
        self._exchange = exchange

    def allocate(
        self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device
    ) -> Tensor:
        """Return memory for what is sent or received."""
        return torch.empty(*size, dtype=dtype, device=device)


class GatherParameters(_OverExchange):
    """FSDP2's all_gather of one unit's parameters."""

    def __init__(self, exchange: ShardExchange, parts: Sequence[ParameterPart], name: str):
        super().__init__(exchange)
        self._unit = exchange.gathering.of_unit(parts)
        self._name = name

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        async_op: object = None,
    ) -> None:
        """Gather; done when it returns."""
        del group, async_op
        self._exchange.gather(output_tensor, input_tensor, self._unit, self._name)


class ScatterGradients(_OverExchange):
    """FSDP2's reduce_scatter of one unit's gradients."""

    def __init__(self, exchange: ShardExchange, name: str):
        super().__init__(exchange)
        self._name = name

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
        self._exchange.scatter(output_tensor, input_tensor, self, self._name)
