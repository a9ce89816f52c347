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
from typing import Any, cast

from trainflow.checkpointing.boxes import Box, overlap
from trainflow.checkpointing.dtypes import ITEM_BYTES
from trainflow.errors import CheckpointError

FORMAT = "trainflow-checkpoint"
FORMAT_VERSION = 1
MAX_MANIFEST_BYTES = 256 * 1024 * 1024
MAX_DIMENSIONS = 64
MAX_TENSOR_BYTES = 2**50

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
        config: the job's settings.
        skeleton: the state with a number in place of each tensor; see `state_tree`.
        tensors: by path, in the order of those numbers.
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
    """Write a manifest as JSON; the same manifest is the same bytes."""
    document = {
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
                "shape": tensor.shape,
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
    }
    return json.dumps(document, allow_nan=False, separators=(",", ":")).encode()


def parse_manifest(data: bytes, source: str) -> Manifest:
    """Read and check a manifest.

    Args:
        data: the document.
        source: where it is from, for the error.

    Raises:
        CheckpointError: it is no manifest, of a version that isn't known here, or contradicts
            itself: sizes that don't add up, shards that overlap or leave gaps, names that aren't
            chunk ids.
    """
    try:
        return _parse_document(data)
    except _FlawError as flaw:
        raise CheckpointError(
            f"manifest {source}: {flaw.where}: got {flaw.got}, expected {flaw.expected}; the file "
            "is damaged or forged: use an earlier checkpoint"
        ) from None


class _FlawError(Exception):
    """Something in a manifest is wrong."""

    def __init__(self, where: str, got: str, expected: str):
        super().__init__(where)
        self.where, self.got, self.expected = where or "document", got, expected


@dataclass(frozen=True)
class _Node:
    """A value somewhere in the document, which knows where."""

    where: str
    value: Any

    def mapping(self) -> "dict[str, _Node]":
        value: object = self.value
        if not isinstance(value, dict):
            raise self._flaw("an object")
        items = cast("dict[str, Json]", value).items()
        return _Keyed(self.where, {key: _Node(f"{self.where}/{key}", v) for key, v in items})

    def items(self) -> "list[_Node]":
        value: object = self.value
        if not isinstance(value, list):
            raise self._flaw("a list")
        values = cast("list[Json]", value)
        return [_Node(f"{self.where}/{i}", value) for i, value in enumerate(values)]

    def text(self) -> str:
        if not isinstance(self.value, str):
            raise self._flaw("a string")
        return self.value

    def matching(self, pattern: re.Pattern[str]) -> str:
        text = self.text()
        if not pattern.fullmatch(text):
            raise self._flaw(f"text of the form {pattern.pattern}")
        return text

    def integer(self, most: int = 2**62) -> int:
        value = self.value
        if type(value) is not int or not 0 <= value <= most:
            raise self._flaw(f"an integer from 0 to {most}")
        return value

    def number(self) -> float:
        if not isinstance(self.value, int | float) or isinstance(self.value, bool):
            raise self._flaw("a number")
        return float(self.value)

    def equal(self, expected: Json) -> None:
        if self.value != expected or type(self.value) is not type(expected):
            raise self._flaw(repr(expected))

    def index(self, num_dimensions: int | None = None) -> tuple[int, ...]:
        nodes = self.items()
        if num_dimensions is not None and len(nodes) != num_dimensions:
            raise self._flaw(f"{num_dimensions} numbers")
        if len(nodes) > MAX_DIMENSIONS:
            raise self._flaw(f"at most {MAX_DIMENSIONS} dimensions")
        return tuple(node.integer() for node in nodes)

    def _flaw(self, expected: str) -> _FlawError:
        return _FlawError(self.where, repr(self.value)[:80], expected)


class _Keyed(dict[str, _Node]):
    """An object's members; a missing one is a flaw."""

    def __init__(self, where: str, members: dict[str, _Node]):
        super().__init__(members)
        self._where = where

    def __missing__(self, key: str) -> _Node:
        raise _FlawError(f"{self._where}/{key}", "nothing", "a value")


def _load_json(data: bytes) -> Json:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _FlawError("", f"no JSON ({error})", "a JSON document") from None


