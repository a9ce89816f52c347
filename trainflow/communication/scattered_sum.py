"""Sum gradients over ranks so that each rank gets the sum of its own part alone: reduce-scatter.

Each rank sends the r-th part of its values to rank r, which sums what it receives from rank 0 up:
the same bits on any network. Quantised, that is the first hop of a `TwoHopSum`: each value is
rounded once.

Process: every rank.  Thread: training.  Ranks: all start the same sums in the same order.
Blocks: ``wait``.
Fails: never raises; ``wait()`` says False and the output holds garbage.
"""

from typing import Protocol

import torch
from torch import Tensor

from trainflow.communication.aggregator import Handle
from trainflow.communication.compression.block_format import BlockFormat
from trainflow.communication.compression.pipeline import Workshop
from trainflow.communication.subgroup import Ranks


class ScatteredSum(Protocol):
    """Sums equal parts, one for each rank.

    Attributes:
        wire: names what travels; ranks understand each other only if theirs are equal.
    """

    wire: str

    def start(self, output: Tensor, parts: Tensor, group: Ranks) -> Handle:
        """Send the parts off.

        Args:
            output: 1-D, n elements; gets the sum over ranks of this rank's part.
            parts: 1-D, world_size * n elements of the same type: the r-th n are for rank r. Neither
                may be touched until ``wait`` returns.
            group: who sums.
        """
        ...

    def wire_bytes(self, num_elements: int, element_bytes: int, world_size: int) -> int:
        """Bytes that one rank sends where a part has ``num_elements``."""
        ...


class ExactScatter:
    """Sums in the values' own type."""

    wire = "scattered sum in rank order"

    def start(self, output: Tensor, parts: Tensor, group: Ranks) -> Handle:
        """Start the exchange; the sum is made in ``wait``."""
        return _ExactSum(output, parts, group)

    def wire_bytes(self, num_elements: int, element_bytes: int, world_size: int) -> int:
        """(N-1) parts."""
        return (world_size - 1) * num_elements * element_bytes


class QuantisedScatter:
    """Sums in fp32 what travels as numbers of a few bits.

    Args:
        block_format: the numbers.
        device: where values lie.
    """

    def __init__(self, block_format: BlockFormat, device: torch.device):
        self.wire = f"scattered {block_format.name}, blocks of {block_format.block}, 1"
        self._format = block_format
        self._workshop = Workshop(block_format, device)

    def start(self, output: Tensor, parts: Tensor, group: Ranks) -> Handle:
        """Quantise the parts and send them off; alone, a rank has nobody to tell."""
        if group.world_size == 1 or not output.numel():
            return _ExactSum(output, parts, group)
        self._workshop.serve(group.world_size)
        return _QuantisedSum(output, parts, group, self._workshop)

    def wire_bytes(self, num_elements: int, element_bytes: int, world_size: int) -> int:  # noqa: ARG002  sent as it is, whatever it was
        """(N-1) messages, whatever the values' own type."""
        return (world_size - 1) * self._format.layout(num_elements).num_bytes


class _ExactSum:
    def __init__(self, output: Tensor, parts: Tensor, group: Ranks):
        self._output = output
        self._received = torch.empty_like(parts)
        self._hop = group.all_to_all(self._received, parts)
        self._world_size = group.world_size

    def wait(self) -> bool:
        if not self._hop.wait():
            return False
        parts = self._received.view(self._world_size, -1)
        self._output.copy_(parts[0])
        for part in parts[1:]:
            self._output += part
        return True


class _QuantisedSum:
    def __init__(self, output: Tensor, parts: Tensor, group: Ranks, workshop: Workshop):
        self._output = output
        self._workshop = workshop
        size, ranks = output.numel(), group.world_size
        self._sent = workshop.take(size, ranks)
        self._received = workshop.take(size, ranks)
        for rank, part in enumerate(parts.to(torch.float32).view(ranks, -1)):
            finite = workshop.kernels.encode(part, self._sent.quantised(rank, size))
            self._sent.set_finite(rank, finite=finite)
        self._hop = group.all_to_all(self._received.data, self._sent.data)

    def wait(self) -> bool:
        if not self._hop.wait():
            return False  # the messages' memory is not lent again: something may still write there
        if self._received.all_finite:
            sums = torch.zeros_like(self._output, dtype=torch.float32)
            for rank in range(len(self._received)):
                self._workshop.kernels.decode_add(
                    self._received.quantised(rank, sums.numel()), sums
                )
            self._output.copy_(sums)
        else:
            self._output.fill_(float("nan"))
        self._workshop.give_back(self._sent, self._received)
        return True
