import json
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest

from tests.full_disk import room_for
from tests.unit.checkpointing.layouts import make_manifest
from trainflow.checkpointing import bounded_calls
from trainflow.checkpointing import chunks as chunking
from trainflow.checkpointing.boxes import whole
from trainflow.checkpointing.chunk_writer import ChunkWriter
from trainflow.checkpointing.manifest import Chunk, Manifest, Shard, TensorEntry
from trainflow.checkpointing.store import CheckpointStore
from trainflow.checkpointing.store_files import LocalFiles
from trainflow.errors import CheckpointConflictError, CheckpointError, StoreError

PAYLOAD = bytes(range(250)) * 4


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunking, "CHUNK_BYTES", 100)


@pytest.fixture(params=["local", "memory"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "store") if request.param == "local" else f"memory://{uuid4()}"


@pytest.fixture
def store(url: str) -> CheckpointStore:
    return CheckpointStore(url)


def save(store: CheckpointStore, step: int, payload: bytes = PAYLOAD, attempt: str = "a") -> int:
    """Save one tensor; return how many bytes were written."""
    writer = ChunkWriter(store, known=(), num_threads=3)
    try:
        chunks = tuple(writer.add(part) for part in chunking.split(memoryview(payload)))
    finally:
        traffic = writer.finish()  # also where one fails: the others are under way
    entry = TensorEntry("uint8", (len(payload),), (Shard(whole((len(payload),)), chunks),))
    store.commit(replace(make_manifest(w=entry), step=step, attempt=attempt))
    assert traffic.num_bytes_written + traffic.num_bytes_known == len(payload)
    return traffic.num_bytes_written


def load(store: CheckpointStore, step: int) -> bytes:
    (shard,) = store.read_manifest(step).tensors["w"].shards
    data, start = memoryview(bytearray(sum(chunk.num_bytes for chunk in shard.chunks))), 0
    for chunk in shard.chunks:
        store.read_into(chunk, data[start : start + chunk.num_bytes])
        start += chunk.num_bytes
    assert data == b"".join(store.read_chunk(chunk) for chunk in shard.chunks)
    return bytes(data)


def chunk_file(tmp_path: Path, manifest: Manifest, number: int) -> Path:
    chunk = manifest.tensors["w"].shards[0].chunks[number]
    return tmp_path / "store" / "chunks" / chunk.chunk_id[:2] / chunk.chunk_id


def test_what_was_saved_is_there_for_whoever_opens_the_folder(store: CheckpointStore, url):
    assert store.committed_steps() == []
    save(store, 20)
    save(store, 5, PAYLOAD[::-1])
    again = CheckpointStore(url)
    assert again.committed_steps() == [5, 20]
    assert load(again, 20) == PAYLOAD
    assert load(again, 5) == PAYLOAD[::-1]
    assert again.read_manifest(20).config == {"name": "job"}


def test_only_what_changed_is_written_again(store: CheckpointStore):
    changed = bytearray(PAYLOAD)
    changed[430:480] = bytes(50)
    assert save(store, 1) == 250 * 2, "the second half of the payload is the first half again"
    assert save(store, 2, bytes(changed)) == 100
    assert load(store, 2) == changed


def test_of_several_writers_of_a_step_one_wins(store: CheckpointStore):
    def attempt(number: int) -> bool:
        try:
            save(store, 7, bytes([number]) * 300, attempt=f"w{number}")
        except CheckpointConflictError:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(attempt, range(8)))
    assert won.count(True) == 1
    assert load(store, 7) == bytes([won.index(True)]) * 300
    assert store.read_manifest(7).attempt == f"w{won.index(True)}"


def test_a_manifest_without_a_marker_is_no_checkpoint(store: CheckpointStore, url):
    save(store, 3)
    store.remove_marker(3)
    assert CheckpointStore(url).committed_steps() == []
    with pytest.raises(CheckpointError, match="got no file"):
        store.read_manifest(3)


