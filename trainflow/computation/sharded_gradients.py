"""Gradients of a model whose parameters are sharded, for the step's commit.

FSDP2 sums them unit by unit while backward goes on (`communication.fsdp_collectives`); gradients
that accumulate over microbatches stay on the rank until the last one. Each rank ends with the sums
of its own shards.

Of a unit that runs in a step, what gets no gradient gets zero. For one that doesn't, nothing is
sent, and its gradients are None. FSDP2 by itself would go by whether a rank has ever gathered it,
which a rank that has taken another's place may not have.

Process: every rank.  Thread: training.  Blocks: only in `finish`.
Ranks: each runs equally many backwards in a step, so that all gather the same parameters.
Fails: never raises in backward. If a collective failed, `finish` returns None.
"""

import math
import zlib
from collections.abc import Sequence
from typing import Any

import torch
import xxhash
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from trainflow.communication.bit_digest import digest_bits
from trainflow.communication.commit_record import find_odd_twins
from trainflow.communication.compression.auto import AutoSum
from trainflow.communication.fsdp_collectives import ShardExchange
from trainflow.communication.group import Group
from trainflow.communication.reduced_gradients import ReducedGradients, SumTimes
from trainflow.computation.parameter_marks import require_no_hooks
from trainflow.computation.sharding import (
    fill_up_gradients,
    forget_gradients,
    free_gathered,
    scale_gradients,
)
from trainflow.computation.shards import local_part


class ShardedGradients:
    """See `Reducer`.

    Args:
        root: the model, sharded.
        parameters: names and parameters that are trained, in order of declaration.
        exchange: carries its collectives.
        device: where the model computes.
        is_digested: hash the sums also where no other rank has them to compare with.
    """

    auto: AutoSum | None = None

    def __init__(
        self,
        root: FSDPModule,
        parameters: Sequence[tuple[str, nn.Parameter]],
        exchange: ShardExchange,
        device: torch.device,
        *,
        is_digested: bool = False,
    ):
        self._root = root
        self._is_digested = is_digested
        self._device = device
        self._named = parameters
        self._parameters = [parameter for _, parameter in parameters]
        self._exchange = exchange
        self._group: Group | None = None
        self._unscale = 1.0
        self.times = SumTimes()
        described = [(name, tuple(p.shape), str(p.dtype)) for name, p in parameters]
        self._has_run = False  # until then FSDP2 has nothing to reset, and says so by failing
        self._is_armed = False
        self._module: Any = root  # a module too, which its type leaves out
        self._units = [each for each in self._module.modules() if isinstance(each, FSDPModule)]
        for unit in self._units:
            any_unit: Any = unit  # as above
            any_unit.register_forward_pre_hook(self._note_run)
        self.fingerprint = zlib.crc32(repr((described, exchange.wire)).encode())

    def connect(self, group: Group, *, exact: bool = False) -> None:
        """From now on these are the ranks; whatever was cut short is forgotten."""
        self._exchange.begin(group, exact=exact)
        if self._has_run:
            self._root.reset_iter_state()
            forget_gradients(self._module)

    def begin(self, group: Group, *, exact: bool = False) -> None:
        """Forget the last step's gradients; see `Reducer`.

        Raises:
            TrainingError: parameters were given hooks meanwhile.
        """
        require_no_hooks("steps", self._named)
        self.connect(group, exact=exact)
        self._is_armed = False
        for unit in self._units:
            unit.set_requires_gradient_sync(True, recurse=False)  # of nothing, unless it runs
            unit.set_reduce_scatter_unused_params(False, recurse=False)
        self._group = group
        self._unscale = 1.0
        self.times = SumTimes()
        for parameter in self._parameters:
            parameter.grad = None

    def note_loss_scale(self, loss_scale: float) -> None:
        """Say by what this rank multiplies its losses; see `Reducer`."""
        scale_gradients(self._module, loss_scale * self._unscale)
        self._unscale = self._exchange.unscale = 1.0 / loss_scale

    def arm(self) -> None:
        """The next backward is this rank's last one in the step: sum gradients as they come."""
        self._is_armed = True
        fill_up_gradients(self._module)
        self._root.set_requires_gradient_sync(True)

    def finish(self) -> ReducedGradients | None:
        """Wait for all sums, and measure them; None if a collective failed.

        The norm is of the gradients of all shards; the digest covers the sums of this rank's group,
        shard by shard in their order, which other groups have too, if there are any. It is 0 where
        no sums were hashed.
        """
        assert self._group is not None, "begin() comes first"
        free_gathered(self._module)  # or what is copied after the step is not what it has made
        waited_s = self._group.waited_s
        succeeded = self._exchange.finish()
        self.times.link_s = self._group.waited_s - waited_s
        if not succeeded:
            return None
        grads = [local_part(p.grad) for p in self._parameters if p.grad is not None]
        flats = tuple(grad.view(-1) for grad in grads if grad.numel())
        size = self._group.spec.shard_size
        for flat in flats if size == 1 else ():  # else they were divided as they were sent
            flat.mul_(self._unscale)
        described = self._gather_descriptions(self._group, flats)
        if described is None:
            return None
        first = self._group.rank // size * size
        own = described[first : first + size].contiguous()
        is_hashed = self._hashes(self._group)
        digest = xxhash.xxh3_64_intdigest(own.numpy().tobytes()) if is_hashed else 0
        # All clip by the same norm, also where a group has other sums.
        norm = math.hypot(*described[:size, 0].tolist())
        hashes = described[:, 1].contiguous().view(torch.int64).tolist()
        return ReducedGradients(flats, digest, norm, find_odd_twins(hashes, size))

    def keep(self) -> None:
        """Nothing is learnt."""

    def factors(self) -> dict[str, Tensor]:
        """Nothing is of low rank."""
        return {}

    def plain_bytes(self, world_size: int) -> int:
        """Bytes that this rank would have sent uncompressed in the step: parameters too."""
        del world_size
        return self._exchange.plain_bytes

    def wire_bytes(self, world_size: int) -> int:
        """Bytes that this rank has sent in the step."""
        del world_size
        return self._exchange.wire_bytes

    def _note_run(self, unit: FSDPModule, _: object) -> None:
        self._has_run = True
        if torch.is_grad_enabled():
            unit.set_requires_gradient_sync(self._is_armed, recurse=False)
            unit.set_reduce_scatter_unused_params(True, recurse=False)

    def _hashes(self, group: Group) -> bool:
        """Tell whether sums are hashed: others have them too, or a run's record is to have it."""
        return self._is_digested or group.spec.shard_size < group.world_size

    def _gather_descriptions(self, group: Group, flats: Sequence[Tensor]) -> Tensor | None:
        """Return of each rank's part the 2-norm and the bits of a hash, by rank, in fp64 (N, 2).

        Where every shard is there once, no rank could compare the hash, and it is made only if it
        was asked for. None if the group failed.
        """
        mine = torch.zeros(1, 2, dtype=torch.float64)
        norms = [torch.linalg.vector_norm(flat, dtype=torch.float32) for flat in flats]
        if norms:
            mine[0, 0] = torch.linalg.vector_norm(torch.stack(norms))
        if self._hashes(group):
            hashed = bytearray(digest_bits(flats).to_bytes(8, "big"))
            mine[0, 1:].view(torch.uint8).copy_(torch.frombuffer(hashed, dtype=torch.uint8))
        everyone = torch.zeros(group.world_size, 2, dtype=torch.float64, device=self._device)
        succeeded = group.all_gather(everyone.view(-1), mine.to(self._device).view(-1)).wait()
        return everyone.cpu() if succeeded else None
