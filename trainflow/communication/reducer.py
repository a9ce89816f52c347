"""Sum gradients over ranks while backward is still running.

A hook on each parameter copies its gradient into the parameter's slot as soon as autograd has
finished it; a bucket leaves when all its slots are filled and every bucket before it has left, so
that all ranks issue the same collectives in the same order whatever order autograd took. Gradients
that accumulate over microbatches stay with autograd until the last one: until then nothing is
copied or sent.

Process: every rank.  Thread: training (autograd on CPU runs in it).  Blocks: only in `finish`.
Ranks: each calls begin, then at most one armed backward, then finish; one without microbatches
sends zeros.
Fails: never raises in backward. If a collective failed, `finish` returns None and the gradients are
garbage. If backward ran twice through a parameter once armed, `finish` raises TrainingError, after
it has sent what the peers wait for.
"""

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor, nn

from trainflow.communication.aggregation import RingSum
from trainflow.communication.aggregator import Aggregator, Handle
from trainflow.communication.bit_digest import digest_bits
from trainflow.communication.buckets import Bucket, BucketLayout, ParameterSpec, plan_buckets
from trainflow.communication.compression.auto import AutoSum
from trainflow.communication.compression.low_rank import LowRankScheme, LowRankSum
from trainflow.communication.group import Group
from trainflow.communication.reduced_gradients import ReducedGradients, SumTimes
from trainflow.errors import TrainingError

if TYPE_CHECKING:
    from trainflow.communication.error_feedback import Residuals


Chosen = Aggregator | LowRankScheme
OnWait = Callable[[str], None]


def _tell_nobody(_name: str) -> None:
    """Nobody wants to know."""


