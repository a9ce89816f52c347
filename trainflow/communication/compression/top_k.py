"""Send only a gradient's largest elements; the others wait in the residual until they are large.

Top-k with error feedback (Stich et al. 2018, arXiv 1809.07599). To find the k-th largest of a
bucket takes longer than to send all of it, so a threshold is estimated from a sample, a little too
high: then about nine tenths of k pass it. Where more than k would, the threshold is found exactly.
Every rank gathers all ranks' elements and adds them in rank order: the same bits on all.

Each rank sends its elements to all others, (N-1) 8k bytes: that pays while N is well below n/4k.

Process: every rank.  Thread: training.  Ranks: all start and wait for the same buckets in the same
order.  Blocks: ``wait``.
Fails: never raises; ``wait()`` says False and the bucket holds garbage.
"""

from collections import defaultdict
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from trainflow.communication.compression.sparse_kernels import SparseKernels, choose_sparse_kernels
from trainflow.communication.error_feedback import Feedback
from trainflow.communication.group import Group, Pending

_HEADER_BYTES = 64
_RUN = 16  # a cache line: single elements would each cost one
_SAMPLED_RUNS = 4096
_AIM = 0.9
_STRIDE = 0.6180339887498949  # golden: its multiples lie evenly in any number of elements
_TINY = 1e-30  # zeros are never sent
_INDEX_BYTES = _VALUE_BYTES = 4


class TopKSum:
    """Sums the largest elements of every rank's bucket; see `Aggregator`.

    Args:
        fraction: of a bucket's elements that each rank sends.
        device: where buckets lie.
    """

    def __init__(self, fraction: float, device: torch.device):
        self.wire = f"the largest {fraction} of each bucket"
        self._fraction = fraction
        self._kernels: SparseKernels = choose_sparse_kernels(device)
        self._free: defaultdict[tuple[int, int], list[_Messages]] = defaultdict(list)

    def start(self, bucket: Tensor, group: Group, feedback: Feedback | None = None) -> "_Sparse":
        """Select and send."""
        if group.world_size == 1 or not bucket.numel():  # nobody to tell, or nothing
            if feedback is not None:
                feedback.spend(bucket)
            return _Sparse(bucket, None, self)
        values = bucket.to(torch.float32)  # itself, unless it is of a narrower type
        feedback = feedback or Feedback(torch.zeros_like(values), torch.empty_like(values))
        num_sent = self._num_sent(bucket.numel())
        free = self._free[num_sent, group.world_size]
        messages = free.pop() if free else _Messages(num_sent, group.world_size, bucket.device)
        messages.note(self._select(values, feedback, messages))
        hop = group.all_gather(messages.received, messages.own)
        return _Sparse(bucket, _UnderWay(values, messages, hop), self)

    def finish(self, values: Tensor, messages: "_Messages") -> None:
        """Add what all ranks have sent, in their order."""
        counts = messages.counts
        if min(counts) < 0:
            values.fill_(float("nan"))
        else:
            for rank, count in enumerate(counts):
                self._kernels.add(*messages.selected(rank, count), values)

    def give_back(self, messages: "_Messages") -> None:
        """Take memory back to which no collective writes any more."""
        self._free[messages.num_sent, len(messages.counts)].append(messages)

    def wire_bytes(self, num_elements: int, element_bytes: int, world_size: int) -> int:  # noqa: ARG002  sent as it is, whatever it was
        """(N-1) times a message; for a bucket of no element there is none."""
        if not num_elements:
            return 0
        return (world_size - 1) * _num_message_bytes(self._num_sent(num_elements))

    def _num_sent(self, num_elements: int) -> int:
        return max(1, round(self._fraction * num_elements))

    def _select(self, values: Tensor, feedback: Feedback, messages: "_Messages") -> int:
        """Move what is sent into this rank's message; returns how many, or -1: not finite."""
        threshold = estimate_threshold(values, feedback.kept, messages.num_sent)
        indices, selected = messages.room
        count = self._kernels.select(values, feedback, threshold, indices, selected)
        if count < messages.num_sent or messages.num_sent == values.numel():
            return count
        # Too many: those at the end of the bucket would never have their turn.
        values.copy_(feedback.left)
        self._kernels.add(indices, selected, values)
        exact = values.abs().topk(messages.num_sent, sorted=False).values.min()
        whole = Feedback(torch.zeros_like(values), feedback.left)
        return self._kernels.select(values, whole, max(float(exact), _TINY), indices, selected)


