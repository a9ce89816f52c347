"""Sum quantised gradients in two hops, many pieces at a time.

Hop 1 gives rank r the r-th piece of every rank's chunk, quantised; r sums them in fp32, in rank
order, and quantises the sum. In hop 2 it gives that to every rank, and all decode the same bytes,
their own too: the result is the same bits on all ranks. Nothing is quantised more than twice,
however many ranks there are (a ring would do it at every hop).

Some chunks are in hop 1 while those before them are in hop 2 (see `pipeline`). Where any rank's
values were not finite, a flag travels with them, and every rank gets NaN.

With error feedback each rank keeps what its codes leave out in hop 1. What the sums' codes leave
out in hop 2 is kept by the rank that made the sum, with its own: both come again in the next sum.

Process: every rank.  Thread: training.  Ranks: all start and wait for the same buckets in the same
order.  Blocks: ``wait``; ``start`` while many chunks wait for the link.
Fails: never raises; ``wait()`` says False and the bucket holds garbage.
"""

from collections.abc import Iterator

import torch
from torch import Tensor

from trainflow.communication.compression.block_format import BlockFormat, Piece, cut
from trainflow.communication.compression.messages import Quantised
from trainflow.communication.compression.pipeline import Pipeline, Reduction, Workshop
from trainflow.communication.error_feedback import Feedback
from trainflow.communication.group import Pending
from trainflow.communication.subgroup import Ranks

CHUNK_ELEMENTS = 1024 * 1024
_NUM_HOPS = 2


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
        self.wire = f"{block_format.name}, blocks of {block_format.block}, {chunk_elements}, 2"
        self._format = block_format
        self._chunk_elements = chunk_elements
        self._workshop = Workshop(block_format, device)
        self._pipeline = Pipeline(_NUM_HOPS)

    def start(self, bucket: Tensor, group: Ranks, feedback: Feedback | None = None) -> Reduction:
        """Quantise the bucket and send it off."""
        self._workshop.serve(group.world_size)
        if feedback is not None and group.world_size == 1:
            feedback.spend(bucket)

        def begin(values: Tensor) -> Iterator[_Exchange]:
            for pieces in self._cut(bucket.numel(), group.world_size):
                yield _Exchange(values, pieces, group, self._workshop, feedback)

        return Reduction(bucket, group, self._pipeline, begin)

    def wire_bytes(self, num_elements: int, element_bytes: int, world_size: int) -> int:  # noqa: ARG002  sent as it is, whatever it was
        """2 (N-1) times one message a chunk, whatever the bucket's own type."""
        chunks = self._cut(num_elements, world_size)
        one_way = sum(self._format.layout(chunk[0].size).num_bytes for chunk in chunks)
        return 2 * (world_size - 1) * one_way

    def _cut(self, num_elements: int, world_size: int) -> list[list[Piece]]:
        if world_size == 1:
            return []  # nobody to tell: the bucket is its own sum
        return cut(num_elements, world_size, self._chunk_elements, self._format.block)


class _Exchange:
    """One chunk on its way through both hops."""

    def __init__(
        self,
        values: Tensor,
        pieces: list[Piece],
        group: Ranks,
        workshop: Workshop,
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
        for rank, piece in enumerate(pieces):
            finite = not piece.size or self._encode(piece, self._sent.quantised(rank, piece.size))
            self._sent.set_finite(rank, finite=finite)
        self._hop = self._exchange()
        self._turns = [self._finish, self._reduce]

    def turn(self) -> None:
        """Finish a hop; every rank begins the next one, whatever became of it."""
        self._turns.pop()()

    def _encode(self, piece: Piece, to: Quantised) -> bool:
        values, kernels = piece.of(self._values), self._workshop.kernels
        if self._feedback is None:
            return kernels.encode(values, to)
        kept, left = piece.of(self._feedback.kept), piece.of(self._feedback.left)
        return kernels.encode_with_feedback(values, kept, to, left)

    def _reduce(self) -> None:
        """Finish hop 1 and begin hop 2."""
        if self._hop.wait():
            own = self._pieces[self._group.rank]
            left = None if self._feedback is None else own.of(self._feedback.left)
            finite = not own.size or self._workshop.kernels.reduce_encode(
                self._received, self._sent.quantised(0, own.size), left
            )
            self._sent.set_finite(0, finite=finite and self._received.all_finite)
            self._sent.repeat_first()
        self._hop = self._exchange()

    def _finish(self) -> None:
        """Finish hop 2 and write the sum to where the values were."""
        self.succeeded = self._hop.wait()
        if self.succeeded and not self._received.all_finite:
            self._values[self._pieces[0].start : self._pieces[-1].stop] = float("nan")
        elif self.succeeded:
            for rank, piece in enumerate(self._pieces):
                if piece.size:
                    self._workshop.kernels.decode(
                        self._received.quantised(rank, piece.size), piece.of(self._values)
                    )
        self._workshop.give_back(self._sent, self._received)

    def _exchange(self) -> Pending:
        return self._group.all_to_all(self._received.data, self._sent.data)
