"""A reader that knows nothing but docs/checkpoint_format.md reads what TrainFlow writes."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from numpy.typing import NDArray

from tests.unit.checkpointing.layouts import make_manifest, make_tensor, write_shards
from trainflow.checkpointing import chunks as chunking
from trainflow.checkpointing.boxes import Box
from trainflow.checkpointing.manifest import TensorEntry
from trainflow.checkpointing.store import CheckpointStore

NUMPY_TYPES = {"int32": "<i4"}


def read_tensors(folder: Path, step: int) -> dict[str, NDArray[Any]]:
    """Read a checkpoint as the page says, with no code of TrainFlow's."""
    marker = json.loads((folder / "committed" / f"{step:012d}.json").read_bytes())
    data = (folder / "manifests" / marker["manifest"]).read_bytes()
    assert xxhash.xxh3_128_hexdigest(data) == marker["digest"]
    manifest = json.loads(data)
    assert (manifest["format"], manifest["version"]) == ("trainflow-checkpoint", 1)
    assert manifest["step"] == marker["step"] == step
    return {each["path"]: read_tensor(folder, each) for each in manifest["tensors"]}


def read_tensor(folder: Path, entry: dict[str, Any]) -> NDArray[Any]:
    tensor = np.zeros(entry["shape"], NUMPY_TYPES[entry["dtype"]])
    for shard in entry["shards"]:
        payload = b""
        for name, num_bytes in shard["chunks"]:
            part = (folder / "chunks" / name[:2] / name).read_bytes()
            assert (xxhash.xxh3_128_hexdigest(part), len(part)) == (name, num_bytes)
            payload += part
        box = tuple(slice(o, o + n) for o, n in zip(shard["offset"], shard["shape"], strict=True))
        tensor[box] = np.frombuffer(payload, tensor.dtype).reshape(shard["shape"])
    return tensor


def test_it_is_read_by_who_has_only_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(chunking, "CHUNK_BYTES", 40)
    matrix, scalar = make_tensor((7, 5)), make_tensor(())
    quarters = [
        Box((row, column), (height, width))
        for (row, height), (column, width) in product([(0, 3), (3, 4)], [(0, 2), (2, 3)])
    ]
    payloads: dict[str, bytes] = {}
    manifest = make_manifest(
        matrix=TensorEntry("int32", (7, 5), write_shards(matrix, quarters, payloads)),
        scalar=TensorEntry("int32", (), write_shards(scalar, [Box((), ())], payloads)),
    )
    store = CheckpointStore(str(tmp_path))
    for chunk in manifest.chunks().values():
        store.write_chunk(chunk, payloads[chunk.chunk_id])
    store.commit(manifest)
    read = read_tensors(tmp_path, manifest.step)
    assert np.array_equal(read["matrix"], matrix)
    assert np.array_equal(read["scalar"], scalar)