def _parse_document(data: bytes) -> Manifest:
    if len(data) > MAX_MANIFEST_BYTES:
        raise _FlawError("", f"{len(data)} bytes", f"at most {MAX_MANIFEST_BYTES}")
    document = _Node("", _load_json(data)).mapping()
    document["format"].equal(FORMAT)
    document["version"].equal(FORMAT_VERSION)
    manifest = Manifest(
        job_id=document["job_id"].text(),
        step=document["step"].integer(),
        attempt=document["attempt"].matching(_ATTEMPT),
        created_at_s=document["created_at_s"].number(),
        world_size=document["world_size"].integer(),
        fingerprint=document["fingerprint"].text(),
        config=document["config"].value,
        skeleton=document["skeleton"].value,
        tensors=_parse_tensors(document["tensors"]),
    )
    _check_skeleton(manifest)
    return manifest


def _parse_tensors(node: _Node) -> dict[str, TensorEntry]:
    tensors: dict[str, TensorEntry] = {}
    for each in node.items():
        entry = each.mapping()
        path = entry["path"].text()
        if path in tensors:
            raise _FlawError(each.where, f"{path!r} twice", "each tensor once")
        tensors[path] = _parse_tensor(entry)
    return tensors


def _parse_tensor(entry: dict[str, _Node]) -> TensorEntry:
    dtype = entry["dtype"].text()
    if dtype not in ITEM_BYTES:
        raise _FlawError(entry["dtype"].where, repr(dtype), f"one of {', '.join(ITEM_BYTES)}")
    shape = entry["shape"].index()
    num_bytes = prod(shape) * ITEM_BYTES[dtype]
    if num_bytes > MAX_TENSOR_BYTES:
        raise _FlawError(entry["shape"].where, f"{num_bytes} bytes", f"at most {MAX_TENSOR_BYTES}")
    shards = tuple(_parse_shard(node, shape, ITEM_BYTES[dtype]) for node in entry["shards"].items())
    where = entry["shards"].where
    if pair := overlap(shard.box for shard in shards):
        raise _FlawError(where, f"{pair[0]} and {pair[1]}", "shards that don't overlap")
    covered = sum(shard.box.num_elements for shard in shards)
    if covered != prod(shape):
        raise _FlawError(where, f"{covered} elements", f"{prod(shape)}, each in one shard")
    return TensorEntry(dtype, shape, shards)


def _parse_shard(node: _Node, tensor_shape: tuple[int, ...], item_bytes: int) -> Shard:
    entry = node.mapping()
    box = Box(
        entry["offset"].index(len(tensor_shape)),
        entry["shape"].index(len(tensor_shape)),
    )
    if any(o + n > size for o, n, size in zip(box.offset, box.shape, tensor_shape, strict=True)):
        raise _FlawError(node.where, str(box), f"a part of a tensor of shape {tensor_shape}")
    chunks = tuple(_parse_chunk(each) for each in entry["chunks"].items())
    found, expected = sum(c.num_bytes for c in chunks), box.num_elements * item_bytes
    if found != expected:
        raise _FlawError(entry["chunks"].where, f"{found} bytes", f"{expected}")
    return Shard(box, chunks)


def _parse_chunk(node: _Node) -> Chunk:
    parts = node.items()
    if len(parts) != 2:  # noqa: PLR2004  a pair
        raise _FlawError(node.where, f"{len(parts)} values", "a chunk id and a number of bytes")
    num_bytes = parts[1].integer()
    if num_bytes == 0:
        raise _FlawError(parts[1].where, "0", "at least 1 byte")
    return Chunk(parts[0].matching(_CHUNK_ID), num_bytes)


def _check_skeleton(manifest: Manifest) -> None:
    """Require that the state names each tensor once, in order."""
    numbers = _tensor_numbers(manifest.skeleton)
    if numbers != list(range(len(manifest.tensors))):
        raise _FlawError(
            "/skeleton", f"tensors {numbers[:8]}...", f"0 to {len(manifest.tensors) - 1}"
        )


def _tensor_numbers(root: Json) -> list[Json]:
    """Return the numbers that stand for tensors, in order; without recursion: it may be forged."""
    found: list[Json] = []
    stack: list[Json] = [root]
    while stack:
        node = stack.pop()
        if isinstance(node, dict):
            members = cast("dict[str, Json]", node)
            if members.keys() == {"tensor"}:
                found.append(members["tensor"])
            else:
                stack.extend(reversed(members.values()))
        elif isinstance(node, list):
            stack.extend(reversed(cast("list[Json]", node)))
    return found
