import json
import math
import tracemalloc
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
from trainflow.checkpointing.boxes import Box, whole
from trainflow.checkpointing.chunks import CHUNK_BYTES
from trainflow.checkpointing.manifest import (
    MAX_CHUNK_BYTES,
    Chunk,
    Manifest,
    Shard,
    TensorEntry,
    encode_manifest,
    parse_manifest,
)
from trainflow.checkpointing.skeleton import MAX_DEPTH
from trainflow.errors import CheckpointError, CheckpointVersionError


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
    "a version that is no number": ("2", "version"),
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
    "a tensor that isn't there": ({"dict": [["w", {"tensor": 7}]]}, "skeleton"),
    "a list of all": ({"list": [{"tensor": 0}]}, "skeleton"),
    "a tensor that is all": ({"tensor": 0}, "skeleton"),
    "nothing at all": (None, "skeleton"),
    "a negative offset": ([-1, 0], *SHARD, "offset"),
    "a side that is no integer": ([4.0, 3], "tensors", 0, "shape"),
    "a truth value for a side": ([True, 12], "tensors", 0, "shape"),
    "an empty tensor with absurd sides": ([0, 2**60], "tensors", 0, "shape"),
    "a chunk larger than chunks are": ([["0" * 32, MAX_CHUNK_BYTES + 1]], *SHARD, "chunks"),
    "chunks of odd sizes": ([["0" * 32, 8], ["1" * 32, 40]], *SHARD, "chunks"),
    "chunks that grow": ([["0" * 32, 8], ["1" * 32, 8], ["2" * 32, 32]], *SHARD, "chunks"),
    "one chunk of two sizes": ([["0" * 32, 40], ["0" * 32, 8]], *SHARD, "chunks"),
    "chunks that don't add up": ([["0" * 32, 24], ["1" * 32, 23]], *SHARD, "chunks"),
    "a step of thirteen digits": (10**12, "step"),
    "a time that no float holds": (10**400, "created_at_s"),
    "a time that isn't finite": (math.inf, "created_at_s"),
    "a time that is no number": (math.nan, "created_at_s"),
    "a time that no date can show": (4e18, "created_at_s"),
    "a time before all computers": (-4e18, "created_at_s"),
    "settings that are none": ("{}", "config"),
    "half a character": ("\ud800", "tensors", 0, "path"),
    "a list that isn't named one": ([{"tensor": 0}], "skeleton"),
    "a tensor's number that only compares equal": (
        {"dict": [["w", {"tensor": False}]]},
        "skeleton",
    ),
    "a tensor named twice": ({"dict": [["w", {"tensor": 0}], ["v", {"tensor": 0}]]}, "skeleton"),
    "a key twice": ({"dict": [["w", {"tensor": 0}], ["w", 1]]}, "skeleton"),
    "a key that is a list": ({"dict": [[["w"], {"tensor": 0}]]}, "skeleton"),
    "a key without a value": ({"dict": [["w"]]}, "skeleton"),
    "an unknown kind of value": (
        {"dict": [["w", {"tensor": 0}], ["v", {"pickle": "gASV"}]]},
        "skeleton",
    ),
    "two kinds at once": ({"dict": [["w", {"tensor": 0}]], "tuple": []}, "skeleton"),
    "a float that is one": ({"dict": [["w", {"tensor": 0}], ["v", {"float": "1.5"}]]}, "skeleton"),
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


def forge(good: Manifest, old: str, new: str) -> bytes:
    text = encode_manifest(good).decode()
    assert old in text
    return text.replace(old, new, 1).encode()


def test_a_member_twice_is_refused(good: Manifest):
    with pytest.raises(CheckpointError, match="an object with 'step' twice"):
        parse_manifest(forge(good, '"step":40', '"step":40,"step":41'), "here")


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999"])
def test_a_number_that_json_does_not_know_is_refused(good: Manifest, number: str):
    with pytest.raises(CheckpointError, match="expected a finite number"):
        parse_manifest(forge(good, '"name":"job"', f'"lr":{number}'), "here")


def test_another_encoding_is_refused(good: Manifest):
    with pytest.raises(CheckpointError, match="no JSON"):
        parse_manifest(encode_manifest(good).decode().encode("utf-16"), "here")


