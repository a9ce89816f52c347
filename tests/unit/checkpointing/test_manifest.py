import json
import math
from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.checkpointing.layouts import (
    layouts,
    make_manifest,
    make_tensor,
    shapes,
    write_shards,
)
from trainflow.checkpointing.boxes import whole
from trainflow.checkpointing.manifest import (
    Manifest,
    TensorEntry,
    encode_manifest,
    parse_manifest,
)
from trainflow.errors import CheckpointError


@given(st.data(), shapes)
def test_a_manifest_comes_back_as_it_was(data, shape):
    shards = write_shards(make_tensor(shape), data.draw(layouts(shape)), {})
    entry = TensorEntry("int32", shape, shards)
    manifest = make_manifest(a=entry, b=TensorEntry("bfloat16", (0, 3), ()))
    again = parse_manifest(encode_manifest(manifest), "here")
    assert again == manifest
    assert again.num_bytes == 4 * math.prod(shape)
    assert again.chunks() == {c.chunk_id: c for shard in shards for c in shard.chunks}


@pytest.fixture
def good() -> Manifest:
    shards = write_shards(make_tensor((4, 3)), [whole((4, 3))], {})
    return make_manifest(w=TensorEntry("int32", (4, 3), shards))


def put(document: dict[str, Any], value: Any, *path: str | int) -> None:
    *parents, last = path
    node: Any = document
    for key in parents:
        node = node[key]
    node[last] = value


SHARD = ("tensors", 0, "shards", 0)
FORGERIES = {
    "another format": ("zip", "format"),
    "a later version": (2, "version"),
    "a version that only compares equal": (True, "version"),
    "a negative step": (-1, "step"),
    "a step that is no integer": (40.0, "step"),
    "an attempt that leaves its folder": ("../../etc", "attempt"),
    "an unknown type of element": ("object", "tensors", 0, "dtype"),
    "a tensor of absurd size": ([2**40, 2**40], "tensors", 0, "shape"),
    "another number of elements": ([4, 4], "tensors", 0, "shape"),
    "too many dimensions": ([1] * 65, "tensors", 0, "shape"),
    "no shards": ([], "tensors", 0, "shards"),
    "a shard outside of its tensor": ([1, 0], *SHARD, "offset"),
    "a shard of other dimensions": ([0], *SHARD, "offset"),
    "a chunk that leaves its folder": ("../../../etc/passwd", *SHARD, "chunks", 0, 0),
    "a chunk in capitals": ("A" * 32, *SHARD, "chunks", 0, 0),
    "a chunk of another size": (47, *SHARD, "chunks", 0, 1),
    "an empty chunk": ([["0" * 32, 0], ["0" * 32, 48]], *SHARD, "chunks"),
    "a triple for a chunk": (["0" * 32, 48, 1], *SHARD, "chunks", 0),
    "a tensor that isn't named": ({"dict": []}, "skeleton"),
    "a tensor that isn't there": ({"tensor": 7}, "skeleton"),
    "a list for an object": ([], "tensors", 0),
    "text for a list": ("abc", "tensors"),
}


@pytest.mark.parametrize("forgery", FORGERIES)
def test_a_forged_manifest_is_refused(good: Manifest, forgery):
    value, *path = FORGERIES[forgery]
    document = json.loads(encode_manifest(good))
    put(document, value, *path)
    with pytest.raises(CheckpointError, match=r"manifest here: .*expected.*use an earlier"):
        parse_manifest(json.dumps(document).encode(), "here")


def test_overlapping_shards_are_refused(good: Manifest):
    document = json.loads(encode_manifest(good))
    half = {"offset": [0, 0], "shape": [2, 3], "chunks": [["0" * 32, 24]]}
    document["tensors"][0]["shards"] = [half, deepcopy(half)]
    with pytest.raises(CheckpointError, match="shards that don't overlap"):
        parse_manifest(json.dumps(document).encode(), "here")


def test_a_tensor_named_twice_is_refused(good: Manifest):
    document = json.loads(encode_manifest(good))
    document["tensors"] *= 2
    with pytest.raises(CheckpointError, match="'w' twice"):
        parse_manifest(json.dumps(document).encode(), "here")


@pytest.mark.parametrize("key", ["format", "tensors", "skeleton", "config", "attempt"])
def test_what_is_missing_is_named(good: Manifest, key):
    document = json.loads(encode_manifest(good))
    del document[key]
    with pytest.raises(CheckpointError, match=f"/{key}: got nothing"):
        parse_manifest(json.dumps(document).encode(), "here")


@given(st.binary(max_size=200))
def test_noise_is_refused(data):
    with pytest.raises(CheckpointError):
        parse_manifest(data, "here")


@given(st.integers(0, 10_000))
def test_a_cut_manifest_is_refused(length):
    entry = TensorEntry("int32", (1,), write_shards(make_tensor((1,)), [whole((1,))], {}))
    data = encode_manifest(make_manifest(w=entry))
    with pytest.raises(CheckpointError):
        parse_manifest(data[: length % len(data)], "here")


def test_nesting_without_end_is_refused():
    with pytest.raises(CheckpointError, match="no JSON"):
        parse_manifest(b'{"a":' + b"[" * 200_000, "here")


def test_a_number_that_json_does_not_know_is_not_written(good: Manifest):
    with pytest.raises(ValueError, match="JSON"):
        encode_manifest(replace(good, config={"lr": math.nan}))
