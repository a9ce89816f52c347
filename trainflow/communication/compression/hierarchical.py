"""Sum quantised gradients by node: as they are inside a node, compressed between nodes.

For nodes with equally many ranks, in four hops. 1: a chunk is cut into a part for each rank of a
node, and each gets its part of all of them, in fp32, and adds them up in rank order. 2 and 3: the
ranks with the same part, one a node, sum it in `two_hop`'s two hops. 4: each gives the codes of its
part to the others of its node. Every rank decodes the same bytes: the same bits on all. Each rank
sends to other nodes what one of a node sends to all in two hops, divided by the ranks of a node.

All hops are exchanges of the whole group, with nothing for most ranks: so there is one order of
collectives, and one thing that fails. Where ranks lie otherwise, the sum is one in two hops.

With error feedback what a rank has kept is added before hop 1, where nothing is left out. What the
codes leave out of a node's sum is left by the rank that made them, and so is what they leave out of
the sum of all: in its own part, and elsewhere it leaves nothing.

Process: every rank.  Thread: training.  Ranks: all start and wait for the same buckets in the same
order.  Blocks: ``wait``; ``start`` while many chunks wait for the link.
Fails: never raises; ``wait()`` says False and the bucket holds garbage.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from trainflow.communication.compression.block_format import BlockFormat, Piece, cut
from trainflow.communication.compression.pipeline import Pipeline, Reduction, Workshop
from trainflow.communication.compression.two_hop import CHUNK_ELEMENTS, TwoHopSum
from trainflow.communication.error_feedback import Feedback
from trainflow.communication.group import Group, Pending

logger = logging.getLogger(__name__)

_NUM_HOPS = 4
_FP32_BYTES = 4

ByNode = tuple[tuple[int, ...], ...]


class HierarchicalSum:
    """Sums buckets by node where the group's ranks lie so, else as `TwoHopSum`; see `Aggregator`.

    Args:
        block_format: what travels between nodes.
        device: where buckets lie.
        is_asked: somebody relies on it: a warning says once where it is not to be had.
        chunk_elements: about how many elements travel in one piece a rank together.

    Attributes:
        flat: what it does where it isn't to be had.
    """

    def __init__(
        self,
        block_format: BlockFormat,
        device: torch.device,
        *,
        is_asked: bool = False,
        chunk_elements: int = CHUNK_ELEMENTS,
    ):
        self.flat = TwoHopSum(block_format, device, chunk_elements=chunk_elements)
        self.wire = f"{self.flat.wire}, by node"
        self._format = block_format
        self._chunk_elements = chunk_elements
        self._workshop = Workshop(block_format, device)
        self._pipeline = Pipeline(_NUM_HOPS)
        self._is_silent = not is_asked
        self._by_node: ByNode = ()

    def start(self, bucket: Tensor, group: Group, feedback: Feedback | None = None) -> Reduction:
        """Send the bucket off, to the own node at first."""
        self._by_node = group.spec.by_node
        self._workshop.serve(group.world_size)
        if not self._by_node:
            self._warn_flat(group)
            return self.flat.start(bucket, group, feedback)
        place = _Place.of(self._by_node, group.rank)

        def begin(values: Tensor) -> Iterator[_Exchange]:
            if feedback is not None:
                feedback.spend(values)
            for pieces in self._cut(bucket.numel(), group.world_size):
                yield _Exchange(values, pieces, place, group, self._workshop, feedback)

        return Reduction(bucket, group, self._pipeline, begin)

    def wire_bytes(self, num_elements: int, element_bytes: int, world_size: int) -> int:
        """All that a rank sends in the group of the last `start`, to its own node and to others."""
        if not self._by_node or world_size != sum(map(len, self._by_node)):
            return self.flat.wire_bytes(num_elements, element_bytes, world_size)
        num_nodes, others_here = len(self._by_node), len(self._by_node[0]) - 1
        num_bytes = 0
        for pieces in self._cut(num_elements, world_size):
            message = self._format.layout(pieces[0].size).num_bytes
            num_bytes += others_here * num_nodes * (pieces[0].size * _FP32_BYTES + message)
            num_bytes += 2 * (num_nodes - 1) * message
        return num_bytes

    def _cut(self, num_elements: int, world_size: int) -> list[list[Piece]]:
        return cut(num_elements, world_size, self._chunk_elements, self._format.block)

    def _warn_flat(self, group: Group) -> None:
        if self._is_silent or group.world_size == 1:
            return
        self._is_silent = True
        nodes = ", ".join(map(str, group.spec.nodes)) or "that are unknown"
        logger.warning(
            "communication.hierarchical: got ranks on nodes %s, expected several nodes with "
            "equally many, two or more: gradients are summed as if there were no nodes",
            nodes,
        )


@dataclass(frozen=True)
class _Place:
    """Where a rank stands.

    Attributes:
        row: ranks of its node, ascending.
        column: ranks that sum the same part, one a node, ascending.
        part: which part that is.
        piece: which of its pieces this rank sums in hop 2.
    """

    row: tuple[int, ...]
    column: tuple[int, ...]
    part: int
    piece: int

    @classmethod
    def of(cls, by_node: ByNode, rank: int) -> "_Place":
        row = next(each for each in by_node if rank in each)
        part = row.index(rank)
        column = tuple(sorted(each[part] for each in by_node))
        return cls(row, column, part, column.index(rank))


class _Exchange:
    """One chunk on its way. Of its pieces, one a rank, as many lie in a part as there are nodes."""

    def __init__(
        self,
        values: Tensor,
        pieces: list[Piece],
        place: _Place,
        group: Group,
        workshop: Workshop,
        feedback: Feedback | None,
    ):
        self._values = values
        self._pieces = pieces
        self._place = place
        self._group = group
        self._workshop = workshop
        self._feedback = feedback
        self.succeeded: bool | None = None
        self._size, num_nodes = pieces[0].size, len(place.column)
        first = place.part * num_nodes
        self._part = pieces[first : first + num_nodes]
        self._sent = self._workshop.take(self._size, num_nodes)
        self._received = self._workshop.take(self._size, num_nodes)
        self._given = self._workshop.take(self._size, len(pieces))
        self._all = self._workshop.take(self._size, len(pieces))
        self._plain = self._workshop.take_values(self._size * len(pieces))
        self._padded: Tensor | None = None
        self._hop = self._group.all_to_all_among(self._plain, self._whole(), place.row)
        self._turns = [self._finish, self._pass_on, self._reduce, self._encode]

    def turn(self) -> None:
        """Finish a hop; every rank begins the next one, whatever became of it."""
        self._turns.pop()()

    def _whole(self) -> Tensor:
        """Return the chunk's values, up to its size; nobody looks at what is beyond the bucket."""
        own = self._values[self._pieces[0].start : self._pieces[-1].stop]
        if own.numel() == self._plain.numel():
            return own
        self._padded = self._workshop.take_values(self._plain.numel())
        self._padded[: own.numel()] = own
        return self._padded

    def _encode(self) -> None:
        """Finish hop 1, sum in rank order, and begin hop 2."""
        if self._hop.wait():
            parts = self._plain.view(len(self._place.row), -1)
            total = parts[0]
            for part in parts[1:-1]:
                total.add_(part)
            for index, piece in enumerate(self._part):
                finite = not piece.size or self._encode_sum(total, parts[-1], index)
                self._sent.set_finite(index, finite=finite)
        for values in (self._plain, self._padded):
            if values is not None:
                self._workshop.give_values_back(values)
        self._hop = self._exchange_in_column()

    def _encode_sum(self, total: Tensor, last: Tensor, index: int) -> bool:
        """Quantise a piece of the node's sum, of which the last rank's values are still to add."""
        piece, kernels = self._part[index], self._workshop.kernels
        start = index * self._size
        total, last = (each[start : start + piece.size] for each in (total, last))
        to = self._sent.quantised(index, piece.size)
        if self._feedback is None:
            return kernels.encode(total.add_(last), to)
        return kernels.encode_with_feedback(total, last, to, piece.of(self._feedback.left))

    def _reduce(self) -> None:
        """Finish hop 2, sum the own piece over nodes, and begin hop 3."""
        if self._hop.wait():
            own = self._part[self._place.piece]
            left = None if self._feedback is None else own.of(self._feedback.left)
            finite = not own.size or self._workshop.kernels.reduce_encode(
                self._received, self._sent.quantised(0, own.size), left
            )
            self._sent.set_finite(0, finite=finite and self._received.all_finite)
            self._sent.repeat_first()
        self._hop = self._exchange_in_column()

    def _pass_on(self) -> None:
        """Finish hop 3: the codes of this rank's part are here. Begin hop 4."""
        if self._hop.wait():
            self._given.data.view(len(self._place.row), -1).copy_(self._received.data)
        self._hop = self._group.all_to_all_among(self._all.data, self._given.data, self._place.row)

    def _finish(self) -> None:
        """Finish hop 4 and write the sum to where the values were."""
        self.succeeded = self._hop.wait()
        if self.succeeded and not self._all.all_finite:
            self._values[self._pieces[0].start : self._pieces[-1].stop] = float("nan")
        elif self.succeeded:
            for index, piece in enumerate(self._pieces):
                if piece.size:
                    what = self._all.quantised(index, piece.size)
                    self._workshop.kernels.decode(what, piece.of(self._values))
        self._workshop.give_back(self._sent, self._received, self._given, self._all)

    def _exchange_in_column(self) -> Pending:
        return self._group.all_to_all_among(
            self._received.data, self._sent.data, self._place.column
        )
