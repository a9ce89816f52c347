"""Put together what several ranks have written of one state, each the parts of tensors it holds.

Replicated state is shared out by chunks (`sharing`); here each rank has written whole shards of its
own, cut along whatever dimension, and of a replicated tensor perhaps the same shard as another.

Pure.
"""

from collections.abc import Iterable, Mapping, Sequence

from trainflow.checkpointing.boxes import Box, count_corners, is_partition, whole
from trainflow.checkpointing.manifest import MAX_CORNERS, Chunk, Shard, TensorEntry
from trainflow.checkpointing.snapshot import Place
from trainflow.errors import CheckpointError


def place_shard(
    dtype: str, shape: tuple[int, ...], place: Place | None, chunks: Iterable[Chunk]
) -> TensorEntry:
    """Return a whole tensor with one shard of it.

    Args:
        dtype: its type.
        shape: of the shard.
        place: where that lies; None: it is all of the tensor.
        chunks: the shard's bytes.
    """
    if place is None:
        box, full = whole(shape), shape
    else:
        box, full = Box(place.offset, shape), place.whole
    return TensorEntry(dtype, full, (Shard(box, tuple(chunks)),))


def assemble_shards(held: Sequence[Mapping[str, TensorEntry]]) -> dict[str, TensorEntry]:
    """Return each tensor with all of its shards, in the order of the first rank's.

    Args:
        held: of each rank, by path, in the order of the skeleton's numbers: every tensor of the
            state in its whole shape, with the shards that this rank has written; none, some, all.

    Raises:
        CheckpointError: the ranks are not of one state, or some part of it is missing or disputed.
    """
    first, *others = held
    described = [(path, entry.dtype, entry.shape) for path, entry in first.items()]
    for other in others:
        if [(path, entry.dtype, entry.shape) for path, entry in other.items()] != described:
            raise CheckpointError(
                "got shards of different states, expected every rank to name the same tensors; "
                "look for state that only some ranks register"
            )
    return {
        path: TensorEntry(entry.dtype, entry.shape, _unite(path, [each[path] for each in held]))
        for path, entry in first.items()
    }


def _unite(path: str, parts: Sequence[TensorEntry]) -> tuple[Shard, ...]:
    shards: dict[Box, Shard] = {}
    for shard in (shard for part in parts for shard in part.shards if shard.box.num_elements):
        if shards.setdefault(shard.box, shard) != shard:
            raise CheckpointError(
                f"{path}: got two contents of {shard.box}, expected replicas to be equal; the "
                "ranks have drifted apart: go on from an earlier checkpoint"
            )
    shape = parts[0].shape
    boxes = sorted(shards, key=lambda box: box.offset)
    if count_corners(boxes, shape) > MAX_CORNERS:
        raise CheckpointError(
            f"{path}: got {len(boxes)} shards, expected fewer, or cut along fewer dimensions"
        )
    if not is_partition(boxes, shape):
        raise CheckpointError(
            f"{path}: got {len(boxes)} shards that overlap or leave gaps, expected each element of "
            f"{shape} in one; a rank is missing, or has another layout"
        )
    return tuple(shards[box] for box in boxes)
