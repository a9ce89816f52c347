"""Which gradients travel together: a pure function of the parameter list.

The layout must be the same on every rank of every epoch, or a promoted spare would issue mismatched
collectives; and another layout changes the last bits of the sums. So it depends on nothing that
happens at run time (torch's DDP regroups its buckets after the first backward).

Matrices fill buckets in reverse order of declaration, which is about the order in which backward
finishes them. What is small shares one tail bucket, together with one flag a parameter that tells
whether any rank used it.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import xxhash

TAIL_MAX_BYTES = 64 * 1024
TAIL_DTYPE = torch.float32


@dataclass(frozen=True)
class ParameterSpec:
    """What the layout needs to know of a trainable parameter."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def num_elements(self) -> int:
        """Number of elements."""
        return torch.Size(self.shape).numel()

    @property
    def num_bytes(self) -> int:
        """Size in memory."""
        return self.num_elements * self.dtype.itemsize

    @property
    def is_small(self) -> bool:
        """Whether it belongs in the tail."""
        small = len(self.shape) < 2 or self.num_bytes < TAIL_MAX_BYTES  # noqa: PLR2004  vectors
        return small and self.dtype == TAIL_DTYPE


@dataclass(frozen=True)
class Slot:
    """Where one parameter's gradient lies in its bucket, in elements."""

    parameter: int
    offset: int
    num_elements: int


@dataclass(frozen=True)
class Bucket:
    """Gradients that are reduced in one go."""

    slots: tuple[Slot, ...]
    dtype: torch.dtype
    num_elements: int


@dataclass(frozen=True)
class BucketLayout:
    """All buckets, in the order in which they are reduced. The last is the tail.

    Attributes:
        buckets: the tail's elements end with one flag for each parameter.
        flags_offset: where the flags begin in the tail.
        fingerprint: equal on two ranks only if their layouts are.
    """

    buckets: tuple[Bucket, ...]
    flags_offset: int
    fingerprint: int


def plan_buckets(
    parameters: Sequence[ParameterSpec], bucket_bytes: int, kinds: Sequence[str] | None = None
) -> BucketLayout:
    """Lay out the gradients of ``parameters``.

    Args:
        parameters: in order of declaration; the same on every rank.
        bucket_bytes: close a bucket once it holds this much; a single larger parameter has its own.
        kinds: how each is sent; those that are not sent alike are in different buckets. None: all
            are.
    """
    kinds = kinds or [""] * len(parameters)
    large = [i for i, spec in enumerate(parameters) if not spec.is_small]
    small = [i for i, spec in enumerate(parameters) if spec.is_small]
    groups: list[list[int]] = []
    room_bytes = 0
    for index in reversed(large):
        spec = parameters[index]
        starts_new = not groups or (
            (parameters[groups[-1][0]].dtype, kinds[groups[-1][0]]) != (spec.dtype, kinds[index])
        )
        if starts_new or room_bytes < spec.num_bytes:
            groups.append([])
            room_bytes = bucket_bytes
        groups[-1].append(index)
        room_bytes -= spec.num_bytes
    buckets = [_bucket(parameters, group, extra=0) for group in groups]
    tail = _bucket(parameters, list(reversed(small)), extra=len(parameters))
    return BucketLayout(
        buckets=(*buckets, tail),
        flags_offset=tail.num_elements - len(parameters),
        fingerprint=_fingerprint(parameters, bucket_bytes, kinds),
    )


def _bucket(parameters: Sequence[ParameterSpec], members: list[int], extra: int) -> Bucket:
    slots: list[Slot] = []
    offset = 0
    for index in members:
        slots.append(Slot(index, offset, parameters[index].num_elements))
        offset += parameters[index].num_elements
    dtype = parameters[members[0]].dtype if members else TAIL_DTYPE
    return Bucket(tuple(slots), dtype, offset + extra)


def _fingerprint(
    parameters: Sequence[ParameterSpec], bucket_bytes: int, kinds: Sequence[str]
) -> int:
    described = [
        [spec.name, spec.shape, str(spec.dtype), kind]
        for spec, kind in zip(parameters, kinds, strict=True)
    ]
    return xxhash.xxh3_64_intdigest(json.dumps([bucket_bytes, described]).encode())
