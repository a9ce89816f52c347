"""The record that every rank contributes to a commit, and the decision that follows from them.

One all_gather of a fixed number of bytes a rank. Every rank decides from the same bytes, so all
decide alike: there is no second round and nobody to ask. Pure, apart from `exchange`.
"""

import math
import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from trainflow.communication.group import Group
from trainflow.epochs import Flag
from trainflow.errors import CommunicationError, GroupMismatchError, TrainingError
from trainflow.sums import add_exactly

MAX_SCALARS = 16
MAX_NAME_BYTES = 48
_HEADER = struct.Struct("<8sqqqqQQddddd")
_SCALAR = struct.Struct(f"<{MAX_NAME_BYTES}sdd")
_MAGIC = b"TFcommit"
RECORD_BYTES = _HEADER.size + MAX_SCALARS * _SCALAR.size


@dataclass(frozen=True)
class Scalar:
    """A logged value on its way to a weighted mean: ``sum(weight * value)`` and ``sum(weight)``."""

    weighted_sum: float
    weight: float


@dataclass(frozen=True)
class CommitRecord:
    """What one rank says about the step it wants to commit.

    Attributes:
        incarnation: of the epoch.
        counter: of the epoch.
        step: the step's number.
        flags: requests that all ranks must see at the same step.
        digest: hash of the reduced gradients.
        spot_digest: hash of one microbatch's gradients that every rank has computed; 0: none has.
        weight: this rank's share of the mean (targets, samples).
        loss_sum: weight times mean loss, summed over the rank's microbatches.
        norm: 2-norm of the summed gradients, as this rank computes it.
        compute_s: time the rank computed in this step, waiting left out.
        wait_s: time it waited for other ranks.
        scalars: logged values by name; at most `MAX_SCALARS`, names of at most `MAX_NAME_BYTES`.
    """

    incarnation: int
    counter: int
    step: int
    flags: Flag = Flag.NONE
    digest: int = 0
    spot_digest: int = 0
    weight: float = 0.0
    loss_sum: float = 0.0
    norm: float = 0.0
    compute_s: float = 0.0
    wait_s: float = 0.0
    scalars: dict[str, Scalar] = field(default_factory=dict[str, Scalar])

    def pack(self) -> bytes:
        """Encode in exactly `RECORD_BYTES` bytes."""
        header = _HEADER.pack(
            _MAGIC,
            self.incarnation,
            self.counter,
            self.step,
            int(self.flags),
            self.digest,
            self.spot_digest,
            self.weight,
            self.loss_sum,
            self.norm,
            self.compute_s,
            self.wait_s,
        )
        entries = [
            _SCALAR.pack(name.encode(), scalar.weighted_sum, scalar.weight)
            for name, scalar in self.scalars.items()
        ]
        return b"".join([header, *entries]).ljust(RECORD_BYTES, b"\0")


def require_loggable(name: str) -> None:
    """Raise TrainingError if a value can't be logged under this name."""
    if not name or "\0" in name or len(name.encode()) > MAX_NAME_BYTES:
        raise TrainingError(
            f"step.log: got the name {name!r}, expected 1 to {MAX_NAME_BYTES} bytes of text; "
            "shorten it"
        )


def unpack(data: bytes) -> CommitRecord:
    """Decode a record; raises CommunicationError if it isn't one."""
    magic, incarnation, counter, step, flags, *rest = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        raise CommunicationError(f"not a commit record: starts with {magic!r}")
    entries = _SCALAR.iter_unpack(data[_HEADER.size : RECORD_BYTES])
    scalars = {
        name.rstrip(b"\0").decode(): Scalar(total, weight)
        for name, total, weight in entries
        if name[0]
    }
    return CommitRecord(incarnation, counter, step, Flag(flags), *rest, scalars=scalars)