def test_a_shard_twice_in_place_of_another_is_refused(good: Manifest):
    """As many elements as there should be, some of them twice."""
    document = json.loads(encode_manifest(good))
    row = {"offset": [0, 0], "shape": [1, 3], "chunks": [["0" * 32, 12]]}
    rows = [{**row, "offset": [i, 0]} for i in (0, 1, 1, 3)]
    document["tensors"][0]["shards"] = rows
    with pytest.raises(CheckpointError, match="don't overlap, and leave no gap"):
        parse_manifest(json.dumps(document).encode(), "here")


@pytest.mark.parametrize("absurd", ["x" * 10**6, list(range(10**5)), 10**4000])
@pytest.mark.parametrize(
    "path",
    [("step",), ("tensors", 0, "dtype"), ("tensors", 0, "shape"), ("skeleton", "dict")],
)
def test_what_is_told_of_something_huge_is_short(good: Manifest, absurd, path):
    document = json.loads(encode_manifest(good))
    put(document, absurd, *path)
    with pytest.raises(CheckpointError) as caught:
        parse_manifest(json.dumps(document).encode(), "here")
    assert len(str(caught.value)) < 600


def test_more_values_than_fit_in_memory_are_refused_before_they_are_read(good: Manifest):
    data = forge(good, '"name":"job"', f'"a":[{"[]," * 12_000_000}0]')
    tracemalloc.start()
    try:
        with pytest.raises(CheckpointError, match="values, expected at most"):
            parse_manifest(data, "here")
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < 1_000_000


