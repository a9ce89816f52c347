"""Send a bucket's chunks through several hops, some chunks in each hop at a time.

While one chunk is on the link, the processor works on others. Which collective comes next depends
only on the order of calls, never on what has arrived: so it is the same on all ranks.

Process: every rank.  Thread: training.  Ranks: all start and wait for the same buckets in the same
order.  Blocks: ``wait``; ``push`` while more than `_DEPTH` chunks wait for the link in each hop.
Fails: never raises; ``wait()`` says False and the bucket holds garbage.
"""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from typing import Protocol

import torch
from torch import Tensor

from trainflow.communication.compression.block_format import BlockFormat
from trainflow.communication.compression.kernels import BlockKernels, choose_kernels
from trainflow.communication.compression.messages import Messages
from trainflow.communication.subgroup import Ranks

_DEPTH = 4


class Exchange(Protocol):
    """One chunk on its way; it is in its first hop once it is made.

    Attributes:
        succeeded: whether its sum is right; None until it is through.
    """

    succeeded: bool | None

    def turn(self) -> None:
        """Finish a hop and begin the next, whatever became of it; after the last there is none."""
        ...


class Workshop:
    """Kernels, and memory, which is used again: fresh pages cost as much as the work."""

    def __init__(self, block_format: BlockFormat, device: torch.device):
        self.kernels: BlockKernels = choose_kernels(block_format, device)
        self._format = block_format
        self._device = device
        self._world_size = 0
        self._free: dict[tuple[int, int], list[Messages]] = defaultdict(list)
        self._free_values: dict[int, list[Tensor]] = defaultdict(list)

    def serve(self, world_size: int) -> None:
        """From now on so many ranks sum: what was lent among another number is of no more use."""
        if world_size != self._world_size:
            self._world_size = world_size
            self._free.clear()
            self._free_values.clear()

    def take(self, num_elements: int, count: int) -> Messages:
        """Lend memory for ``count`` messages; what is in it is old."""
        free = self._free[num_elements, count]
        return free.pop() if free else Messages(self._format, num_elements, count, self._device)

    def give_back(self, *messages: Messages) -> None:
        """Take memory back to which no collective writes any more."""
        for each in messages:
            self._free[each.num_elements, len(each)].append(each)

    def take_values(self, num_elements: int) -> Tensor:
        """Lend memory for fp32 values; what is in it is old."""
        free = self._free_values[num_elements]
        return free.pop() if free else torch.zeros(num_elements, device=self._device)

    def give_values_back(self, values: Tensor) -> None:
        """Take them back; no collective touches them any more."""
        self._free_values[values.numel()].append(values)


class Pipeline:
    """The chunks under way, oldest first, by hop."""

    def __init__(self, num_hops: int):
        self._hops: list[deque[Exchange]] = [deque() for _ in range(num_hops)]

    def push(self, exchange: Exchange) -> None:
        """Add a chunk whose first hop has begun."""
        self._hops[0].append(exchange)
        while len(self._hops[0]) > _DEPTH:
            self._advance()

    def complete(self, exchange: Exchange) -> bool:
        """Wait until a chunk is through; True if its sum is right."""
        while exchange.succeeded is None:
            self._advance()
        return exchange.succeeded

    def _advance(self) -> None:
        """Bring the oldest chunk of the first hop that can go on to the next."""
        for here, following in zip(self._hops, self._hops[1:], strict=False):
            if here and len(following) < _DEPTH:
                here[0].turn()
                following.append(here.popleft())
                return
        self._hops[-1].popleft().turn()


class Reduction:
    """A bucket on its way.

    Args:
        bucket: gets the sum.
        group: who sums.
        pipeline: that its chunks go through.
        begin: makes them one by one, of the bucket's values in fp32.
    """

    def __init__(
        self,
        bucket: Tensor,
        group: Ranks,
        pipeline: Pipeline,
        begin: Callable[[Tensor], Iterable[Exchange]],
    ):
        self._bucket = bucket
        self._group = group
        self._pipeline = pipeline
        self._values = bucket.to(torch.float32)  # itself, unless it is of a narrower type
        self._exchanges: list[Exchange] = []
        for exchange in begin(self._values):
            self._exchanges.append(exchange)
            pipeline.push(exchange)

    def wait(self) -> bool:
        """Block until the bucket holds the sum; False if it holds garbage."""
        succeeded = [self._pipeline.complete(exchange) for exchange in self._exchanges]
        if self._exchanges and self._values is not self._bucket:
            self._bucket.copy_(self._values)
        return all(succeeded) and self._group.failure is None
