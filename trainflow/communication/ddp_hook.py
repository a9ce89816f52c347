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

import weakref
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, compress, count, pairwise
from typing import cast, get_args

import torch
import torch.distributed as dist
import xxhash
from pydantic import ValidationError
from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.futures import Future
from torch.utils.weak import WeakIdKeyDictionary

from trainflow.communication.aggregation import choose_aggregator
from trainflow.communication.aggregator import Aggregator, Handle
from trainflow.communication.compression.low_rank import LowRankScheme, LowRankSum
from trainflow.communication.error_feedback import Feedback, Residuals
from trainflow.communication.group import Group
from trainflow.communication.process_group import ProcessGroupTransport
from trainflow.config.communication import CommunicationConfig, Compression
from trainflow.config.problems import Origins, find_problems, summarize
from trainflow.epochs import EpochId, EpochSpec
from trainflow.errors import CommunicationError, ConfigError, GroupMismatchError

_OFFERED = tuple(each for each in get_args(Compression) if each != "auto")
_ONLY_WITH = {"top_k_fraction": "top_k", "power_sgd_rank": "power_sgd"}
_SETTINGS = frozenset({"error_feedback", *_ONLY_WITH})
_COMPRESSIBLE = frozenset({torch.float32, torch.float16, torch.bfloat16})

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
    What error feedback has kept then stays as it was; it is neither saved nor restored. It goes
    with the parameters, of which the hook holds weak references: one that is registered with
    another model keeps nothing of the first.

    Args:
        compression: what travels; see ``communication.compression`` of a job. Not ``auto``.
        process_group: the one that the model was given; the default group if None.
        grad_scaler: what scales the loss, if something does and there is error feedback.
        settings: of a job's ``communication`` those that go with it: ``error_feedback``,
            ``top_k_fraction``, ``power_sgd_rank``.

    Raises:
        ConfigError: another compression or setting, or there is no process group yet, or this rank
            is not in it.

    The hook itself raises, out of backward: CommunicationError if a collective fails,
    GroupMismatchError if another rank compresses otherwise, ConfigError if parameters are of
    float64 or gradients are sparse, which only ``none`` sums.
    """
    if compression not in _OFFERED:
        raise ConfigError(
            f"ddp_comm_hook: got compression {compression!r}, expected one of "
            f"{', '.join(_OFFERED)}; choose one of them: nothing is measured here"
        )
    chosen = _check(compression, settings)
    _require_scaler(grad_scaler)
    buckets = _Buckets(chosen, _borrow(process_group), grad_scaler)

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
    for setting in sorted(settings.keys() & _ONLY_WITH.keys()):
        if compression != _ONLY_WITH[setting]:
            raise ConfigError(
                f"ddp_comm_hook: got {setting} with compression {compression}, which doesn't read "
                f"it, expected {_ONLY_WITH[setting]}; leave it out, or choose that"
            )
    # DDP doesn't say which ranks share a node.
    given = {"compression": compression, "hierarchical": False, **settings}
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


def _require_scaler(given: object) -> None:
    if not isinstance(given, GradScaler | None):
        raise ConfigError(
            f"ddp_comm_hook: got grad_scaler {given!r}, expected a torch.amp.GradScaler; give the "
            "one that scales the loss, or leave it out"
        )


class _Borrowed(ProcessGroupTransport):
    """A process group of the user's: never aborted here."""

    def abort(self) -> None:
        """Leave it to whoever made it, and its timeout."""


class _Kept:
    """What is kept of one of DDP's buckets from step to step."""

    def __init__(
        self, parameters: Sequence[Tensor], aggregator: Aggregator, residuals: Residuals | None
    ):
        self.aggregator = aggregator
        self.residuals = residuals
        ends = list(accumulate(parameter.numel() for parameter in parameters))
        self.slots = [slice(*each) for each in pairwise([0, *ends])]
        self._owners = [weakref.ref(parameter) for parameter in parameters]
        self._filled = [slot for slot in self.slots if slot.start < slot.stop]
        firsts = [slot.start for slot in self._filled]
        self._firsts = torch.tensor(firsts, dtype=torch.int64, device=parameters[0].device)

    @property
    def parameters(self) -> list[Tensor | None]:
        """Whose it is, in order; None for those that are gone."""
        return [owner() for owner in self._owners]

    def holds(self, parameters: Sequence[Tensor]) -> bool:
        """Whether it is of a bucket of these, in this order."""
        return list(map(id, self.parameters)) == list(map(id, parameters))

    def find_zeros(self, flat: Tensor) -> list[slice]:
        """Return where the gradients lie that are all zero."""
        are_suspect = (flat[self._firsts] == 0).tolist()
        suspects = compress(self._filled, are_suspect)
        return [slot for slot in suspects if not flat[slot].count_nonzero()]


