"""How one bucket is summed over ranks: uncompressed, and which way is taken.

Process: every rank.  Thread: training.  Ranks: all call with the same bucket in the same order.
Fails: never raises; ``wait()`` says False and the bucket holds garbage.
"""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import partial

import torch
from torch import Tensor

from trainflow.communication.aggregator import Aggregator, Handle
from trainflow.communication.compression.auto import AutoSum
from trainflow.communication.compression.block_format import BF16, FORMATS, INT8, BlockFormat
from trainflow.communication.compression.hierarchical import HierarchicalSum
from trainflow.communication.compression.low_rank import LowRankScheme
from trainflow.communication.compression.top_k import TopKSum
from trainflow.communication.compression.two_hop import TwoHopSum
from trainflow.communication.error_feedback import Feedback
from trainflow.communication.group import Group, Pending
from trainflow.communication.subgroup import Ranks
from trainflow.config.communication import CommunicationConfig, Compression
from trainflow.errors import ConfigError


def _ring_bytes(payload_bytes: int, world_size: int) -> int:
    return 2 * (world_size - 1) * payload_bytes // world_size


class RingSum:
    """The library's all_reduce in the bucket's own type."""

    wire = "sum"

    def start(self, bucket: Tensor, group: Group, feedback: Feedback | None = None) -> Pending:
        """Start an all_reduce."""
        if feedback is not None:
            feedback.spend(bucket)
        return group.all_reduce(bucket)

    def wire_bytes(self, num_elements: int, element_bytes: int, world_size: int) -> int:
        """2 (N-1)/N of the bucket."""
        return _ring_bytes(num_elements * element_bytes, world_size)


class RankOrderSum:
    """A two-hop sum in rank order, whatever the library's topology: the same bits on any network.

    Hop 1 gives rank r the r-th part of every rank's bucket, which it sums from rank 0 up; hop 2
    gathers the sums. As many bytes as a ring.
    """

    wire = "sum in rank order"

    def start(self, bucket: Tensor, group: Ranks, feedback: Feedback | None = None) -> Handle:
        """Start hop 1. Hop 2 starts in ``wait``, in the order of waiting, equal on all ranks."""
        if feedback is not None:
            feedback.spend(bucket)
        part = -(-bucket.numel() // group.world_size)
        padded = bucket.new_zeros(part * group.world_size)
        padded[: bucket.numel()] = bucket
        received = torch.empty_like(padded)
        return _TwoHops(group, bucket, padded, received)

    def wire_bytes(self, num_elements: int, element_bytes: int, world_size: int) -> int:
        """2 (N-1)/N of the bucket, padded to a multiple of N."""
        part = -(-num_elements // world_size)
        return _ring_bytes(part * world_size * element_bytes, world_size)


class _TwoHops:
    def __init__(self, group: Ranks, bucket: Tensor, padded: Tensor, received: Tensor):
        self._group = group
        self._bucket = bucket
        self._padded = padded
        self._received = received
        self._first_hop = group.all_to_all(received, padded)

    def wait(self) -> bool:
        """Finish hop 1, sum in rank order, run hop 2."""
        if not self._first_hop.wait():
            return False
        parts = self._received.view(self._group.world_size, -1)
        total = parts[0].clone()
        for part in parts[1:]:
            total += part
        if not self._group.all_gather(self._padded, total).wait():
            return False
        self._bucket.copy_(self._padded[: self._bucket.numel()])
        return True


def choose_aggregators(
    settings: CommunicationConfig,
    parameters: Sequence[str],
    *,
    deterministic: bool,
    device: torch.device,
) -> list[Aggregator | LowRankScheme]:
    """Pick how each parameter's gradient is summed; those that go alike share one.

    Args:
        settings: what the job asks for.
        parameters: their names.
        deterministic: as for `choose_aggregator`.
        device: where buckets lie.

    Raises:
        ConfigError: a pattern of the job's matches none of them.
    """
    for pattern in settings.per_parameter:
        if not any(fnmatchcase(name, pattern) for name in parameters):
            raise ConfigError(
                f"communication.per_parameter: got the pattern {pattern!r}, expected one that "
                f"matches a trainable parameter, as {parameters[0]!r}; change it or leave it out"
            )
    kinds: list[Compression] = [settings.compression_of(name) for name in parameters]
    made: dict[Compression, Aggregator | LowRankScheme] = {}
    for kind in kinds:
        if kind not in made:
            made[kind] = choose_aggregator(
                settings, kind, deterministic=deterministic, device=device
            )
    return [made[kind] for kind in kinds]


def choose_aggregator(
    settings: CommunicationConfig,
    compression: Compression | None = None,
    *,
    deterministic: bool,
    device: torch.device,
) -> Aggregator | LowRankScheme:
    """Pick how buckets are summed.

    Args:
        settings: what the job asks for.
        compression: in place of ``settings.compression``.
        deterministic: whether a run must repeat bit for bit.
        device: where buckets lie.
    """
    # gloo's own order of summation depends on ranks alone, NCCL's on the network too.
    in_rank_order = deterministic and device.type != "cpu"
    exact: Aggregator = RankOrderSum() if in_rank_order else RingSum()
    blockwise = partial(_blockwise, settings, deterministic=deterministic, device=device)
    chosen: Aggregator | LowRankScheme = exact
    match compression or settings.compression:
        case "none":
            pass
        case "bf16":
            chosen = TwoHopSum(BF16, device)
        case "fp8" | "int8" | "int4":
            chosen = blockwise(FORMATS[compression or settings.compression])
        case "top_k":
            chosen = TopKSum(settings.top_k_fraction, device)
        case "power_sgd":
            chosen = LowRankScheme(settings.power_sgd_rank, device)
        case "auto":
            chosen = AutoSum(exact, blockwise(INT8), device)
    return chosen


def _blockwise(
    settings: CommunicationConfig,
    block_format: BlockFormat,
    *,
    deterministic: bool,
    device: torch.device,
) -> TwoHopSum | HierarchicalSum:
    if settings.sums_by_node(deterministic=deterministic):
        return HierarchicalSum(block_format, device, is_asked=bool(settings.hierarchical))
    return TwoHopSum(block_format, device)
