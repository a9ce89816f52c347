"""Sum quantised gradients in two hops, many pieces at a time.

Hop 1 gives rank r the r-th piece of every rank's chunk, quantised; r sums them in fp32, in rank
order, and quantises the sum. Hop 2 gathers the sums, and every rank decodes the same bytes, its own
too: the result is the same bits on all ranks. Nothing is quantised more than twice, however many
ranks there are (a ring would do it at every hop).

Some chunks are in hop 1 while those before them are in hop 2, so that the link never waits for a
processor. Which collective comes next depends only on the order of calls, so it is the same on all
ranks. Where any rank's values were not finite, a flag travels with them, and every rank gets NaN.

With error feedback each rank keeps what its codes leave out in hop 1. What the sums' codes leave
out in hop 2 is kept by the rank that made the sum, with its own: both come again in the next sum.

Process: every rank.  Thread: training.  Ranks: all start and wait for the same buckets in the same
order.  Blocks: ``wait``; ``start`` while more than `_DEPTH` chunks wait for the link in each hop.
Fails: never raises; ``wait()`` says False and the bucket holds garbage.
"""

from collections import defaultdict, deque

import torch
from torch import Tensor

from trainflow.communication.compression.block_format import BlockFormat, Piece, cut
from trainflow.communication.compression.kernels import BlockKernels, choose_kernels
from trainflow.communication.compression.messages import Messages, Quantised
from trainflow.communication.error_feedback import Feedback
from trainflow.communication.group import Group

CHUNK_ELEMENTS = 1024 * 1024
_DEPTH = 4


class TwoHopSum:
    """Sums buckets as integers of a few bits with shared scales; see `Aggregator`.

    Args:
        block_format: the integers.
        device: where buckets lie.
        chunk_elements: about how many elements travel in one piece a rank together.
    """

    def __init__(
        self,
        block_format: BlockFormat,
        device: torch.device,
        *,
        chunk_elements: int = CHUNK_ELEMENTS,
    ):
        self.wire = f"{block_format.name}, blocks of {block_format.block}, {chunk_elements}, 1"
        self._format = block_format
        self._chunk_elements = chunk_elements
        self._pipeline = _Pipeline(_Workshop(block_format, device))

    def start(self, bucket: Tensor, group: Group, feedback: Feedback | None = None) -> "_Reduction":
        """Quantise the bucket and send it off."""
        if feedback is not None and group.world_size == 1:
            feedback.spend(bucket)
        chunks = self._cut(bucket.numel(), group.world_size)
        return _Reduction(bucket, chunks, group, self._pipeline, feedback)

    def wire_bytes(self, num_elements: int, element_bytes: int, world_size: int) -> int:  # noqa: ARG002  sent as it is, whatever it was
        """2 (N-1) times one message a chunk, whatever the bucket's own type."""
        chunks = self._cut(num_elements, world_size)
        one_way = sum(self._format.layout(chunk[0].size).num_bytes for chunk in chunks)
        return 2 * (world_size - 1) * one_way

    def _cut(self, num_elements: int, world_size: int) -> list[list[Piece]]:
        if world_size == 1:
            return []  # nobody to tell: the bucket is its own sum
        return cut(num_elements, world_size, self._chunk_elements, self._format.block)


class _Workshop:
    """Kernels, and messages' memory, which is used again: fresh pages cost as much as the work."""

    def __init__(self, block_format: BlockFormat, device: torch.device):
        self.kernels: BlockKernels = choose_kernels(block_format, device)
        self._format = block_format
        self._device = device
        self._free: dict[tuple[int, int], list[Messages]] = defaultdict(list)

    def take(self, num_elements: int, count: int) -> Messages:
        """Lend memory for ``count`` messages; what is in it is old."""
        free = self._free[num_elements, count]
        return free.pop() if free else Messages(self._format, num_elements, count, self._device)

    def give_back(self, *messages: Messages) -> None:
        """Take memory back to which no collective writes any more."""
        for each in messages:
            self._free[each.num_elements, len(each)].append(each)


