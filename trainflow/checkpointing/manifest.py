"""What a checkpoint is made of: a JSON document that names every tensor, its shards, their chunks.

docs/checkpoint_format.md describes it for readers in other languages. A manifest may come from
anywhere: nothing in it is believed before `parse_manifest` has checked it, and nothing in it is
ever run. The bytes themselves are checked when they are read, by the hash that names each chunk.

Pure.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from trainflow.checkpointing.boxes import Box, count_corners, is_partition
from trainflow.checkpointing.dtypes import ITEM_BYTES
from trainflow.checkpointing.json_document import (
    FlawError,
    Members,
    Node,
    load_json,
    require_bounded,
    tell,
)
from trainflow.checkpointing.skeleton import check_skeleton
from trainflow.errors import CheckpointError, CheckpointVersionError

FORMAT = "trainflow-checkpoint"
FORMAT_VERSION = 1
MAX_MANIFEST_BYTES = 256 * 1024 * 1024
MAX_DIMENSIONS = 64
MAX_TENSOR_BYTES = 2**50
MAX_CHUNK_BYTES = 2 * 1024 * 1024
MAX_CORNERS = 2**22  # of all shards of one tensor: a million shards, if two dimensions are cut
MAX_STEP = 10**12 - 1  # twelve digits
MAX_TIME_S = 253_402_300_799  # the last second of the year 9999, the last that a date can show

_CHUNK_ID = re.compile(r"[0-9a-f]{32}")
_ATTEMPT = re.compile(r"[0-9a-z][0-9a-z.-]{0,63}")

Json = Any


@dataclass(frozen=True)
class Chunk:
    """A run of bytes, named by the xxh3-128 of them in hex."""

    chunk_id: str
    num_bytes: int


@dataclass(frozen=True)
class Shard:
    """A part of a tensor; its elements in C order are its chunks' bytes, one after the other."""

    box: Box
    chunks: tuple[Chunk, ...]


@dataclass(frozen=True)
class TensorEntry:
    """A tensor as a whole, and the shards that make it up: each element is in exactly one."""

    dtype: str
    shape: tuple[int, ...]
    shards: tuple[Shard, ...]

    @property
    def item_bytes(self) -> int:
        """Bytes of one element."""
        return ITEM_BYTES[self.dtype]


@dataclass(frozen=True)
class Manifest:
    """One checkpoint.

    Attributes:
        job_id: of the run that wrote it.
        step: the last step that it holds.
        attempt: tells two writers of the same step apart.
        created_at_s: CLOCK_REALTIME.
        world_size: of the membership that wrote it; it may be restored at any other.
        fingerprint: of the settings that the state depends on.
        config: the job's settings, without the values of environment variables.
        skeleton: the state with a number in place of each tensor; see `state_tree`.
        tensors: by path, in the order of those numbers.
        anomalies: what the coordinator knew of losses and norms; None: nothing.
    """

    job_id: str
    step: int
    attempt: str
    created_at_s: float
    world_size: int
    fingerprint: str
    config: Json
    skeleton: Json
    tensors: Mapping[str, TensorEntry]
    anomalies: Json | None = None

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(prod(t.shape) * t.item_bytes for t in self.tensors.values())

    def chunks(self) -> dict[str, Chunk]:
        """Return every chunk that it names, once, by id."""
        return {
            chunk.chunk_id: chunk
            for tensor in self.tensors.values()
            for shard in tensor.shards
            for chunk in shard.chunks
        }


def encode_manifest(manifest: Manifest) -> bytes:
    """Write a manifest as JSON; the same manifest is the same bytes.

    Raises:
        CheckpointError: it is one that nobody could read again.
    """
    document = _document_of(manifest)
    try:
        _require_readable(document, manifest.tensors)  # first: how deep it is, is bounded there
        data = json.dumps(document, allow_nan=False, separators=(",", ":")).encode()
        require_bounded(data, MAX_MANIFEST_BYTES)
    except FlawError as flaw:
        raise CheckpointError(
            f"checkpoint of step {manifest.step}: {flaw.where}: got {flaw.got}, expected "
            f"{flaw.expected}: nobody could read it again; if that is from your state, look at "
            "what state_dict() of what you registered returns"
        ) from None
    return data


