"""A store that fails once is not tried on with all the rest."""

import threading
from pathlib import Path

import pytest

from tests.unit.checkpointing.layouts import filling, make_manifest
from trainflow.checkpointing.boxes import whole
from trainflow.checkpointing.chunk_writer import ChunkWriter
from trainflow.checkpointing.manifest import Chunk, Shard, TensorEntry
from trainflow.checkpointing.part_reader import allocate, read_parts
from trainflow.checkpointing.store import CheckpointStore
from trainflow.errors import StoreError

NUM_CHUNKS, NUM_THREADS = 100, 3


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[Chunk]:
    """The chunks that were to be written to a store that takes none."""
    tried: list[Chunk] = []
    all_busy = threading.Barrier(NUM_THREADS)

    def refuse(store: CheckpointStore, chunk: Chunk, data: memoryview) -> None:
        tried.append(chunk)
        if len(tried) <= NUM_THREADS:
            all_busy.wait(5)
        threading.Event().wait(0.01)
        raise StoreError("503")

    monkeypatch.setattr(CheckpointStore, "write_chunk", refuse)
    return tried


def test_after_one_failure_nothing_more_is_written(tmp_path: Path, tried: list[Chunk]):
    writer = ChunkWriter(CheckpointStore(str(tmp_path)), (), NUM_THREADS)
    parts = (memoryview(number.to_bytes(4, "big")) for number in range(NUM_CHUNKS))
    with pytest.raises(StoreError, match="503"):
        list(map(writer.add, parts))
    with pytest.raises(StoreError, match="503"):
        writer.finish()
    assert len(tried) <= NUM_THREADS + 1


def test_whatever_a_write_raises_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def break_down(store: CheckpointStore, chunk: Chunk) -> bool:
        raise ZeroDivisionError

    monkeypatch.setattr(CheckpointStore, "has_chunk", break_down)
    writer = ChunkWriter(CheckpointStore(str(tmp_path)), (), NUM_THREADS)
    writer.add(memoryview(b"data"))
    with pytest.raises(ZeroDivisionError):
        writer.finish()


def test_after_one_failure_nothing_more_is_read():
    chunks = tuple(Chunk(f"{number:032x}", 4) for number in range(NUM_CHUNKS))
    shape = (4 * NUM_CHUNKS,)
    manifest = make_manifest(w=TensorEntry("uint8", shape, (Shard(whole(shape), chunks),)))
    tried: list[Chunk] = []
    all_busy = threading.Barrier(NUM_THREADS)

    def refuse(chunk: Chunk) -> bytes:
        tried.append(chunk)
        if len(tried) <= NUM_THREADS:
            all_busy.wait(5)
        if len(tried) > NUM_THREADS:
            threading.Event().wait(0.01)
        raise StoreError("503")

    with pytest.raises(StoreError, match="503"):
        read_parts(manifest, {"w": allocate(shape, 1)}, filling(refuse), NUM_THREADS)
    assert len(tried) < NUM_CHUNKS // 2
