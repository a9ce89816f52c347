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

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import get_args

import torch
import torch.distributed as dist
import xxhash
from pydantic import ValidationError
from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.futures import Future

from trainflow.communication.aggregation import choose_aggregator
from trainflow.communication.aggregator import Aggregator, Handle
from trainflow.communication.compression.low_rank import LowRankScheme, LowRankSum
from trainflow.communication.error_feedback import Residuals
from trainflow.communication.group import Group
from trainflow.communication.process_group import ProcessGroupTransport
from trainflow.config.communication import CommunicationConfig, Compression
from trainflow.config.problems import Origins, find_problems, summarize
from trainflow.epochs import EpochId, EpochSpec
from trainflow.errors import CommunicationError, ConfigError, GroupMismatchError

_OFFERED = tuple(each for each in get_args(Compression) if each != "auto")
_SETTINGS = frozenset({"error_feedback", "top_k_fraction", "power_sgd_rank"})

DdpHook = Callable[[object, dist.GradBucket], Future[Tensor]]


def ddp_comm_hook(
    compression: Compression,
    *,
    process_group: dist.ProcessGroup | None = None,
    grad_scaler: GradScaler | None = None,
    **settings: float | bool,
) -> DdpHook:
    """Return a hook for ``DistributedDataParallel.register_comm_hook``; its state is None.

    Gradients come out as DDP's own: the mean over ranks, the same bits on each. If a rank's are not
    finite, so are all ranks', as in an uncompressed mean: `torch.amp.GradScaler` skips the step.
    What error feedback has kept then stays as it was; it is neither saved nor restored.

    Args:
        compression: what travels; see ``communication.compression`` of a job. Not ``auto``.
        process_group: the one that the model was given; the default group if None.
        grad_scaler: what scales the loss, if something does and there is error feedback.
        settings: of a job's ``communication`` those that go with it: ``error_feedback``,
            ``top_k_fraction``, ``power_sgd_rank``.

    Raises:
        ConfigError: another compression or setting, or there is no process group yet.

    The hook itself raises, out of backward: CommunicationError if a collective fails,
    GroupMismatchError if another rank compresses otherwise.
    """
    if compression not in _OFFERED:
        raise ConfigError(
            f"ddp_comm_hook: got compression {compression!r}, expected one of "
            f"{', '.join(_OFFERED)}; choose one of them: nothing is measured here"
        )
    chosen = _check(compression, settings)
    group = process_group or dist.group.WORLD
    if group is None:
        raise ConfigError(
            "ddp_comm_hook: got no process group, expected one: call "
            "torch.distributed.init_process_group before"
        )
    buckets = _Buckets(chosen, group, grad_scaler)

    def sum_compressed(_state: object, bucket: dist.GradBucket) -> Future[Tensor]:
        return buckets.add(bucket)

    return sum_compressed


def _check(compression: Compression, settings: dict[str, float | bool]) -> CommunicationConfig:
    unknown = sorted(settings.keys() - _SETTINGS)
    if unknown:
        raise ConfigError(
            f"ddp_comm_hook: got {', '.join(unknown)}, expected {', '.join(sorted(_SETTINGS))}; "
            "leave it out"
        )
    given = {"compression": compression, **settings}
    try:
        chosen = CommunicationConfig.model_validate(given)
    except ValidationError as error:
        problems = find_problems(
            error, model=CommunicationConfig, data=given, origins=Origins(default="")
        )
        raise ConfigError(f"ddp_comm_hook: {summarize(problems)}") from error
    if problems := chosen.conflicts():
        raise ConfigError(f"ddp_comm_hook: {summarize(problems)}")
    return chosen


class _Borrowed(ProcessGroupTransport):
    """A process group of the user's: never aborted here."""

    def abort(self) -> None:
        """Leave it to whoever made it, and its timeout."""