@pytest.mark.slow
@pytest.mark.timeout(60)
@pytest.mark.parametrize("cut", [0, 1, 2], ids=["rows", "columns", "both"])
def test_many_shards_take_no_time_beyond_their_number(cut: int):
    side = 150
    height, width = ((side**2, 1), (1, side**2), (side, side))[cut]
    chunk = (Chunk("0" * 32, 1),)
    boxes = [Box((i // width, i % width), (1, 1)) for i in range(height * width)]
    entry = TensorEntry("uint8", (height, width), tuple(Shard(box, chunk) for box in boxes))
    manifest = make_manifest(w=entry)
    assert parse_manifest(encode_manifest(manifest), "here") == manifest


@pytest.mark.timeout(60)
def test_shards_cut_along_very_many_dimensions_are_refused():
    """A partition indeed, of which each shard has 2**30 corners."""
    dims = 30
    boxes = [
        Box((1,) * d + (0,) * (dims - d), (1,) * (d + 1) + (2,) * (dims - d - 1))
        for d in range(dims)
    ]
    boxes.append(Box((1,) * dims, (1,) * dims))
    shards: list[Shard] = []
    for box in boxes:
        num_chunks = -(-box.num_elements // MAX_CHUNK_BYTES)
        size = box.num_elements // num_chunks
        shards.append(Shard(box, (Chunk(f"{size:032x}", size),) * num_chunks))
    entry = TensorEntry("uint8", (2,) * dims, tuple(shards))
    data = encode_manifest(make_manifest(w=entry))
    with pytest.raises(CheckpointError, match="corners of shards, expected at most"):
        parse_manifest(data, "here")


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


def nested(depth: int) -> Any:
    node: Any = {"tensor": 0}
    for _ in range(depth - 1):
        node = {"list": [node]}
    return {"dict": [["w", node]]}


def test_nesting_is_bounded_for_whoever_reads_it_by_recursion(good: Manifest):
    deepest = replace(good, skeleton=nested(MAX_DEPTH))
    assert parse_manifest(encode_manifest(deepest), "here") == deepest
    document = json.loads(encode_manifest(good)) | {"skeleton": nested(MAX_DEPTH + 1)}
    with pytest.raises(CheckpointError, match="deeper nesting"):
        parse_manifest(json.dumps(document).encode(), "here")


@pytest.mark.parametrize("depth", [MAX_DEPTH + 1, 100_000])
def test_a_state_that_nobody_could_read_again_is_not_written(good: Manifest, depth: int):
    with pytest.raises(CheckpointError, match=r"deeper nesting.*look at what state_dict"):
        encode_manifest(replace(good, skeleton=nested(depth)))


UNREADABLE = {
    "half a character in a path": (
        {"tensors": {"/registered/\udcff.bin": TensorEntry("int32", (0,), ())}},
        r"/tensors/0/path: got '/registered/\\udcff.bin', expected a string of whole characters",
    ),
    "half a character in the job's name": (
        {"job_id": "\udcff"},
        "/job_id: got .*expected a string",
    ),
    "too many dimensions": (
        {"tensors": {"w": TensorEntry("int32", (0,) * 65, ())}},
        "/tensors/0/shape: got .*expected at most 64 dimensions",
    ),
    "an unknown type of element": (
        {"tensors": {"w": TensorEntry("quint8", (0,), ())}},
        "/tensors/0/dtype: got 'quint8', expected one of",
    ),
    "a step of thirteen digits": (
        {"step": 10**12},
        r"/step: got 1000000000000, expected an integer from 0 to 999999999999",
    ),
    "a clock that is far off": ({"created_at_s": 1e12}, "/created_at_s: got .*expected a number"),
    "an attempt that is no name": ({"attempt": "A/B"}, "/attempt: got 'A/B', expected text"),
}


@pytest.mark.parametrize("what", UNREADABLE)
def test_what_would_be_refused_when_it_is_read_is_not_written(good: Manifest, what: str):
    members, said = UNREADABLE[what]
    with pytest.raises(CheckpointError, match=f"{said}.*nobody could read it again"):
        encode_manifest(replace(good, **members))


@pytest.mark.parametrize(
    ("limit", "said"),
    [
        ("MAX_MANIFEST_BYTES", r"document: got \d+ bytes, expected at most 300"),
        ("json_document.MAX_VALUES", "document: got about 3[0-9]+ values, expected at most 300"),
    ],
)
def test_what_is_too_large_to_be_read_is_not_written(
    good: Manifest, monkeypatch: pytest.MonkeyPatch, limit: str, said: str
):
    """Marks inside of strings count too: a reader counts before it parses."""
    large = replace(good, config={"note": "," * 300})
    parse_manifest(encode_manifest(large), "here")
    module = "trainflow.checkpointing." + ("" if "." in limit else "manifest.")
    monkeypatch.setattr(module + limit, 300)
    with pytest.raises(CheckpointError, match=said):
        encode_manifest(large)


@given(st.text(st.characters(), max_size=3), st.integers(-2, 10**13), st.floats(-2, 1e12))
def test_what_is_written_is_read(path: str, step: int, created_at_s: float):
    manifest = make_manifest(**{path: TensorEntry("int32", (0,), ())})
    manifest = replace(manifest, step=step, created_at_s=created_at_s)
    try:
        data = encode_manifest(manifest)
    except CheckpointError:
        return
    assert parse_manifest(data, "here") == manifest


@pytest.mark.parametrize("version", [0, 2])
def test_another_version_is_no_damage(good: Manifest, version: int):
    """Whatever else is in it: only another release knows what that means."""
    data = json.dumps({"format": "trainflow-checkpoint", "version": version}).encode()
    told = rf"manifest here: got version {version} of the format, expected 1: another release"
    with pytest.raises(CheckpointVersionError, match=f"{told}.*use that release, or another fold"):
        parse_manifest(data, "here")


def test_chunks_as_they_are_cut_are_chunks_that_are_read():
    assert CHUNK_BYTES <= MAX_CHUNK_BYTES


def test_nesting_without_end_is_refused():
    with pytest.raises(CheckpointError, match="no JSON"):
        parse_manifest(b'{"a":' + b"[" * 200_000, "here")


def test_a_number_that_json_does_not_know_is_not_written(good: Manifest):
    with pytest.raises(ValueError, match="JSON"):
        encode_manifest(replace(good, config={"lr": math.nan}))


def test_what_was_known_of_losses_is_there_or_not(good: Manifest):
    assert b"anomalies" not in encode_manifest(good)
    known = replace(good, anomalies={"step": 3, "state": {"recent": [0.1, 2.0]}})
    assert parse_manifest(encode_manifest(known), "here") == known