class TestDamage:
    """On a local disk, where a test can get at the files."""

    @pytest.fixture
    def url(self, tmp_path: Path) -> str:
        return str(tmp_path / "store")

    @pytest.mark.parametrize("damage", ["flip", "truncate", "extend", "remove"])
    def test_a_damaged_chunk_is_refused(self, store: CheckpointStore, tmp_path, damage):
        save(store, 3)
        path = chunk_file(tmp_path, store.read_manifest(3), 1)
        data = bytearray(path.read_bytes())
        match damage:
            case "flip":
                data[50] ^= 4
                path.write_bytes(data)
            case "truncate":
                path.write_bytes(data[:-1])
            case "extend":
                path.write_bytes(data + b"x")
            case _:
                path.unlink()
        with pytest.raises(CheckpointError, match="use an earlier checkpoint"):
            load(store, 3)

    def test_a_truncated_chunk_does_not_count_as_there(self, store: CheckpointStore, tmp_path):
        save(store, 3)
        path = chunk_file(tmp_path, store.read_manifest(3), 1)
        path.write_bytes(path.read_bytes()[:-1])
        assert save(store, 4) == 100
        assert load(store, 4) == PAYLOAD

    def test_a_changed_manifest_is_refused(self, store: CheckpointStore, tmp_path):
        save(store, 3)
        (path,) = (tmp_path / "store" / "manifests").iterdir()
        path.write_text(path.read_text().replace("job-abc123", "job-xyz789"))
        with pytest.raises(CheckpointError, match="as its marker says; it is damaged"):
            store.read_manifest(3)

    @pytest.mark.parametrize(
        "marker",
        [
            "",
            "[]",
            '{"step": 3}',
            json.dumps({"step": 3, "manifest": "../../../etc/passwd", "digest": "0" * 32}),
            json.dumps({"step": 4, "manifest": "000000000004-a.json", "digest": "0" * 32}),
        ],
    )
    def test_a_damaged_or_forged_marker_is_refused(self, store, tmp_path, marker):
        save(store, 3)
        (tmp_path / "store" / "committed" / f"{3:012d}.json").write_text(marker)
        with pytest.raises(CheckpointError, match="use an earlier checkpoint"):
            store.read_manifest(3)

    def test_a_marker_of_another_steps_manifest_is_refused(self, store, tmp_path):
        save(store, 3)
        save(store, 4)
        committed = tmp_path / "store" / "committed"
        (committed / f"{3:012d}.json").write_bytes((committed / f"{4:012d}.json").read_bytes())
        with pytest.raises(CheckpointError, match="expected a manifest of step 3"):
            store.read_manifest(3)

    def test_a_full_disk_leaves_nothing_half_written(self, store: CheckpointStore, tmp_path):
        save(store, 3)
        before = sorted(path for path in (tmp_path / "store").rglob("*") if path.is_file())
        with room_for(50), pytest.raises(CheckpointError, match="free space"):
            save(store, 4, bytes(1000))
        after = sorted(path for path in (tmp_path / "store").rglob("*") if path.is_file())
        assert after == before
        assert load(store, 3) == PAYLOAD

    def test_a_folder_that_is_a_file_is_said_plainly(self, tmp_path):
        (tmp_path / "store").write_text("")
        with pytest.raises(CheckpointError, match="does not answer as expected"):
            save(CheckpointStore(str(tmp_path / "store")), 1)


def test_a_chunk_that_claims_another_name_is_refused(store: CheckpointStore):
    lying = Chunk("0" * 32, 4)
    store.write_chunk(lying, b"true")
    with pytest.raises(CheckpointError, match="damaged"):
        store.read_chunk(lying)
    view = bytearray(4)
    with pytest.raises(CheckpointError, match="damaged"):
        store.read_into(lying, memoryview(view))
    assert view == bytes(4), "what is damaged reaches nobody"


class LateFiles(LocalFiles):
    """Answers when it is let go."""

    def __init__(self) -> None:
        self.let_go = threading.Event()

    def read_into(self, path: str, memory: memoryview) -> int:
        self.let_go.wait(30)
        return super().read_into(path, memory)


def test_an_answer_that_comes_too_late_reaches_nobody(tmp_path: Path, monkeypatch):
    store = CheckpointStore(str(tmp_path / "store"))
    save(store, 3)
    (first, second, *_) = store.read_manifest(3).tensors["w"].shards[0].chunks
    late = store._files = LateFiles()
    given_up = bytearray(first.num_bytes)
    with monkeypatch.context() as patch:
        patch.setattr(bounded_calls, "_ANSWER_WITHIN_S", 0.02)
        with pytest.raises(StoreError, match="no answer within"):
            store.read_into(first, memoryview(given_up))
    late.let_go.set()
    view = bytearray(second.num_bytes)
    store.read_into(second, memoryview(view))
    assert view == store.read_chunk(second)
    while bounded_calls.STORE_CALLS.num_left_behind:
        bounded_calls.STORE_CALLS.call(5, lambda _: None)
    assert given_up == bytes(first.num_bytes)
