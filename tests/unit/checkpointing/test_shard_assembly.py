"""Four ranks write what each holds; any number of ranks reads it in any other layout."""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.unit.checkpointing.layouts import make_manifest
from trainflow.checkpointing import chunks as chunking
from trainflow.checkpointing.boxes import Box, whole
from trainflow.checkpointing.chunks import name_chunk, split
from trainflow.checkpointing.manifest import Chunk, Shard, TensorEntry
from trainflow.checkpointing.part_reader import Part, read_parts
from trainflow.checkpointing.shard_assembly import assemble_shards
from trainflow.checkpointing.store import CheckpointStore
from trainflow.errors import CheckpointError

WRITERS = 4
READERS = (1, 2, 3, 5)
DTYPES = {"uint8": np.uint8, "int16": np.int16, "float32": np.float32, "complex128": np.complex128}

shapes = st.lists(st.integers(0, 9), max_size=3).map(tuple)
Layout = list[list[Box]]


@pytest.fixture(scope="module", autouse=True)
def small_chunks():
    patch = pytest.MonkeyPatch()
    patch.setattr(chunking, "CHUNK_BYTES", 48)
    yield
    patch.undo()


@st.composite
def shardings(draw: st.DrawFn, shape: tuple[int, ...], world_size: int) -> Layout:
    """What each rank holds: slices along one dimension, uneven, some empty; or all of it."""
    if not shape or draw(st.integers(0, 4)) == 0:
        return [[whole(shape)] for _ in range(world_size)]
    cut_along = draw(st.integers(0, len(shape) - 1))
    size = shape[cut_along]
    inner = draw(st.lists(st.integers(0, size), min_size=world_size - 1, max_size=world_size - 1))
    slices = pairwise([0, *sorted(inner), size])
    boxes = [
        Box(
            tuple(start if d == cut_along else 0 for d in range(len(shape))),
            tuple(stop - start if d == cut_along else n for d, n in enumerate(shape)),
        )
        for start, stop in slices
    ]
    return [[box] for box in draw(st.permutations(boxes))]


@st.composite
def tensors(draw: st.DrawFn) -> dict[str, NDArray[Any]]:
    found: dict[str, NDArray[Any]] = {}
    for i in range(draw(st.integers(1, 4))):
        shape, name = draw(shapes), draw(st.sampled_from(list(DTYPES)))
        count = int(np.prod(shape)) * np.dtype(DTYPES[name]).itemsize
        content = np.random.default_rng(count + i).integers(0, 256, count, np.uint8)
        found[f"/{i}"] = content.view(DTYPES[name]).reshape(shape)
    return found


def write(store: CheckpointStore, tensor: NDArray[Any], boxes: Sequence[Box]) -> TensorEntry:
    """Write one rank's shards of a tensor."""
    shards: list[Shard] = []
    for box in boxes:
        found: list[Chunk] = []
        for part in split(memoryview(tensor[box.slices].tobytes())):
            chunk = name_chunk(part)
            if not store.has_chunk(chunk):
                store.write_chunk(chunk, part)
            found.append(chunk)
        shards.append(Shard(box, tuple(found)))
    return TensorEntry(tensor.dtype.name, tensor.shape, tuple(shards))


def read(store: CheckpointStore, step: int, path: str, box: Box) -> bytes:
    """Read one rank's part of a tensor."""
    manifest = store.read_manifest(step)
    out = np.empty(box.num_elements * manifest.tensors[path].item_bytes, np.uint8)
    read_parts(manifest, {path: Part(box, out)}, store.read_into, num_threads=2)
    return out.tobytes()


@pytest.mark.slow
@settings(max_examples=60)
@given(st.data(), tensors())
def test_what_four_wrote_is_read_by_any_number_in_any_layout(data, tensors):
    written = {path: data.draw(shardings(t.shape, WRITERS)) for path, t in tensors.items()}
    with TemporaryDirectory() as folder:
        store = CheckpointStore(str(Path(folder) / "store"))
        held = [
            {path: write(store, t, written[path][rank]) for path, t in tensors.items()}
            for rank in range(WRITERS)
        ]
        manifest = make_manifest(**assemble_shards(held))
        store.commit(manifest)
        assert store.read_manifest(manifest.step) == manifest
        world_size = data.draw(st.sampled_from(READERS))
        for path, tensor in tensors.items():
            for (box,) in data.draw(shardings(tensor.shape, world_size)):
                expected = tensor[box.slices].tobytes()
                assert read(store, manifest.step, path, box) == expected


def held_by(*boxes: Box, path: str = "/w", content: str = "0") -> dict[str, TensorEntry]:
    shards = tuple(
        Shard(box, (Chunk(content * 32, box.num_elements),) if box.num_elements else ())
        for box in boxes
    )
    return {path: TensorEntry("uint8", (4, 3), shards)}


ROWS = [Box((i, 0), (1, 3)) for i in range(4)]


def test_replicas_are_named_once_and_empty_shards_not_at_all():
    united = assemble_shards([held_by(*ROWS[:2], Box((2, 0), (0, 3))), held_by(*ROWS[1:])])
    assert [shard.box for shard in united["/w"].shards] == ROWS


@pytest.mark.parametrize(
    ("held", "told"),
    [
        ([held_by(*ROWS[:2]), held_by(ROWS[3])], "/w: got 3 shards that overlap or leave gaps"),
        ([held_by(*ROWS), held_by(Box((1, 0), (2, 3)))], "overlap or leave gaps"),
        ([held_by(*ROWS[:3]), held_by(ROWS[2], Box((2, 0), (1, 3)))], "overlap or leave gaps"),
        ([held_by(*ROWS), held_by(ROWS[2], content="1")], "the ranks have drifted apart"),
        ([held_by(*ROWS), held_by(path="/other")], "shards of different states"),
    ],
)
def test_what_does_not_fit_together_is_refused(held, told: str):
    with pytest.raises(CheckpointError, match=told):
        assemble_shards(held)


def test_a_layout_may_give_a_rank_nothing():
    sizes = [0, 2, 0, 2]
    starts = [0, *accumulate(sizes)][:-1]
    boxes = [Box((start, 0), (size, 3)) for start, size in zip(starts, sizes, strict=True)]
    united = assemble_shards([held_by(box) for box in boxes])
    assert [shard.box for shard in united["/w"].shards] == [boxes[1], boxes[3]]