@dataclass
class _UnderWay:
    """A bucket of a backward; ``summed`` is ``flat``, unless that is of a narrower type."""

    kept: _Kept
    withheld: list[slice]
    handle: Handle
    summed: Tensor
    flat: Tensor
    future: Future[Tensor]

    def keep(self) -> None:
        """The step counts."""
        if self.kept.residuals is not None:
            feedback = self.kept.residuals.feedback(0)
            for slot in self.withheld:
                feedback.left[slot].add_(feedback.kept[slot])
            self.kept.residuals.swap()
        if isinstance(self.kept.aggregator, LowRankSum):
            self.kept.aggregator.keep()


class _Buckets:
    """The buckets of one backward, on their way.

    Attributes:
        kept: by parameter, by identity and as long as it lives: what is kept of its bucket.
    """

    def __init__(self, settings: CommunicationConfig, group: Group, grad_scaler: GradScaler | None):
        self._settings = settings
        self._group = group
        self._grad_scaler = grad_scaler
        self._scale = 1.0
        self._chosen: Aggregator | LowRankScheme | None = None
        self.kept = cast("MutableMapping[Tensor, _Kept]", WeakIdKeyDictionary())
        self._names = cast("MutableMapping[Tensor, str]", WeakIdKeyDictionary())
        self._numbers = count()
        self._under_way: list[_UnderWay] = []

    def add(self, bucket: dist.GradBucket) -> Future[Tensor]:
        """Start to sum a bucket; with the last one all are waited for, in order."""
        flat = bucket.buffer()
        if not self._under_way:
            self._scale = 1.0 if self._grad_scaler is None else self._grad_scaler.get_scale()
        kept = self._kept_of(bucket.parameters(), flat)
        summed = self._prepare(flat)
        # A gradient may be zero because no rank uses its parameter: DDP drops that sum.
        withheld = [] if kept.residuals is None else kept.find_zeros(summed)
        feedback = None if kept.residuals is None else _withhold(kept.residuals, withheld)
        if isinstance(kept.aggregator, LowRankSum):
            kept.aggregator.begin()
        handle = kept.aggregator.start(summed, self._group, feedback)
        self._under_way.append(_UnderWay(kept, withheld, handle, summed, flat, Future[Tensor]()))
        future = self._under_way[-1].future
        if bucket.is_last():
            self._finish()
        return future

    def _prepare(self, flat: Tensor) -> Tensor:
        """Return what is summed: a sum in fp16 could overflow where the mean doesn't."""
        if not self._is_compressed:
            return flat.mul_(1.0 / self._group.world_size)  # before, as DDP does
        summed = flat.to(torch.float32)
        return summed if self._scale == 1.0 else summed.div_(self._scale)

    def _finish(self) -> None:
        under_way, self._under_way = self._under_way, []
        failed = [each for each in under_way if not each.handle.wait()]
        if failed:
            raise CommunicationError(
                f"ddp_comm_hook: a collective failed: {self._group.failure}; make a new process "
                "group and model, and go on from a checkpoint"
            )
        if self._is_compressed:
            for each in under_way:
                each.flat.copy_(each.summed.mul_(self._scale / self._group.world_size))
        # All ranks hold the same bits, so all decide the same.
        if self._settings.feeds_back and all(_is_finite(each.flat) for each in under_way):
            for each in under_way:
                each.keep()
        for each in under_way:
            each.future.set_result(each.flat)

    def _kept_of(self, parameters: list[Tensor], flat: Tensor) -> _Kept:
        """Return what is kept of a bucket. DDP makes others after the first backward."""
        kept = self.kept.get(parameters[0])
        if kept is None or not kept.holds(parameters):
            kept = self._make(parameters, flat)
            # An old bucket stays as long as one of its parameters is in no new one.
            for old in {self.kept[each] for each in parameters if each in self.kept}:
                _hand_over(old, kept)
            for each in parameters:
                self.kept[each] = kept
        return kept

    def _make(self, parameters: list[Tensor], flat: Tensor) -> _Kept:
        if self._chosen is None:
            device = flat.device
            chosen = choose_aggregator(self._settings, deterministic=False, device=device)
            self._require_same(self._describe(chosen.wire), device)
            self._chosen = chosen
        if self._is_compressed:
            self._require_compressible(flat)
        if isinstance(self._chosen, LowRankScheme):
            named = [(self._name(parameter), tuple(parameter.shape)) for parameter in parameters]
            aggregator = self._chosen.for_bucket(named)
        else:
            aggregator = self._chosen
        sizes = [flat.numel()]
        feeds_back = self._settings.feeds_back
        residuals = Residuals.of_sizes(sizes, flat.device) if feeds_back else None
        return _Kept(parameters, aggregator, residuals)

    @property
    def _is_compressed(self) -> bool:
        return self._settings.compression != "none"

    def _name(self, parameter: Tensor) -> str:
        """By the order in which DDP first shows them, which is the same on every rank."""
        if parameter not in self._names:
            self._names[parameter] = str(next(self._numbers))
        return self._names[parameter]

    def _require_compressible(self, flat: Tensor) -> None:
        found = f"with compression {self._settings.compression}"
        if flat.is_sparse:
            raise ConfigError(
                f"ddp_comm_hook: got sparse gradients {found}, expected dense ones; give the "
                'embedding sparse=False, or register ddp_comm_hook("none")'
            )
        if flat.dtype not in _COMPRESSIBLE:
            raise ConfigError(
                f"ddp_comm_hook: got parameters of {flat.dtype} {found}, expected float32, float16 "
                'or bfloat16; convert the model, or register ddp_comm_hook("none")'
            )

    def _describe(self, wire: str) -> str:
        """Name all that changes what comes out."""
        feedback = "with" if self._settings.feeds_back else "without"
        scaler = self._grad_scaler
        is_scaled = scaler is not None and scaler.is_enabled()
        scale = f"a loss scale of {self._scale:g}" if is_scaled else "no loss scale"
        return f"{wire}; {feedback} error feedback; {scale}"

    def _require_same(self, mine: str, device: torch.device) -> None:
        digest = xxhash.xxh3_64_intdigest(mine.encode()) >> 1
        own = torch.tensor([digest], dtype=torch.int64, device=device)
        all_of_them = own.new_empty(self._group.world_size)
        if not self._group.all_gather(all_of_them, own).wait():
            raise CommunicationError(
                f"ddp_comm_hook: the first exchange failed: {self._group.failure}; a rank may be "
                "gone, or have registered no hook: register the same hook on every rank"
            )
        differing = [rank for rank, other in enumerate(all_of_them.tolist()) if other != digest]
        if differing:
            raise GroupMismatchError(
                f"ddp_comm_hook: got another hook on ranks {differing} than here ({mine}), "
                "expected the same: register the same hook on every rank"
            )


