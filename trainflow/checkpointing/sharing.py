"""One snapshot brought to storage by several: who takes which chunks, and what they make together.

Replicated state lies in several places. Its chunks are numbered through, tensor after tensor, and
dealt round: each place uploads every n-th, tells their names, and one puts the names together.

Pure.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainflow.checkpointing.boxes import whole
from trainflow.checkpointing.chunks import CHUNK_BYTES, name_of, split
from trainflow.checkpointing.manifest import Chunk, Shard, TensorEntry
from trainflow.checkpointing.snapshot import Snapshot, TensorRecord
from trainflow.epochs import Version
from trainflow.errors import CheckpointError

Json = Any

_USER_STATE = ("/registered/", "/extra_states/")


@dataclass(frozen=True, order=True)
class Share:
    """Every ``count``-th chunk, from number ``index`` on."""

    index: int
    count: int


@dataclass(frozen=True)
class ShareReport:
    """One place's share of a checkpoint is in the store.

    Attributes:
        version: of the state.
        share: which chunks.
        skeleton: of the state; the same from all.
        tensors: in the order of the skeleton's numbers; the same from all.
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
    number = 0
    for payload in snapshot.payloads:
        for part in split(payload):
            if number % share.count == share.index:
                yield number, part
            number += 1


def bytes_needed(tensors: Sequence[TensorRecord], share: Share) -> Iterator[tuple[int, int, int]]:
    """Yield what a place must have of a state for its share: tensor's index, first byte, last + 1.

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
    if any((r.tensors, r.skeleton) != (first.tensors, first.skeleton) for r in reports):
        raise CheckpointError(
            f"checkpoint of step {first.version.step}: got shares of different states, expected "
            "every rank to hold the same; look for registered state that differs by rank, or that "
            "only some ranks register"
        )
    for report in reports:
        _require_same_values(first, report)
    chunks: dict[int, Chunk] = {}
    for report in reports:
        chunks |= report.chunks
    number = 0
    entries: dict[str, TensorEntry] = {}
    for tensor in first.tensors:
        own: list[Chunk] = []
        missing = tensor.num_bytes
        while missing > 0 and number in chunks:
            own.append(chunks[number])
            missing -= chunks[number].num_bytes
            number += 1
        if missing:
            raise CheckpointError(
                f"checkpoint of step {first.version.step}: got no chunk {number}, expected all of "
                f"{tensor.path}"
            )
        shard = Shard(whole(tensor.shape), tuple(own))
        entries[tensor.path] = TensorEntry(tensor.dtype, tensor.shape, (shard,))
    return entries


def _require_same_values(first: ShareReport, other: ShareReport) -> None:
    """Require that a tensor of which both places have chunks is one tensor."""
    for path, digest in first.digests.items():
        if other.digests[path] != digest:
            raise CheckpointError(
                f"checkpoint of step {first.version.step}: {path}: got different values on two "
                "ranks, expected the same on every rank; reduce it with session.reduce before it "
                "is kept, or leave it out of session.register"
            )
