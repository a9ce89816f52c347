"""Random tensors, cut up at random, for property tests."""

from collections.abc import Callable
from itertools import pairwise, product
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from trainflow.checkpointing.boxes import Box
from trainflow.checkpointing.chunks import name_chunk, split
from trainflow.checkpointing.manifest import Chunk, Manifest, Shard, TensorEntry
from trainflow.checkpointing.part_reader import Fetch

shapes = st.lists(st.integers(1, 7), max_size=3).map(tuple)


@st.composite
def layouts(draw: st.DrawFn, shape: tuple[int, ...]) -> list[Box]:
    """Cut a tensor at random places of every dimension."""
    sides: list[list[tuple[int, int]]] = []
    for size in shape:
        inner = draw(st.sets(st.integers(1, size - 1))) if size > 1 else set[int]()
        sides.append(list(pairwise([0, *sorted(inner), size])))
    return [
        Box(tuple(a for a, _ in corner), tuple(b - a for a, b in corner))
        for corner in product(*sides)
    ]


def make_tensor(shape: tuple[int, ...]) -> NDArray[Any]:
    return np.arange(1, 1 + int(np.prod(shape)), dtype=np.int32).reshape(shape)


def write_shards(
    tensor: NDArray[Any], layout: list[Box], chunks: dict[str, bytes]
) -> tuple[Shard, ...]:
    shards: list[Shard] = []
    for box in layout:
        found: list[Chunk] = []
        for part in split(memoryview(tensor[box.slices].tobytes())):
            chunk = name_chunk(part)
            chunks[chunk.chunk_id] = bytes(part)
            found.append(chunk)
        shards.append(Shard(box, tuple(found)))
    return tuple(shards)


def make_manifest(**entries: TensorEntry) -> Manifest:
    return Manifest(
        job_id="job-abc123",
        step=40,
        attempt="1.2-w0",
        created_at_s=1000.0,
        world_size=3,
        fingerprint="f" * 32,
        config={"name": "job"},
        skeleton={"dict": [[path, {"tensor": i}] for i, path in enumerate(entries)]},
        tensors=entries,
    )


def filling(read: Callable[[Chunk], bytes]) -> Fetch:
    """Make a fetch of what returns a chunk's bytes, verified."""

    def fetch(chunk: Chunk, view: memoryview) -> None:
        view[:] = read(chunk)

    return fetch