@dataclass
class _Kept:
    """What is kept of one of DDP's buckets from step to step."""

    parameters: list[Tensor]
    aggregator: Aggregator
    residuals: Residuals | None

    def slots(self, flat: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Yield each parameter's identity and its part of a tensor as long as the bucket."""
        parts = flat.split([parameter.numel() for parameter in self.parameters])
        return ((id(own), part) for own, part in zip(self.parameters, parts, strict=True))


@dataclass
class _UnderWay:
    """A bucket of a backward."""

    kept: _Kept
    handle: Handle
    flat: Tensor
    future: Future[Tensor]


class _Buckets:
    """The buckets of one backward, on their way."""

    def __init__(
        self,
        settings: CommunicationConfig,
        process_group: dist.ProcessGroup,
        grad_scaler: GradScaler | None,
    ):
        self._settings = settings
        self._group = _borrow(process_group)
        self._grad_scaler = grad_scaler
        self._scale = 1.0
        self._chosen: Aggregator | LowRankScheme | None = None
        self._kept: dict[tuple[int, ...], _Kept] = {}
        self._names: dict[int, str] = {}
        self._under_way: list[_UnderWay] = []

    def add(self, bucket: dist.GradBucket) -> Future[Tensor]:
        """Start to sum a bucket; with the last one all are waited for, in order."""
        flat = bucket.buffer()
        if not self._under_way:
            self._scale = 1.0 if self._grad_scaler is None else self._grad_scaler.get_scale()
        if self._scale != 1.0:
            flat.div_(self._scale)
        kept = self._kept_of(bucket.parameters(), flat)
        feedback = None if kept.residuals is None else kept.residuals.feedback(0)
        if isinstance(kept.aggregator, LowRankSum):
            kept.aggregator.begin()
        handle = kept.aggregator.start(flat, self._group, feedback)
        self._under_way.append(_UnderWay(kept, handle, flat, Future[Tensor]()))
        future = self._under_way[-1].future
        if bucket.is_last():
            self._finish()
        return future

    def _finish(self) -> None:
        under_way, self._under_way = self._under_way, []
        failed = [each for each in under_way if not each.handle.wait()]
        if failed:
            raise CommunicationError(
                f"ddp_comm_hook: a collective failed: {self._group.failure}; make a new process "
                "group and model, and go on from a checkpoint"
            )
        if self._settings.feeds_back and all(_is_finite(each.flat) for each in under_way):
            for each in under_way:
                _keep(each.kept)
        for each in under_way:
            each.future.set_result(each.flat.mul_(self._scale / self._group.world_size))

    def _kept_of(self, parameters: list[Tensor], flat: Tensor) -> _Kept:
        """Return what is kept of a bucket. DDP makes others after the first backward."""
        key = tuple(map(id, parameters))
        if key not in self._kept:
            made = self._make(parameters, flat)
            for old in [each for each in self._kept if set(each) & set(key)]:
                _hand_over(self._kept.pop(old), made)
            self._kept[key] = made
        return self._kept[key]

    def _make(self, parameters: list[Tensor], flat: Tensor) -> _Kept:
        if self._chosen is None:
            device = flat.device
            chosen = choose_aggregator(self._settings, deterministic=False, device=device)
            self._require_same(chosen.wire, device)
            self._chosen = chosen
        if isinstance(self._chosen, LowRankScheme):
            # Named by the order in which DDP first shows them, which is the same on every rank.
            names = [self._names.setdefault(id(p), str(len(self._names))) for p in parameters]
            shapes = [tuple(parameter.shape) for parameter in parameters]
            aggregator = self._chosen.for_bucket(list(zip(names, shapes, strict=True)))
        else:
            aggregator = self._chosen
        sizes = [flat.numel()]
        feeds_back = self._settings.feeds_back
        residuals = Residuals.of_sizes(sizes, flat.device) if feeds_back else None
        return _Kept(parameters, aggregator, residuals)

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


def _is_finite(flat: Tensor) -> bool:
    return bool(torch.linalg.vector_norm(flat, dtype=torch.float32).isfinite())


def _keep(kept: _Kept) -> None:
    """The step counts."""
    if kept.residuals is not None:
        kept.residuals.swap()
    if isinstance(kept.aggregator, LowRankSum):
        kept.aggregator.keep()


def _hand_over(old: _Kept, new: _Kept) -> None:
    """Take over what was kept of parameters that are in another bucket now."""
    if old.residuals is None or new.residuals is None:
        return
    before = dict(old.slots(old.residuals.kept[0]))
    for parameter, part in new.slots(new.residuals.kept[0]):
        if parameter in before:
            part.copy_(before[parameter])
    if isinstance(old.aggregator, LowRankSum) and isinstance(new.aggregator, LowRankSum):
        factors = old.aggregator.factors()
        for name, own in new.aggregator.factors().items():
            if name in factors:
                own.copy_(factors[name])


def _borrow(process_group: dist.ProcessGroup) -> Group:
    members = tuple(f"rank{rank}" for rank in range(process_group.size()))
    spec = EpochSpec(EpochId(0, 0), members, "", 0)
    return Group(spec, process_group.rank(), _Borrowed(process_group), _ignore)


def _ignore(_epoch: EpochId, _reason: str) -> None:
    """Tell nobody: the hook raises."""
