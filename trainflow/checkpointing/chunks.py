"""Runs of bytes named by their content: equal bytes are written, sent and kept once.

The name is the xxh3-128 of the bytes. It tells damage and equality; it is no defence against
somebody who can write to the store and means to deceive.

Pure.
"""

import re
from collections.abc import Iterator
from typing import TypeVar

import xxhash

from trainflow.checkpointing.manifest import Chunk
from trainflow.errors import CheckpointError

Payload = TypeVar("Payload", bytes, memoryview)

CHUNK_BYTES = 2 * 1024 * 1024
"""Size of a chunk, apart from a shard's last: small, so that what changes costs little more."""


def split(payload: memoryview) -> Iterator[memoryview]:
    """Split a shard's bytes into what become chunks; the parts are views."""
    for start in range(0, len(payload), CHUNK_BYTES):
        yield payload[start : start + CHUNK_BYTES]


def count_chunks(num_bytes: int) -> int:
    """Return how many parts `split` makes of so many bytes."""
    return -(-num_bytes // CHUNK_BYTES)


def name_chunk(part: memoryview) -> Chunk:
    """Return the chunk that these bytes are."""
    return Chunk(name_of(part), len(part))


def name_of(data: memoryview | bytes) -> str:
    """Return the chunk id of these bytes: 32 hex digits."""
    return xxhash.xxh3_128_hexdigest(data)


def is_chunk_id(text: str) -> bool:
    """Whether ``text`` has the form of a chunk's id."""
    return re.fullmatch(r"[0-9a-f]{32}", text) is not None


def require_intact(chunk: Chunk, data: Payload, source: str) -> Payload:
    """Return ``data`` if it is what ``chunk`` names.

    Raises:
        CheckpointError: it is something else.
    """
    if len(data) != chunk.num_bytes or name_of(data) != chunk.chunk_id:
        raise CheckpointError(
            f"chunk {chunk.chunk_id} in {source}: got {len(data)} bytes that hash to "
            f"{name_of(data)}, expected {chunk.num_bytes} that hash to its name; the file is "
            "damaged: use an earlier checkpoint"
        )
    return data
