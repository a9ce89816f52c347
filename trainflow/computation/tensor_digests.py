"""Digest the single tensors of a step, so that two runs can be compared tensor by tensor.

A tensor's path is the one that it has in a checkpoint, ``/models/MODEL/NAME``; the summed gradient
that moved it, before it is divided and clipped, is at ``/gradients/MODEL/NAME``. Its digest is the
hash of the hashes of its parts, in the order of shards: it depends on how many shards there are,
and on nothing else beside its bits. Of what every rank holds alike there is one part, rank 0's.

Process: every rank.  Thread: training, in a commit.  Blocks: for the hashing; where the model is
sharded, until every rank is done with it.
Ranks: all begin and finish alike.  Fails: never; if the group does, there are no digests.
"""

from collections.abc import Iterable, Mapping

import xxhash
from torch import Tensor

from trainflow.checkpointing.retention import is_due
from trainflow.communication.group import Group
from trainflow.computation.rank_context import RankContext
from trainflow.computation.residual_state import gather
from trainflow.computation.shards import local_part
from trainflow.computation.training_state import TrainingState
from trainflow.computation.weights import bytes_of

_HASH_BYTES = 8
_NO_GRADIENT = 0


class StepDigests:
    """Those of one step; nothing is hashed if the job doesn't want them of this one.

    Args:
        context: of this rank.
        state: its gradients are summed, and nothing is applied.
        group: the ranks.
        step: the step's number.
    """

    def __init__(self, context: RankContext, state: TrainingState, group: Group, step: int):
        self._context = context
        self._state = state
        self._group = group
        self._is_sharded = context.job.parallel.is_sharded
        wanted = is_due(step, context.job.monitoring.digest_every_steps)
        self._hashes_own = wanted and (self._is_sharded or group.rank == 0)
        self._hashes: dict[str, int] = {}
        for model, prepared in state.models.items() if self._hashes_own else ():
            named = prepared.module.named_parameters()
            trained = {name: each.grad for name, each in named if each.requires_grad}
            self._take(f"/gradients/{model}", trained)

    def finish(self) -> dict[str, str]:
        """Digest what the step has made of the model, too; return all by path, on rank 0."""
        if not self._hashes_own:
            return {}
        for model, prepared in self._state.models.items():
            self._take(f"/models/{model}", prepared.tensors())
        parts = self._gather() if self._is_sharded else [[*self._hashes.values()]]
        if self._group.rank != 0 or not parts:
            return {}
        return dict(zip(self._hashes, map(_digest, zip(*parts, strict=True)), strict=True))

    def _take(self, folder: str, tensors: Mapping[str, Tensor | None]) -> None:
        self._hashes |= {f"{folder}/{name}": _hash(each) for name, each in tensors.items()}

    def _gather(self) -> list[list[int]]:
        """Return the hashes of each part, in the order of shards; none if the group failed."""
        with self._context.stamps.waiting():
            rows = gather(self._group, [*self._hashes.values()], self._context.device)
        return [] if rows is None else rows[: self._group.spec.shard_size]


def _hash(tensor: Tensor | None) -> int:
    """Return the hash of this rank's part of a tensor, signed, as torch can send it."""
    if tensor is None:
        return _NO_GRADIENT
    data = bytes_of(local_part(tensor).detach().cpu())
    return int.from_bytes(xxhash.xxh3_64_digest(data), "little", signed=True)


def _digest(hashes: Iterable[int]) -> str:
    """Return 16 hex digits."""
    packed = (each.to_bytes(_HASH_BYTES, "little", signed=True) for each in hashes)
    return xxhash.xxh3_64_hexdigest(b"".join(packed))
