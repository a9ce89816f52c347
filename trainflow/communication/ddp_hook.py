"""Compressed sums of gradients for plain DistributedDataParallel: no Ray, no job, no session.

    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from trainflow.communication import ddp_comm_hook

    dist.init_process_group("gloo")
    model = DistributedDataParallel(module)
    model.register_comm_hook(None, ddp_comm_hook("int8"))

Process: every rank.  Thread: training; DDP calls the hook while autograd runs.
Ranks: all register the same.  Blocks: with the last bucket of a backward, until all are summed.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, get_args

import torch
import torch.distributed as dist
import xxhash
from torch import Tensor
from torch.futures import Future

from trainflow.communication.aggregation import choose_aggregator
from trainflow.communication.group import Group
from trainflow.communication.process_group import ProcessGroupTransport
from trainflow.config.job import Compression
from trainflow.epochs import EpochId, EpochSpec
from trainflow.errors import CommunicationError, ConfigError, GroupMismatchError

if TYPE_CHECKING:
    from trainflow.communication.aggregator import Aggregator, Handle

_OFFERED = tuple(each for each in get_args(Compression) if each != "auto")

DdpHook = Callable[[object, dist.GradBucket], Future[Tensor]]


def ddp_comm_hook(
    compression: Compression, *, process_group: dist.ProcessGroup | None = None
) -> DdpHook:
    """Return a hook for ``DistributedDataParallel.register_comm_hook``; its state is None.

    Gradients come out as DDP's own: the mean over ranks, the same bits on each. If a rank's are not
    finite, so are all ranks', as in an uncompressed mean: `torch.amp.GradScaler` skips the step.

    Args:
        compression: what travels; see ``communication.compression`` of a job. Not ``auto``.
        process_group: the one that the model was given; the default group if None.

    Raises:
        ConfigError: another compression, or there is no process group yet.

    The hook itself raises, out of backward: CommunicationError if a collective fails,
    GroupMismatchError if another rank compresses otherwise.
    """
    if compression not in _OFFERED:
        raise ConfigError(
            f"ddp_comm_hook: got compression {compression!r}, expected one of "
            f"{', '.join(_OFFERED)}; choose one of them: nothing is measured here"
        )
    group = process_group or dist.group.WORLD
    if group is None:
        raise ConfigError(
            "ddp_comm_hook: got no process group, expected one: call "
            "torch.distributed.init_process_group before"
        )
    buckets = _Buckets(compression, group)

    def sum_compressed(_state: object, bucket: dist.GradBucket) -> Future[Tensor]:
        return buckets.add(bucket.buffer(), is_last=bucket.is_last())

    return sum_compressed


class _Borrowed(ProcessGroupTransport):
    """A process group of the user's: never aborted here."""

    def abort(self) -> None:
        """Leave it to whoever made it, and its timeout."""


class _Buckets:
    """The buckets of one backward, on their way."""

    def __init__(self, compression: Compression, process_group: dist.ProcessGroup):
        self._compression: Compression = compression
        self._group = _borrow(process_group)
        self._aggregator: Aggregator | None = None
        self._under_way: list[tuple[Handle, Tensor, Future[Tensor]]] = []

    def add(self, bucket: Tensor, *, is_last: bool) -> Future[Tensor]:
        """Start to sum a bucket; with the last one all are waited for, in order."""
        if self._aggregator is None:
            self._aggregator = choose_aggregator(
                self._compression, deterministic=False, device=bucket.device
            )
            self._require_same(self._aggregator.wire, bucket.device)
        future = Future[Tensor]()
        self._under_way.append((self._aggregator.start(bucket, self._group), bucket, future))
        if is_last:
            self._finish()
        return future

    def _finish(self) -> None:
        under_way, self._under_way = self._under_way, []
        failed = [bucket for handle, bucket, _ in under_way if not handle.wait()]
        if failed:
            raise CommunicationError(
                f"ddp_comm_hook: a collective failed: {self._group.failure}; make a new process "
                "group and model, and go on from a checkpoint"
            )
        for _, bucket, future in under_way:
            future.set_result(bucket.div_(self._group.world_size))

    def _require_same(self, wire: str, device: torch.device) -> None:
        digest = xxhash.xxh3_64_intdigest(wire.encode()) >> 1
        mine = torch.tensor([digest], dtype=torch.int64, device=device)
        all_of_them = mine.new_empty(self._group.world_size)
        if not self._group.all_gather(all_of_them, mine).wait():
            raise CommunicationError(f"ddp_comm_hook: a collective failed: {self._group.failure}")
        differing = [rank for rank, other in enumerate(all_of_them.tolist()) if other != digest]
        if differing:
            raise GroupMismatchError(
                f"ddp_comm_hook: got another compression on ranks {differing} than here "
                f"({wire}), expected the same: register the same hook on every rank"
            )


def _borrow(process_group: dist.ProcessGroup) -> Group:
    members = tuple(f"rank{rank}" for rank in range(process_group.size()))
    spec = EpochSpec(EpochId(0, 0), members, "", 0)
    return Group(spec, process_group.rank(), _Borrowed(process_group), _ignore)


def _ignore(_epoch: EpochId, _reason: str) -> None:
    """Tell nobody: the hook raises."""
