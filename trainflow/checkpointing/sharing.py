"""One snapshot brought to storage by several: who takes which chunks, and what they make together.

Replicated state lies in several places. Its chunks are numbered through, tensor after tensor, and
dealt round: each place uploads every n-th, tells their names, and one puts the names together. Of
sharded state each place uploads the shards that it alone has; what all have, the first.

Pure.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trainflow.checkpointing.chunks import CHUNK_BYTES, count_chunks, name_of, split
from trainflow.checkpointing.manifest import Chunk, TensorEntry
from trainflow.checkpointing.shard_assembly import assemble_shards, place_shard
from trainflow.checkpointing.snapshot import Snapshot, TensorRecord
from trainflow.epochs import Version
from trainflow.errors import CheckpointError

Json = Any

_USER_STATE = ("/registered/", "/extra_states/")


@dataclass(frozen=True, order=True)
class Share:
    """One of ``count`` places: of replicated state, every ``count``-th chunk from ``index`` on."""

    index: int
    count: int


@dataclass(frozen=True)
class ShareReport:
    """One place's share of a checkpoint is in the store.

    Attributes:
        version: of the state.
        share: which chunks.
        skeleton: of the state; the same from all.
        tensors: in the order of the skeleton's numbers; of replicated state the same from all.
        chunks: by their number.
        num_bytes_written: of chunks that were not in the store before.
        digests: of the tensors that users' code keeps, by path; the same from all.
    """

    version: Version
    share: Share
    skeleton: Json
    tensors: tuple[TensorRecord, ...]
    chunks: Mapping[int, Chunk]
    num_bytes_written: int
    digests: Mapping[str, str]


def deal(snapshot: Snapshot, share: Share) -> Iterator[tuple[int, memoryview]]:
    """Yield the share's chunks of a snapshot, each with its number."""
    is_sharded = _is_sharded(snapshot.tensors)
    number = 0
    for tensor, payload in zip(snapshot.tensors, snapshot.payloads, strict=True):
        for part in split(payload):
            dealt = 0 if is_sharded else number
            if tensor.place is not None or dealt % share.count == share.index:
                yield number, part
            number += 1


def bytes_needed(tensors: Sequence[TensorRecord], share: Share) -> Iterator[tuple[int, int, int]]:
    """Yield what a place needs of replicated state for its share: tensor, first byte, last + 1.

    That is what `deal` yields, and what `hash_user_state` hashes.
    """
    number = 0
    for index, tensor in enumerate(tensors):
        is_hashed = share.count > 1 and tensor.path.startswith(_USER_STATE)
        for start in range(0, tensor.num_bytes, CHUNK_BYTES):
            if is_hashed or number % share.count == share.index:
                yield index, start, min(start + CHUNK_BYTES, tensor.num_bytes)
            number += 1


def hash_user_state(snapshot: Snapshot, share: Share) -> dict[str, str]:
    """Hash each tensor that was registered, or is a module's extra state, as a whole.

    What else is in a state each commit makes the same on every rank. A share that is all there is
    needs none.
    """
    if share.count == 1:
        return {}
    return {
        tensor.path: name_of("".join(map(name_of, split(payload))).encode())
        for tensor, payload in zip(snapshot.tensors, snapshot.payloads, strict=True)
        if tensor.path.startswith(_USER_STATE)
    }


def is_complete(reports: Mapping[Share, ShareReport]) -> bool:
    """Whether every share is there."""
    counts = {share.count for share in reports}
    return len(counts) == 1 and len(reports) == counts.pop()


def assemble(reports: Sequence[ShareReport]) -> dict[str, TensorEntry]:
    """Put the shares of one version together.

    Raises:
        CheckpointError: they are not of one state, or some are missing.
    """
    first = reports[0]
    is_sharded = _is_sharded(first.tensors)
    if any(r.skeleton != first.skeleton for r in reports) or (
        not is_sharded and any(r.tensors != first.tensors for r in reports)
    ):
        raise CheckpointError(
            f"checkpoint of step {first.version.step}: got shares of different states, expected "
            "every rank to hold the same; look for registered state that differs by rank, or that "
            "only some ranks register"
        )
    for report in reports:
        _require_same_values(first, report)
    if is_sharded:
        return assemble_shards([_place_all(report) for report in reports])
    chunks: dict[int, Chunk] = {}
    for report in reports:
        chunks |= report.chunks
    entries: dict[str, TensorEntry] = {}
    for tensor, numbers in _number_through(first.tensors):
        missing = [number for number in numbers if number not in chunks]
        if missing:
            raise CheckpointError(
                f"checkpoint of step {first.version.step}: got no chunk {missing[0]}, expected all "
                f"of {tensor.path}"
            )
        entries[tensor.path] = _place(tensor, [chunks[number] for number in numbers])
    return entries


def _is_sharded(tensors: Sequence[TensorRecord]) -> bool:
    return any(tensor.place is not None for tensor in tensors)


def _number_through(tensors: Sequence[TensorRecord]) -> Iterator[tuple[TensorRecord, range]]:
    """Yield each tensor with the numbers of its chunks."""
    start = 0
    for tensor in tensors:
        stop = start + count_chunks(tensor.num_bytes)
        yield tensor, range(start, stop)
        start = stop


def _place_all(report: ShareReport) -> dict[str, TensorEntry]:
    """Return each tensor as a whole, with the shard of it that this place has brought, if any."""
    placed: dict[str, TensorEntry] = {}
    for tensor, numbers in _number_through(report.tensors):
        own = [report.chunks[number] for number in numbers if number in report.chunks]
        entry = _place(tensor, own)
        placed[tensor.path] = entry if len(own) == len(numbers) else replace(entry, shards=())
    return placed


def _place(tensor: TensorRecord, chunks: Sequence[Chunk]) -> TensorEntry:
    return place_shard(tensor.dtype, tensor.shape, tensor.place, chunks)


def _require_same_values(first: ShareReport, other: ShareReport) -> None:
    """Require that a tensor of which both places have chunks is one tensor."""
    for path, digest in first.digests.items():
        if other.digests[path] != digest:
            raise CheckpointError(
                f"checkpoint of step {first.version.step}: {path}: got different values on two "
                "ranks, expected the same on every rank; reduce it with session.reduce before it "
                "is kept, or leave it out of session.register"
            )
