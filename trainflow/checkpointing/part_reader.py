"""Read parts of tensors out of the chunks of a checkpoint, several at a time.

Process: worker, driver.  Threads: those of `bounded_calls`.  Blocks: until all is read.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trainflow.checkpointing.bounded_calls import (
    STORE_CALLS,
    BoundedCalls,
    Call,
    Task,
    patience_s,
)
from trainflow.checkpointing.boxes import Box, whole
from trainflow.checkpointing.manifest import Chunk, Manifest, Shard
from trainflow.checkpointing.read_plan import Available, Wanted, plan_reads
from trainflow.errors import CheckpointError, StoreError

Bytes = NDArray[np.uint8]
Fetch = Callable[[Chunk, memoryview], None]

_TIER = 2


@dataclass(frozen=True)
class Part:
    """A part of a tensor, and where its bytes go: 1-D, contiguous, elements in C order."""

    box: Box
    out: Bytes


def read_parts(
    manifest: Manifest,
    wanted: Mapping[str, Part],
    fetch: Fetch,
    num_threads: int,
    within_s: Callable[[int], float] = patience_s,
    calls: BoundedCalls = STORE_CALLS,
) -> None:
    """Fill every wanted part.

    Args:
        manifest: the checkpoint.
        wanted: by tensor path.
        fetch: writes a chunk's bytes where they belong, verified; called from several threads. It
            `deliver`s them to the call that it runs in.
        num_threads: how many chunks are fetched at a time.
        within_s: how long a chunk of so many bytes may take.
        calls: whose threads fetch.

    Raises:
        CheckpointError: the checkpoint has no such tensor, or a chunk is missing or damaged.
        StoreError: a chunk doesn't come in time, or no thread is to be had that fetches it.
        StateError: a part is no part of its tensor.

    Once it has raised, no part is written to any more.
    """
    shards: dict[tuple[str, Box], Shard] = {}
    for path in wanted:
        if path not in manifest.tensors:
            raise CheckpointError(
                f"checkpoint of step {manifest.step}: got no tensor {path}, expected it; the "
                "training function builds another model than the one that was saved"
            )
        shards |= {(path, shard.box): shard for shard in manifest.tensors[path].shards}
    reads = plan_reads(
        [Wanted(path, part.box) for path, part in wanted.items()],
        [Available(path, box, _TIER, location="") for path, box in shards],
    )
    shard_reads = [
        _ShardRead(
            shard=shards[read.source.path, read.source.box],
            box=read.box,
            part=wanted[read.source.path],
            item_bytes=manifest.tensors[read.source.path].item_bytes,
        )
        for read in reads
    ]
    tasks = [
        Task(within_s(chunk.num_bytes), partial(_fetch, fetch, chunk, place))
        for each in shard_reads
        for chunk, place in each.chunks()
    ]
    try:
        calls.call_all(tasks, num_threads)
    except OSError as error:
        raise StoreError(f"step {manifest.step}: {error}, expected a chunk of it") from error
    for each in shard_reads:
        each.finish()


def _fetch(fetch: Fetch, chunk: Chunk, place: memoryview, _call: Call) -> None:
    fetch(chunk, place)


@dataclass
class _ShardRead:
    """Brings the elements of ``box`` from one shard to one part."""

    shard: Shard
    box: Box
    part: Part
    item_bytes: int
    _landing: Bytes = field(init=False)

    def chunks(self) -> Iterator[tuple[Chunk, memoryview]]:
        """Yield the chunks that hold the elements, and where to: their place, if all fits there.

        Otherwise they land in memory of the shard's size, of which only what is touched is real.
        """
        if self._is_direct():
            self._landing = self.part.out
        else:
            self._landing = np.empty(self.shard.box.num_elements * self.item_bytes, np.uint8)
        first, last = self._bytes_needed()
        start = 0
        for chunk in self.shard.chunks:
            stop = start + chunk.num_bytes
            if start < last and stop > first:
                yield chunk, self._landing[start:stop].data
            start = stop

    def finish(self) -> None:
        """Move the elements, once the chunks are there, if they aren't where they belong."""
        if self._is_direct():
            return
        source = _as_elements(self._landing, self.shard.box, self.item_bytes)
        target = _as_elements(self.part.out, self.part.box, self.item_bytes)
        selected = source[self.box.relative_to(self.shard.box).slices]
        target[self.box.relative_to(self.part.box).slices] = selected

    def _is_direct(self) -> bool:
        return self.shard.box == self.part.box

    def _bytes_needed(self) -> tuple[int, int]:
        """Return where in the shard's bytes the first and the last needed element lie."""
        inside = self.box.relative_to(self.shard.box)
        first = last = 0
        stride = self.shard.box.num_elements
        sides = zip(inside.offset, inside.shape, self.shard.box.shape, strict=True)
        for offset, size, side in sides:
            stride //= side
            first += offset * stride
            last += (offset + size - 1) * stride
        return first * self.item_bytes, (last + 1) * self.item_bytes


def _as_elements(data: Bytes, box: Box, item_bytes: int) -> NDArray[Any]:
    """View bytes as elements of an unknown type, which are only moved."""
    return data.view(np.dtype((np.void, item_bytes))).reshape(box.shape)


def allocate(shape: tuple[int, ...], item_bytes: int) -> Part:
    """Return a whole tensor's part with fresh memory."""
    return Part(whole(shape), np.empty(prod(shape) * item_bytes, np.uint8))