def estimate_threshold(values: Tensor, kept: Tensor, num_sent: int) -> float:
    """Return a magnitude that about ``num_sent`` elements reach, or a few less; never zero."""
    size = values.numel()
    num_runs = size // _RUN
    if num_runs > _SAMPLED_RUNS:
        runs = _sampled_runs(num_runs, values.device)
        values, kept = (
            each[: num_runs * _RUN].view(num_runs, _RUN)[runs] for each in (values, kept)
        )
        wanted = (values + kept).view(-1)
        rank = max(1, round(_AIM * num_sent * wanted.numel() / size))
    else:
        wanted, rank = values + kept, num_sent
    magnitudes = wanted.abs().nan_to_num(nan=float("inf"))
    return max(float(magnitudes.topk(rank, sorted=False).values.min()), _TINY)


@cache
def _sampled_runs(num_runs: int, device: torch.device) -> Tensor:
    turns = torch.arange(_SAMPLED_RUNS, dtype=torch.float64) * _STRIDE
    return ((turns - turns.floor()) * num_runs).to(torch.int64).clamp(max=num_runs - 1).to(device)


def _num_message_bytes(num_sent: int) -> int:
    return _HEADER_BYTES + num_sent * (_INDEX_BYTES + _VALUE_BYTES)


class _Messages:
    """One rank's message and room for all: a count, then indices (int32), then values (fp32)."""

    def __init__(self, num_sent: int, world_size: int, device: torch.device):
        self.num_sent = num_sent
        num_bytes = _num_message_bytes(num_sent)
        self.own = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
        self.received = torch.zeros(world_size * num_bytes, dtype=torch.uint8, device=device)
        self._count, *room = _parts(self.own, num_sent)
        self.room = room[0], room[1]
        self._parts = [_parts(each, num_sent) for each in self.received.split(num_bytes)]

    def note(self, count: int) -> None:
        """Write how many elements this rank's message has; -1: they aren't finite."""
        self._count.fill_(count)

    @property
    def counts(self) -> Sequence[int]:
        """How many each rank has sent."""
        return [int(count) for count, _, _ in self._parts]

    def selected(self, rank: int, count: int) -> tuple[Tensor, Tensor]:
        """Return the indices and values that a rank has sent."""
        _, indices, values = self._parts[rank]
        return indices[:count], values[:count]


def _parts(message: Tensor, num_sent: int) -> tuple[Tensor, Tensor, Tensor]:
    values_at = _HEADER_BYTES + num_sent * _INDEX_BYTES
    return (
        message[:8].view(torch.int64),
        message[_HEADER_BYTES:values_at].view(torch.int32),
        message[values_at:].view(torch.float32),
    )


class _UnderWay:
    def __init__(self, values: Tensor, messages: _Messages, hop: Pending):
        self.values = values
        self.messages = messages
        self.hop = hop


class _Sparse:
    """A bucket on its way."""

    def __init__(self, bucket: Tensor, under_way: _UnderWay | None, owner: TopKSum):
        self._bucket = bucket
        self._under_way = under_way
        self._owner = owner
        self._succeeded = under_way is None

    def wait(self) -> bool:
        """Block until the bucket holds the sum; False if it holds garbage."""
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            self._succeeded = under_way.hop.wait()
            if self._succeeded:
                self._owner.finish(under_way.values, under_way.messages)
                if under_way.values is not self._bucket:
                    self._bucket.copy_(under_way.values)
            self._owner.give_back(under_way.messages)
        return self._succeeded