def _document_of(manifest: Manifest) -> dict[str, Json]:
    return {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "job_id": manifest.job_id,
        "step": manifest.step,
        "attempt": manifest.attempt,
        "created_at_s": manifest.created_at_s,
        "world_size": manifest.world_size,
        "fingerprint": manifest.fingerprint,
        "config": manifest.config,
        "skeleton": manifest.skeleton,
        "tensors": [
            {
                "path": path,
                "dtype": tensor.dtype,
                "shape": list(tensor.shape),
                "shards": [
                    {
                        "offset": shard.box.offset,
                        "shape": shard.box.shape,
                        "chunks": [[chunk.chunk_id, chunk.num_bytes] for chunk in shard.chunks],
                    }
                    for shard in tensor.shards
                ],
            }
            for path, tensor in manifest.tensors.items()
        ],
        **({} if manifest.anomalies is None else {"anomalies": manifest.anomalies}),
    }


def _require_readable(document: dict[str, Json], tensors: Mapping[str, TensorEntry]) -> None:
    """Require of what is to be written what a reader will, by the same code.

    But for the shards: they are cut and put together here, whatever the state is, and reading them
    is most of the time that a manifest takes.
    """
    members = Node("", document).mapping()
    for node in members["tensors"].items():
        entry = node.mapping()
        entry["path"].text()
        _parse_dtype_and_shape(entry)
    _parse_members(members, tensors)


def parse_manifest(data: bytes, source: str) -> Manifest:
    """Read and check a manifest. Takes time and memory in proportion to the bounds above.

    Args:
        data: the document.
        source: where it is from, for the error.

    Raises:
        CheckpointVersionError: it is of a version that isn't known here.
        CheckpointError: it is no manifest, or contradicts itself: sizes that don't add up, shards
            that overlap or leave gaps, names that aren't chunk ids.
    """
    try:
        members = Node("", load_json(data, MAX_MANIFEST_BYTES)).mapping()
        members["format"].equal(FORMAT)
        _require_version(members["version"].integer(), source)
        return _parse_members(members, _parse_tensors(members["tensors"]))
    except FlawError as flaw:
        raise CheckpointError(
            f"manifest {source}: {flaw.where}: got {flaw.got}, expected {flaw.expected}; the file "
            "is damaged or forged: use an earlier checkpoint"
        ) from None


def _require_version(version: int, source: str) -> None:
    if version != FORMAT_VERSION:
        raise CheckpointVersionError(
            f"manifest {source}: got version {version} of the format, expected {FORMAT_VERSION}: "
            "another release of TrainFlow has written this checkpoint, and it stays as it is; use "
            "that release, or another folder"
        )


def _parse_members(members: Members, tensors: Mapping[str, TensorEntry]) -> Manifest:
    """Return the manifest of a document whose tensors are known already."""
    members["config"].mapping()
    members["skeleton"].mapping()["dict"].items()  # who uses a state looks its parts up by name
    manifest = Manifest(
        job_id=members["job_id"].text(),
        step=members["step"].integer(MAX_STEP),
        attempt=members["attempt"].matching(_ATTEMPT),
        created_at_s=members["created_at_s"].number(MAX_TIME_S),
        world_size=members["world_size"].integer(),
        fingerprint=members["fingerprint"].text(),
        config=members["config"].value,
        skeleton=members["skeleton"].value,
        tensors=tensors,
        anomalies=members["anomalies"].value if "anomalies" in members else None,
    )
    check_skeleton(manifest.skeleton, len(manifest.tensors))
    return manifest