class GradientReducer:
    """Buckets of one model's gradients.

    Args:
        parameters: names and parameters, in order of declaration.
        aggregator: how they are summed; one for all, or one for each.
        bucket_bytes: about how much travels together.
        on_wait: is told whose sums are waited for, before each wait; at last that none are.

    Attributes:
        layout: which gradients travel together.
        fingerprint: equal on two ranks only if they can sum their gradients with each other.
        auto: what chooses how they are summed, if nobody has.
        residual_sizes: elements of each bucket that is compressed.
        residuals: of those buckets; None: what compression leaves out is lost.
        times: of the step that was begun last.
    """

    def __init__(
        self,
        parameters: Sequence[tuple[str, nn.Parameter]],
        aggregator: Chosen | Sequence[Chosen],
        bucket_bytes: int,
        *,
        on_wait: OnWait = _tell_nobody,
    ):
        self._on_wait = on_wait
        chosen = aggregator if isinstance(aggregator, Sequence) else [aggregator] * len(parameters)
        self._names = [name for name, _ in parameters]
        self._parameters = [parameter for _, parameter in parameters]
        specs = [ParameterSpec(name, tuple(p.shape), p.dtype) for name, p in parameters]
        wires = [each.wire for each in chosen]
        self.layout: BucketLayout = plan_buckets(specs, bucket_bytes, wires)
        self.fingerprint = self.layout.fingerprint
        self._aggregators = _for_buckets(chosen, self.layout.buckets[:-1], specs)
        self._low_rank = [each for each in self._aggregators if isinstance(each, LowRankSum)]
        self.auto = next((each for each in chosen if isinstance(each, AutoSum)), None)
        self._tail_aggregator = RingSum()
        self.residual_sizes = [bucket.num_elements for bucket in self.layout.buckets[:-1]]
        self.residuals: Residuals | None = None
        device = self._parameters[0].device
        self._buffers = [
            torch.zeros(bucket.num_elements, dtype=bucket.dtype, device=device)
            for bucket in self.layout.buckets
        ]
        self._views: list[Tensor] = [torch.empty(0)] * len(specs)
        self._bucket_of: list[int] = [0] * len(specs)
        for number, bucket in enumerate(self.layout.buckets):
            for slot in bucket.slots:
                flat = self._buffers[number][slot.offset : slot.offset + slot.num_elements]
                self._views[slot.parameter] = flat.view(specs[slot.parameter].shape)
                self._bucket_of[slot.parameter] = number
        self._bucket_names = [self._name_bucket(bucket) for bucket in self.layout.buckets]
        self._group: Group | None = None
        self._unscale = 1.0
        self._is_exact = False
        self._armed = False
        self._handles: list[Handle] = []
        self.times = SumTimes()
        self._missing: list[int] = []
        self._filled: list[bool] = []
        self._repeated: int | None = None
        for index, parameter in enumerate(self._parameters):
            parameter.register_post_accumulate_grad_hook(self._hook(index))

    def begin(self, group: Group, *, exact: bool = False) -> None:
        """Forget the last step's gradients, whatever became of them.

        Args:
            group: who sums the next ones.
            exact: they are to be summed uncompressed.
        """
        for handle in self._handles:
            handle.wait()  # an abandoned try's collectives may still write to the buckets
        for each in self._low_rank:
            each.begin()
        self._is_exact = exact
        if self.auto is not None and not exact:
            self.auto.prepare(group, [buffer.numel() for buffer in self._buffers[:-1]])
        self._group = group
        self._unscale = 1.0
        self._armed = False
        self._handles = []
        self.times = SumTimes()
        self._missing = [len(bucket.slots) for bucket in self.layout.buckets]
        self._filled = [False] * len(self._parameters)
        self._repeated = None
        for parameter in self._parameters:
            parameter.grad = None

    def note_loss_scale(self, loss_scale: float) -> None:
        """Say by what this rank multiplies its losses; see `Reducer`."""
        for parameter in self._parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(loss_scale * self._unscale)
        self._unscale = 1.0 / loss_scale

    def arm(self) -> None:
        """The next backward is this rank's last one in the step: send buckets as they fill."""
        self._armed = True

    def finish(self) -> ReducedGradients | None:
        """Send what is left, wait for all buckets and point the parameters' ``grad`` at the sums.

        A parameter that no rank used has ``grad`` None, as without TrainFlow, and what was left out
        of its gradients before stays with each rank. Returns None if a collective failed.

        Raises:
            TrainingError: a gradient was computed again after it had been sent.
        """
        for index, filled in enumerate(self._filled):
            if not filled:
                self._fill(index)
        self._launch_ready()
        succeeded = True
        with self._timing("after_s"):
            for handle, name in zip(self._handles, self._bucket_names, strict=True):
                self._on_wait(name)
                succeeded = handle.wait() and succeeded  # each, whatever became of those before
        self._on_wait("")
        if not succeeded:
            return None
        self._require_once()
        flags = self._buffers[-1][self.layout.flags_offset :].tolist()
        for parameter, view, flag in zip(self._parameters, self._views, flags, strict=True):
            parameter.grad = view if flag > 0 else None
        self._keep_unused([flag > 0 for flag in flags])
        return self._summarise()

    def keep(self) -> None:
        """The step was applied: what aggregators have learnt in it holds."""
        for each in self._low_rank:
            each.keep()

    def factors(self) -> dict[str, Tensor]:
        """Return what low-rank sums begin from, by parameter: state of the run; views."""
        return {name: q for each in self._low_rank for name, q in each.factors().items()}

    def plain_bytes(self, world_size: int) -> int:
        """Bytes that it would send uncompressed."""
        ring = self._tail_aggregator
        sizes = [(buffer.numel(), buffer.element_size()) for buffer in self._buffers]
        return sum(ring.wire_bytes(*size, world_size) for size in sizes)

    def wire_bytes(self, world_size: int) -> int:
        """Bytes that one rank sends in the step that was begun last."""
        sizes = [(buffer.numel(), buffer.element_size()) for buffer in self._buffers]
        tail, body = self._tail_aggregator, self._aggregators
        chosen = [tail] * len(sizes) if self._is_exact else [*body, tail]
        return sum(
            each.wire_bytes(*size, world_size) for each, size in zip(chosen, sizes, strict=True)
        )

    def by_parameter(self, buckets: Sequence[Tensor]) -> Iterator[tuple[str, Tensor]]:
        """Yield names of parameters whose gradients are compressed, each with its part.

        Args:
            buckets: tensors with as many elements as the buckets that are compressed.
        """
        for bucket, flat in zip(self.layout.buckets, buckets, strict=False):
            for slot in bucket.slots:
                part = flat[slot.offset : slot.offset + slot.num_elements]
                yield self._names[slot.parameter], part.view(self._views[slot.parameter].shape)

    def _name_bucket(self, bucket: Bucket) -> str:
        names = [self._names[slot.parameter] for slot in bucket.slots]
        if len(names) > 1:
            return f"{names[0]} and {len(names) - 1} more"
        return names[0] if names else "flags of all parameters"

    def _hook(self, index: int) -> Callable[[Tensor], None]:
        def copy_when_armed(_: Tensor) -> None:
            if self._armed and self._filled[index]:
                self._repeated = index  # its slot may be on the wire: leave it alone
            elif self._armed:
                self._fill(index)
                self._launch_ready()

        return copy_when_armed

    def _keep_unused(self, used: Sequence[bool]) -> None:
        """Undo the sum of residuals where nobody will apply it; every rank knows the same flags."""
        if self.residuals is None:
            return
        for number, bucket in enumerate(self.layout.buckets[:-1]):
            feedback = self.residuals.feedback(number)
            for slot in bucket.slots:
                if not used[slot.parameter]:
                    own = slice(slot.offset, slot.offset + slot.num_elements)
                    feedback.left[own] = feedback.kept[own]
                    self._views[slot.parameter].zero_()

    def _require_once(self) -> None:
        if self._repeated is not None:
            raise TrainingError(
                f"backward: got a second gradient of {self._names[self._repeated]!r} in the last "
                "microbatch, expected one, since the first is on its way to the other ranks; add "
                "the losses up and call step.backward once a microbatch, without other backward "
                "calls; torch.utils.checkpoint needs use_reentrant=False"
            )

    def _fill(self, index: int) -> None:
        """Copy a gradient, or zeros, into its slot, and note in the tail whether there was one."""
        grad = self._parameters[index].grad
        if grad is None:
            self._views[index].zero_()
        elif self._unscale == 1.0:
            self._views[index].copy_(grad)
        else:
            torch.mul(grad, self._unscale, out=self._views[index])
        if grad is not None:
            self._parameters[index].grad = None
        self._buffers[-1][self.layout.flags_offset + index] = float(grad is not None)
        self._filled[index] = True
        self._missing[self._bucket_of[index]] -= 1

    def _launch_ready(self) -> None:
        """Send, in order, each bucket whose slots are filled; the tail once all slots are."""
        assert self._group is not None, "begin() comes before backward"
        last = len(self._buffers) - 1
        while (number := len(self._handles)) <= last:
            if self._missing[number] or (number == last and not all(self._filled)):
                return
            with self._timing("before_s"):
                self._handles.append(self._start(number, self._group, is_tail=number == last))

    @contextmanager
    def _timing(self, what: Literal["before_s", "after_s"]) -> Generator[None]:
        """Add the time inside to `times`, that waited for collectives apart."""
        assert self._group is not None, "begin() comes first"
        start_s, waited_s = time.perf_counter(), self._group.waited_s
        yield
        link_s = self._group.waited_s - waited_s
        self.times.link_s += link_s
        own_s = time.perf_counter() - start_s - link_s
        setattr(self.times, what, getattr(self.times, what) + own_s)

    def _start(self, number: int, group: Group, *, is_tail: bool) -> Handle:
        bucket = self._buffers[number]
        if is_tail:
            return self._tail_aggregator.start(bucket, group)
        feedback = None if self.residuals is None else self.residuals.feedback(number)
        aggregator = self._tail_aggregator if self._is_exact else self._aggregators[number]
        return aggregator.start(bucket, group, feedback)

    def _summarise(self) -> ReducedGradients:
        tail = self._buffers[-1][: self.layout.flags_offset]
        flats = (*self._buffers[:-1], tail)
        norms = [torch.linalg.vector_norm(flat.detach(), dtype=torch.float32) for flat in flats]
        norm = torch.linalg.vector_norm(torch.stack(norms))
        return ReducedGradients(flats, digest_bits(flats), float(norm))


def _for_buckets(
    chosen: Sequence[Chosen], buckets: Sequence[Bucket], specs: Sequence[ParameterSpec]
) -> list[Aggregator]:
    """Return each bucket's aggregator; all gradients in it have the same."""
    made: list[Aggregator] = []
    for bucket in buckets:
        aggregator = chosen[bucket.slots[0].parameter]
        if isinstance(aggregator, LowRankScheme):
            parameters = [specs[slot.parameter] for slot in bucket.slots]
            aggregator = aggregator.for_bucket([(each.name, each.shape) for each in parameters])
        made.append(aggregator)
    return made
