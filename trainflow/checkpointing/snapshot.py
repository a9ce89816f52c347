"""A copy of one worker's state as it lies in memory: its tensors, and where in the whole they lie.

Pure.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from trainflow.epochs import ShardId, Version

Json = Any


@dataclass(frozen=True)
class Place:
    """Where a shard lies in its tensor.

    Attributes:
        whole: shape of the tensor.
        offset: of the shard's first element.
    """

    whole: tuple[int, ...]
    offset: tuple[int, ...]


@dataclass(frozen=True)
class TensorRecord:
    """A tensor in a snapshot, or the shard of it that is there.

    Attributes:
        path: in the state.
        dtype: its name.
        shape: of what is there.
        num_bytes: its size.
        place: of a shard; None if it is all of the tensor.
    """

    path: str
    dtype: str
    shape: tuple[int, ...]
    num_bytes: int
    place: Place | None = None

    def pack(self) -> list[Json]:
        """Return it as JSON."""
        packed: list[Json] = [self.path, self.dtype, self.shape, self.num_bytes]
        return packed if self.place is None else [*packed, self.place.whole, self.place.offset]

    @classmethod
    def unpack(cls, packed: Sequence[Json]) -> "TensorRecord":
        """Return what `pack` packed. Raises ValueError or TypeError if it wasn't that."""
        path, dtype, shape, num_bytes, *place = packed
        whole_and_offset = [tuple(map(int, each)) for each in place]
        return cls(
            str(path),
            str(dtype),
            tuple(map(int, shape)),
            int(num_bytes),
            Place(*whole_and_offset) if place else None,
        )


class Description(NamedTuple):
    """What a snapshot says of its payloads; see `Snapshot`."""

    purpose: Json
    skeleton: Json
    tensors: tuple[TensorRecord, ...]


@lru_cache(maxsize=16)
def parse_description(text: bytes) -> Description:
    """Read a description; of those that were read last it is at hand, since each chunk needs it.

    Raises:
        ValueError, LookupError, TypeError, ArithmeticError or RecursionError: it is none.
    """
    found = json.loads(text)
    tensors = tuple(map(TensorRecord.unpack, found["tensors"]))
    return Description(found["purpose"], found["skeleton"], tensors)


@dataclass(frozen=True)
class Snapshot:
    """A whole snapshot, as its reader sees it; views stay valid until the slot is freed.

    Attributes:
        version: of the state.
        shard: which part of it.
        purpose: what its writer wants done with it, as JSON.
        skeleton: the state with numbers in place of tensors.
        tensors: in the order of those numbers.
        payloads: their bytes.
    """

    version: Version
    shard: ShardId
    purpose: Json
    skeleton: Json
    tensors: tuple[TensorRecord, ...]
    payloads: tuple[memoryview, ...]
