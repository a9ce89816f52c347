import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.checkpointing.layouts import (
    filling,
    layouts,
    make_manifest,
    make_tensor,
    shapes,
    write_shards,
)
from trainflow.checkpointing import chunks as chunking
from trainflow.checkpointing.boxes import Box, whole
from trainflow.checkpointing.chunks import require_intact
from trainflow.checkpointing.manifest import TensorEntry
from trainflow.checkpointing.part_reader import Part, allocate, read_parts
from trainflow.errors import CheckpointError


@pytest.fixture(scope="module", autouse=True)
def small_chunks():
    patch = pytest.MonkeyPatch()
    patch.setattr(chunking, "CHUNK_BYTES", 12)
    yield
    patch.undo()


@given(st.data(), shapes)
def test_any_layout_is_restored_in_any_other(data, shape):
    tensor, chunks = make_tensor(shape), dict[str, bytes]()
    shards = write_shards(tensor, data.draw(layouts(shape)), chunks)
    manifest = make_manifest(w=TensorEntry("int32", shape, shards))
    restored = np.zeros_like(tensor)
    for box in data.draw(layouts(shape)):
        out = np.empty(box.num_elements * 4, np.uint8)
        read_parts(
            manifest, {"w": Part(box, out)}, filling(lambda c: chunks[c.chunk_id]), num_threads=2
        )
        restored[box.slices] = out.view(np.int32).reshape(box.shape)
    assert np.array_equal(restored, tensor)


def test_only_the_chunks_that_hold_the_part_are_fetched():
    tensor, chunks = make_tensor((30,)), dict[str, bytes]()
    shards = write_shards(tensor, [whole((30,))], chunks)
    manifest = make_manifest(w=TensorEntry("int32", (30,), shards))
    fetched: list[str] = []
    out = np.empty(8, np.uint8)

    def fetch(chunk):
        fetched.append(chunk.chunk_id)
        return chunks[chunk.chunk_id]

    read_parts(manifest, {"w": Part(Box((5,), (2,)), out)}, filling(fetch), num_threads=1)
    assert out.view(np.int32).tolist() == [6, 7]
    assert fetched == [shards[0].chunks[1].chunk_id, shards[0].chunks[2].chunk_id]


def test_a_damaged_chunk_is_an_error_and_not_a_value():
    tensor, chunks = make_tensor((9,)), dict[str, bytes]()
    shards = write_shards(tensor, [whole((9,))], chunks)
    manifest = make_manifest(w=TensorEntry("int32", (9,), shards))
    victim = shards[0].chunks[1]
    flipped = bytearray(chunks[victim.chunk_id])
    flipped[3] ^= 1
    chunks[victim.chunk_id] = bytes(flipped)
    with pytest.raises(CheckpointError, match=f"chunk {victim.chunk_id}.*damaged"):
        read_parts(
            manifest,
            {"w": allocate((9,), 4)},
            filling(lambda chunk: require_intact(chunk, chunks[chunk.chunk_id], "memory")),
            num_threads=2,
        )


def test_a_tensor_that_was_not_saved_is_named():
    with pytest.raises(CheckpointError, match=r"got no tensor models/x, expected it"):
        read_parts(
            make_manifest(), {"models/x": allocate((1,), 4)}, filling(lambda _: b""), num_threads=1
        )