def _withhold(residuals: Residuals, withheld: list[slice]) -> Feedback:
    """Return what a sum needs, without what is to stay as it is."""
    feedback = residuals.feedback(0)
    if not withheld:
        return feedback
    sent = feedback.kept.clone()
    for slot in withheld:
        sent[slot] = 0
    return Feedback(sent, feedback.left)


def _is_finite(flat: Tensor) -> bool:
    """Whether all elements are: NaN is both the least and the largest, and nothing overflows."""
    return not flat.numel() or bool(torch.stack(torch.aminmax(flat)).isfinite().all())


def _hand_over(old: _Kept, new: _Kept) -> None:
    """Take over what was kept of parameters that are in another bucket now."""
    if old.residuals is None or new.residuals is None:
        return
    before, now = old.residuals.kept[0], new.residuals.kept[0]
    owned = zip(old.parameters, old.slots, strict=True)
    slots = {id(own): slot for own, slot in owned if own is not None}
    for own, slot in zip(new.parameters, new.slots, strict=True):
        if id(own) in slots:
            now[slot].copy_(before[slots[id(own)]])
    if isinstance(old.aggregator, LowRankSum) and isinstance(new.aggregator, LowRankSum):
        factors = old.aggregator.factors()
        for name, own in new.aggregator.factors().items():
            if name in factors:
                own.copy_(factors[name])


def _borrow(process_group: object) -> Group:
    found = dist.group.WORLD if process_group is None else process_group
    if found is None:
        raise ConfigError(
            "ddp_comm_hook: got no process group, expected one: call "
            "torch.distributed.init_process_group before"
        )
    if not isinstance(found, dist.ProcessGroup):  # torch gives a number to who is not in it
        raise ConfigError(
            f"ddp_comm_hook: got process_group {found!r}, expected a ProcessGroup that this rank "
            "is in: make hook and model on its members alone"
        )
    members = tuple(f"rank{rank}" for rank in range(found.size()))
    spec = EpochSpec(EpochId(0, 0), members, "", 0)
    return Group(spec, found.rank(), _Borrowed(found), _ignore)


def _ignore(_epoch: EpochId, _reason: str) -> None:
    """Tell nobody: the hook raises."""