class _Exchange:
    """One chunk on its way through both hops."""

    def __init__(
        self,
        values: Tensor,
        pieces: list[Piece],
        group: Group,
        workshop: _Workshop,
        feedback: Feedback | None,
    ):
        self._values = values
        self._feedback = feedback
        self._pieces = pieces
        self._group = group
        self._workshop = workshop
        self.succeeded: bool | None = None
        size, ranks = pieces[0].size, group.world_size
        self._sent = workshop.take(size, ranks)
        self._received = workshop.take(size, ranks)
        self._own = workshop.take(size, 1)
        for rank, piece in enumerate(pieces):
            finite = not piece.size or self._encode(piece, self._sent.quantised(rank, piece.size))
            self._sent.set_finite(rank, finite=finite)
        self._hop = group.all_to_all(self._received.data, self._sent.data)

    def _encode(self, piece: Piece, to: Quantised) -> bool:
        values, kernels = piece.of(self._values), self._workshop.kernels
        if self._feedback is None:
            return kernels.encode(values, to)
        kept, left = piece.of(self._feedback.kept), piece.of(self._feedback.left)
        return kernels.encode_with_feedback(values, kept, to, left)

    def turn(self) -> None:
        """Finish hop 1 and begin hop 2; every rank issues it, whatever became of hop 1."""
        if self._hop.wait():
            own = self._pieces[self._group.rank]
            left = None if self._feedback is None else own.of(self._feedback.left)
            finite = not own.size or self._workshop.kernels.reduce_encode(
                self._received, self._own.quantised(0, own.size), left
            )
            self._own.set_finite(0, finite=finite and self._received.all_finite)
        self._hop = self._group.all_gather(self._sent.data, self._own.data)

    def finish(self) -> None:
        """Finish hop 2 and write the sum to where the values were."""
        self.succeeded = self._hop.wait()
        if self.succeeded and not self._sent.all_finite:
            self._values[self._pieces[0].start : self._pieces[-1].stop] = float("nan")
        elif self.succeeded:
            for rank, piece in enumerate(self._pieces):
                if piece.size:
                    self._workshop.kernels.decode(
                        self._sent.quantised(rank, piece.size), piece.of(self._values)
                    )
        self._workshop.give_back(self._sent, self._received, self._own)


class _Pipeline:
    """The chunks under way, oldest first."""

    def __init__(self, workshop: _Workshop):
        self.workshop = workshop
        self._in_hop_1: deque[_Exchange] = deque()
        self._in_hop_2: deque[_Exchange] = deque()

    def push(self, exchange: _Exchange) -> None:
        """Add a chunk whose first hop has begun."""
        self._in_hop_1.append(exchange)
        while len(self._in_hop_1) > _DEPTH:
            self._advance()

    def complete(self, exchange: _Exchange) -> bool:
        """Wait until a chunk is through; True if its sum is right."""
        while exchange.succeeded is None:
            self._advance()
        return exchange.succeeded

    def _advance(self) -> None:
        if self._in_hop_1 and len(self._in_hop_2) < _DEPTH:
            exchange = self._in_hop_1.popleft()
            exchange.turn()
            self._in_hop_2.append(exchange)
        else:
            self._in_hop_2.popleft().finish()


class _Reduction:
    """A bucket on its way."""

    def __init__(
        self,
        bucket: Tensor,
        chunks: list[list[Piece]],
        group: Group,
        pipeline: _Pipeline,
        feedback: Feedback | None,
    ):
        self._bucket = bucket
        self._pipeline = pipeline
        self._values = bucket.to(torch.float32)  # itself, unless it is of a narrower type
        self._group = group
        self._exchanges: list[_Exchange] = []
        for pieces in chunks:
            exchange = _Exchange(self._values, pieces, group, pipeline.workshop, feedback)
            self._exchanges.append(exchange)
            pipeline.push(exchange)

    def wait(self) -> bool:
        """Block until the bucket holds the sum; False if it holds garbage."""
        succeeded = [self._pipeline.complete(exchange) for exchange in self._exchanges]
        if self._values is not self._bucket:
            self._bucket.copy_(self._values)
        return all(succeeded) and self._group.failure is None