@dataclass(frozen=True)
class CommitDecision:
    """What all ranks conclude.

    Attributes:
        total_weight: sum of weights; the gradients' divisor.
        loss: mean loss over all samples of the step; NaN if no rank had any.
        norm: 2-norm of the summed gradients, as rank 0 computes it.
        flags: union of all flags.
        suspects: ranks whose gradients differ from the majority's, or all if there is none.
        miscomputing: the same of gradients of one microbatch that all ranks have computed.
        digest: hash of the reduced gradients, the same on all ranks where none is suspected.
        scalars: mean over ranks of each logged value, by name.
        compute_s: time that each rank computed in this step, by rank.
        wait_s: time that each rank waited for others in it, up to the exchange, by rank.
    """

    total_weight: float
    loss: float
    norm: float
    flags: Flag
    suspects: tuple[int, ...]
    miscomputing: tuple[int, ...]
    digest: int
    scalars: dict[str, float]
    compute_s: tuple[float, ...]
    wait_s: tuple[float, ...]

    @property
    def shortest_wait_s(self) -> float:
        """Return what the rank waited that came last: about what communication took."""
        return min(self.wait_s)


def decide_commit(records: Sequence[CommitRecord]) -> CommitDecision:
    """Draw the one conclusion from the records of all ranks, by rank.

    Raises:
        GroupMismatchError: the ranks are not at the same step of the same epoch.
    """
    positions = {(r.incarnation, r.counter, r.step) for r in records}
    if len(positions) != 1:
        raise GroupMismatchError(f"ranks commit different steps: {sorted(positions)}")
    flags = Flag.NONE
    for record in records:
        flags |= record.flags
    # Plain loops over ranks in order: the same bits on every rank.
    total_weight = add_exactly(record.weight for record in records)
    loss_sum = add_exactly(record.loss_sum for record in records)
    return CommitDecision(
        total_weight=total_weight,
        loss=loss_sum / total_weight if total_weight else math.nan,
        norm=records[0].norm,
        flags=flags,
        suspects=_suspects([record.digest for record in records]),
        miscomputing=_suspects([record.spot_digest for record in records]),
        digest=records[0].digest,
        scalars=_mean_scalars(records),
        compute_s=tuple(record.compute_s for record in records),
        wait_s=tuple(record.wait_s for record in records),
    )


def find_odd_twins(hashes: Sequence[int], num_parts: int) -> tuple[int, ...]:
    """Return the ranks whose part of the sums differs from that of most who have the same one.

    Args:
        hashes: by rank; those that are ``num_parts`` apart have the same part.
        num_parts: how many there are.

    Returns:
        All ranks where those with some part have no majority: nothing tells who is at fault.
    """
    odd: list[int] = []
    for part in range(num_parts):
        twins = range(part, len(hashes), num_parts)
        found = _suspects([hashes[rank] for rank in twins])
        if len(found) == len(twins):
            return tuple(range(len(hashes)))
        odd += [twins[place] for place in found]
    return tuple(sorted(odd))


def _suspects(digests: Sequence[int]) -> tuple[int, ...]:
    counts = Counter(digests)
    if len(counts) == 1:
        return ()
    digest, votes = counts.most_common(1)[0]
    if votes * 2 <= len(digests):
        return tuple(range(len(digests)))
    return tuple(rank for rank, other in enumerate(digests) if other != digest)


def _mean_scalars(records: Sequence[CommitRecord]) -> dict[str, float]:
    means: dict[str, float] = {}
    for name in sorted({name for record in records for name in record.scalars}):
        found = [record.scalars[name] for record in records if name in record.scalars]
        weight = add_exactly(scalar.weight for scalar in found)
        means[name] = add_exactly(s.weighted_sum for s in found) / weight if weight else math.nan
    return means


def exchange(record: CommitRecord, group: Group, device: torch.device) -> list[CommitRecord] | None:
    """Gather every rank's record, by rank; None if the group has failed by then.

    Process: every rank.  Thread: training.  Blocks: until all ranks have come.
    """
    record = replace(
        record, incarnation=group.spec.epoch.incarnation, counter=group.spec.epoch.counter
    )
    mine = torch.frombuffer(bytearray(record.pack()), dtype=torch.uint8).to(device)
    everyone = torch.empty(group.world_size * RECORD_BYTES, dtype=torch.uint8, device=device)
    if not group.all_gather(everyone, mine).wait():
        return None
    data = everyone.cpu().numpy().tobytes()
    if group.failure is not None:  # what was aborted meanwhile may have left anything in there
        return None
    return [unpack(data[i : i + RECORD_BYTES]) for i in range(0, len(data), RECORD_BYTES)]
