"""Files in the safetensors format, written tensor by tensor: no more than a few are in memory.

The format: the length of the header (8 bytes, little-endian), the header as JSON, padded with
spaces to a multiple of 8, and then all tensors one after the other, larger types first, so that
each lies aligned. See https://github.com/huggingface/safetensors.

Process: driver.  Blocks: on the local file system.
"""

import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

from trainflow.checkpointing.dtypes import ITEM_BYTES
from trainflow.errors import CheckpointError

_NAMES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
    "uint16": "U16",
    "uint32": "U32",
    "uint64": "U64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float16": "F16",
    "bfloat16": "BF16",
    "float32": "F32",
    "float64": "F64",
    "complex64": "C64",
}
_BATCH_BYTES = 64 * 1024 * 1024
_METADATA = {"format": "pt", "written_by": "trainflow"}
_OWN_START = json.dumps({"__metadata__": _METADATA}, separators=(",", ":"))[:-1].encode()


@dataclass(frozen=True)
class TensorSpec:
    """A tensor that is to be written."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Its size."""
        return prod(self.shape) * ITEM_BYTES[self.dtype]


ReadTensors = Callable[[Sequence[TensorSpec]], Sequence[memoryview]]
"""Returns the bytes of some tensors, in their order."""


def write_safetensors(
    folder: Path,
    stem: str,
    tensors: Sequence[TensorSpec],
    read: ReadTensors,
    *,
    max_file_bytes: int,
) -> list[str]:
    """Write tensors to ``STEM.safetensors``, or to several files and an index of them.

    Args:
        folder: an empty one.
        stem: what the files' names begin with.
        tensors: all of them.
        read: gives their bytes.
        max_file_bytes: of the tensors in one file; a larger tensor has one to itself.

    Returns:
        The names of the files.

    Raises:
        CheckpointError: the format has no such type.
        OSError: no room.
    """
    for tensor in tensors:
        if tensor.dtype not in _NAMES:
            raise CheckpointError(
                f"{tensor.name}: got type {tensor.dtype}, expected one that safetensors has "
                f"({', '.join(_NAMES)}); export to dcp instead"
            )
    groups = _deal(tensors, max_file_bytes)
    if len(groups) == 1:
        name = f"{stem}.safetensors"
        _write_file(folder / name, groups[0], read)
        return [name]
    names = [f"{stem}-{k:05d}-of-{len(groups):05d}.safetensors" for k in range(1, len(groups) + 1)]
    for name, group in zip(names, groups, strict=True):
        _write_file(folder / name, group, read)
    places = {t.name: name for name, group in zip(names, groups, strict=True) for t in group}
    total = sum(tensor.num_bytes for tensor in tensors)
    index = f"{stem}.safetensors.index.json"
    document = {"metadata": {"total_size": total}, "weight_map": places}
    (folder / index).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return [*names, index]


def is_own_file(path: Path) -> bool:
    """Tell whether `write_safetensors` has written a file, by how its header begins."""
    with path.open("rb") as file:
        return file.read(8 + len(_OWN_START))[8:] == _OWN_START


def read_plain_file(path: Path) -> Mapping[str, tuple[TensorSpec, memoryview]]:
    """Read a small file that `safetensors` itself has just written here."""
    data = memoryview(path.read_bytes())
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(bytes(data[8 : 8 + length]))
    header.pop("__metadata__", None)
    types = {short: name for name, short in _NAMES.items()}
    return {
        name: (
            TensorSpec(name, types[entry["dtype"]], tuple(entry["shape"])),
            data[8 + length :][slice(*entry["data_offsets"])],
        )
        for name, entry in header.items()
    }


def _deal(tensors: Sequence[TensorSpec], max_file_bytes: int) -> list[list[TensorSpec]]:
    """Split tensors, in their order, into groups that fit into one file each."""
    groups: list[list[TensorSpec]] = [[]]
    room = max_file_bytes
    for tensor in tensors:
        if groups[-1] and tensor.num_bytes > room:
            groups.append([])
            room = max_file_bytes
        groups[-1].append(tensor)
        room -= tensor.num_bytes
    return groups


def _write_file(path: Path, tensors: Sequence[TensorSpec], read: ReadTensors) -> None:
    ordered = sorted(tensors, key=lambda t: (-ITEM_BYTES[t.dtype], t.name))
    with path.open("wb") as file:
        file.write(_header_of(ordered))
        for batch in _batches(ordered):
            for data in read(batch):
                file.write(data)


def _header_of(tensors: Sequence[TensorSpec]) -> bytes:
    header: dict[str, object] = {"__metadata__": _METADATA}
    start = 0
    for tensor in tensors:
        stop = start + tensor.num_bytes
        header[tensor.name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": tensor.shape,
            "data_offsets": [start, stop],
        }
        start = stop
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def _batches(tensors: Sequence[TensorSpec]) -> Iterator[list[TensorSpec]]:
    """Yield tensors in groups of some size, or one by one where they are large."""
    yield from (group for group in _deal(tensors, _BATCH_BYTES) if group)