def _parse_tensors(node: Node) -> dict[str, TensorEntry]:
    tensors: dict[str, TensorEntry] = {}
    sizes: dict[str, int] = {}
    for each in node.items():
        entry = each.mapping()
        path = entry["path"].text()
        if path in tensors:
            raise FlawError(each.where, f"{tell(path)} twice", "each tensor once")
        tensors[path] = _parse_tensor(entry)
        for chunk in (chunk for shard in tensors[path].shards for chunk in shard.chunks):
            if sizes.setdefault(chunk.chunk_id, chunk.num_bytes) != chunk.num_bytes:
                raise FlawError(each.where, f"two sizes of chunk {chunk.chunk_id}", "one")
    return tensors


def _parse_tensor(entry: Members) -> TensorEntry:
    dtype, shape = _parse_dtype_and_shape(entry)
    shards = tuple(_parse_shard(node, shape, ITEM_BYTES[dtype]) for node in entry["shards"].items())
    _require_partition([shard.box for shard in shards], shape, entry["shards"].where)
    return TensorEntry(dtype, shape, shards)


def _parse_dtype_and_shape(entry: Members) -> tuple[str, tuple[int, ...]]:
    dtype = entry["dtype"].among(list(ITEM_BYTES))
    shape = _parse_index(entry["shape"])
    # Sides of length 0 don't make the others harmless: somebody may still want to make room.
    num_bytes = prod(max(1, side) for side in shape) * ITEM_BYTES[dtype]
    if num_bytes > MAX_TENSOR_BYTES:
        raise FlawError(entry["shape"].where, tell(shape), f"at most {MAX_TENSOR_BYTES} bytes")
    return dtype, shape


def _require_partition(boxes: list[Box], shape: tuple[int, ...], where: str) -> None:
    covered, expected = sum(box.num_elements for box in boxes), prod(shape)
    if covered != expected:
        raise FlawError(where, f"{covered} elements", f"{expected}, each in one shard")
    if (num_corners := count_corners(boxes, shape)) > MAX_CORNERS:
        raise FlawError(where, f"{num_corners} corners of shards", f"at most {MAX_CORNERS}")
    if not is_partition(boxes, shape):
        raise FlawError(where, "shards that do", "shards that don't overlap, and leave no gap")


def _parse_index(node: Node, num_dimensions: int | None = None) -> tuple[int, ...]:
    nodes = node.items()
    if num_dimensions is not None and len(nodes) != num_dimensions:
        raise node.flaw(f"{num_dimensions} numbers")
    if len(nodes) > MAX_DIMENSIONS:
        raise node.flaw(f"at most {MAX_DIMENSIONS} dimensions")
    return tuple(node.integer() for node in nodes)


def _parse_shard(node: Node, tensor_shape: tuple[int, ...], item_bytes: int) -> Shard:
    entry = node.mapping()
    box = Box(
        _parse_index(entry["offset"], len(tensor_shape)),
        _parse_index(entry["shape"], len(tensor_shape)),
    )
    if any(o + n > size for o, n, size in zip(box.offset, box.shape, tensor_shape, strict=True)):
        raise FlawError(node.where, tell(box), f"a part of a tensor of shape {tell(tensor_shape)}")
    chunks = tuple(_parse_chunk(each) for each in entry["chunks"].items())
    found, expected = sum(c.num_bytes for c in chunks), box.num_elements * item_bytes
    if found != expected:
        raise FlawError(entry["chunks"].where, f"{found} bytes", f"{expected}")
    if any(c.num_bytes != chunks[0].num_bytes for c in chunks[:-1]) or (
        chunks and chunks[-1].num_bytes > chunks[0].num_bytes
    ):
        raise FlawError(entry["chunks"].where, "others", "chunks of one size, and a smaller last")
    return Shard(box, chunks)


def _parse_chunk(node: Node) -> Chunk:
    parts = node.items()
    if len(parts) != 2:  # noqa: PLR2004  a pair
        raise FlawError(node.where, f"{len(parts)} values", "a chunk id and a number of bytes")
    num_bytes = parts[1].integer(MAX_CHUNK_BYTES)
    if num_bytes == 0:
        raise FlawError(parts[1].where, "0", "at least 1 byte")
    return Chunk(parts[0].matching(_CHUNK_ID), num_bytes)
