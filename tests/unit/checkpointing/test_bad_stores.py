"""Stores that are full, refuse, or hold what nobody wrote: said plainly, and bounded in memory."""

import errno
import json
import os
import threading
import tracemalloc
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from tests.full_disk import room_for
from tests.unit.checkpointing.test_store import PAYLOAD, load, save, small_chunks
from trainflow.checkpointing import bounded_calls
from trainflow.checkpointing.collector import collect
from trainflow.checkpointing.store import CheckpointStore
from trainflow.checkpointing.verification import verify
from trainflow.errors import CheckpointConflictError, CheckpointError, StoreError

__all__ = ["small_chunks"]

NOBODY = 65534
LARGE = 200 * 2**20


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(folder: Path) -> CheckpointStore:
    return CheckpointStore(str(folder))


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@contextmanager
def full_for(kind: str) -> Generator[None]:
    """Let the disk be full once a file of this folder is flushed."""
    flush = os.fsync

    def refuse(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink().match(f"*/{kind}/**"):
            raise OSError(errno.ENOSPC, "No space left on device")
        flush(descriptor)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", refuse)
        yield


@contextmanager
def as_nobody() -> Generator[None]:
    """Be a user that folders can refuse; root is refused nothing."""
    own = os.geteuid()
    if own == 0:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(own)


class TestUnopened:
    @pytest.mark.parametrize(
        "url",
        [
            "ftp://127.0.0.1:9/x",
            "github://x",
            "reference://x",
            "jupyter://x",
            "generic://x",
            "dir://st",
            "zip://a::b",
            "zip://x.zip",
        ],
    )
    def test_a_url_that_is_no_place_for_checkpoints_is_refused(
        self, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.chdir(tmp_path)
        with pytest.raises(
            StoreError, match=r"got '.*expected a path or a URL.*choose another pl"
        ) as told:
            CheckpointStore(url)
        assert url in str(told.value)
        assert "\n" not in str(told.value)

    def test_one_that_never_answers_is_given_up(self, monkeypatch: pytest.MonkeyPatch):
        never = threading.Event()
        monkeypatch.setattr("fsspec.core.url_to_fs", lambda _: never.wait(10))
        monkeypatch.setattr(bounded_calls, "_ANSWER_WITHIN_S", 0.05)
        with pytest.raises(StoreError, match="TimeoutError: no answer within"):
            CheckpointStore("ftp://silent/x")
        never.set()


class TestFull:
    @pytest.mark.parametrize("kind", ["manifests", "committed"])
    def test_a_disk_full_at_the_very_end_leaves_what_was_before(
        self, store: CheckpointStore, folder: Path, kind: str
    ):
        save(store, 3)
        with full_for(kind), pytest.raises(CheckpointError, match="free space"):
            save(store, 4, PAYLOAD[::-1])
        assert store.committed_steps() == [3]
        assert not [name for name in files(folder) if ".part" in name]
        save(store, 4, PAYLOAD[::-1])
        assert load(store, 3) == PAYLOAD
        assert load(store, 4) == PAYLOAD[::-1]

    def test_a_disk_with_room_for_chunks_but_not_for_the_manifest(self, store: CheckpointStore):
        save(store, 3)
        with room_for(100), pytest.raises(CheckpointError, match="free space"):
            save(store, 4)
        assert store.committed_steps() == [3]
        assert load(store, 3) == PAYLOAD

    def test_what_a_full_disk_left_is_collected(self, store: CheckpointStore, folder: Path):
        save(store, 3)
        before = files(folder)
        with full_for("committed"), pytest.raises(CheckpointError):
            save(store, 4, bytes(1000))
        collect(store, {3})
        assert files(folder) == before


class TestRefusing:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        """A folder that others may look into."""
        for path in (tmp_path, *tmp_path.parents[:2]):
            path.chmod(0o755)
        return tmp_path / "store"

    def test_a_folder_that_may_not_be_written_to(self, store: CheckpointStore, folder: Path):
        save(store, 3)
        before, later = files(folder), replace(store.read_manifest(3), step=4)
        with as_nobody():
            with pytest.raises(StoreError, match=r"PermissionError.*credentials"):
                save(store, 4, PAYLOAD[::-1])
            with pytest.raises(StoreError, match="PermissionError"):
                store.commit(later)
            with pytest.raises(StoreError, match="PermissionError"):
                store.remove_marker(3)
        assert files(folder) == before
        assert load(store, 3) == PAYLOAD

    def test_a_folder_that_may_not_be_looked_into(self, store: CheckpointStore, folder: Path):
        save(store, 3)
        for path in (*folder.iterdir(), *(folder / "chunks").iterdir()):
            path.chmod(0o700)
        (chunk,) = set(list(store.read_manifest(3).chunks().values())[:1])
        with as_nobody():
            for look in (
                store.committed_steps,
                lambda: store.read_manifest(3),
                lambda: store.read_chunk(chunk),
                lambda: store.read_into(chunk, memoryview(bytearray(chunk.num_bytes))),
                lambda: store.has_chunk(chunk),
                lambda: list(store.chunk_ids()),
                lambda: verify(store, 3),
            ):
                with pytest.raises(StoreError, match="PermissionError"):
                    look()


class TestStale:
    def test_a_marker_whose_manifest_is_gone(self, store: CheckpointStore, folder: Path):
        save(store, 3)
        save(store, 4, PAYLOAD[::-1])
        (folder / "manifests" / store.committed_manifest(4)).unlink()
        before = files(folder)
        with pytest.raises(CheckpointError, match=r"got no file.*use an earlier"):
            store.read_manifest(4)
        assert len(verify(store, 4).flaws) == 1
        with pytest.raises(CheckpointError):
            collect(store, {4})
        assert files(folder) == before, "what the newest needs is unknown: all of it stays"
        assert load(store, 3) == PAYLOAD

    def test_a_manifest_of_another_step_under_the_name_of_this_one(
        self, store: CheckpointStore, folder: Path
    ):
        save(store, 3)
        save(store, 4, PAYLOAD[::-1])
        three, four = (folder / "manifests" / store.committed_manifest(step) for step in (3, 4))
        four.write_bytes(three.read_bytes())
        marker = folder / "committed" / f"{4:012d}.json"
        digest = json.loads((folder / "committed" / f"{3:012d}.json").read_text())["digest"]
        marker.write_text(json.dumps(json.loads(marker.read_text()) | {"digest": digest}))
        with pytest.raises(CheckpointError, match="got step 3, expected 4"):
            store.read_manifest(4)

    def test_a_second_commit_of_one_attempt_leaves_the_first_as_it_is(self, store: CheckpointStore):
        """As a coordinator makes it that died after the marker, and has come back."""
        save(store, 3)
        again = replace(store.read_manifest(3), created_at_s=2000.0)
        with pytest.raises(CheckpointConflictError):
            store.commit(again)
        assert load(store, 3) == PAYLOAD


class TestForged:
    def test_a_page_in_place_of_a_part_of_a_chunk_is_damage(self, monkeypatch: pytest.MonkeyPatch):
        """As from a server that ignores that a part was asked for."""
        store = CheckpointStore("memory://page-for-a-chunk")
        save(store, 3)
        chunk, *_ = store.read_manifest(3).chunks().values()
        page = b"<html>" * 50
        monkeypatch.setattr(MemoryFileSystem, "cat_file", lambda *_, **__: page)
        view = bytearray(chunk.num_bytes)
        with pytest.raises(CheckpointError, match="damaged") as caught:
            store.read_into(chunk, memoryview(view))
        assert not isinstance(caught.value, StoreError)
        assert view == bytes(chunk.num_bytes)

    def test_a_name_in_other_digits_is_no_checkpoint(self, store: CheckpointStore, folder: Path):
        save(store, 3)
        marker = (folder / "committed" / f"{3:012d}.json").read_bytes()
        digits = "\N{ARABIC-INDIC DIGIT ZERO}" * 11 + "\N{ARABIC-INDIC DIGIT FOUR}"
        (folder / "committed" / f"{digits}.json").write_bytes(marker)
        assert store.committed_steps() == [3]

    @pytest.mark.parametrize("kind", ["chunks", "committed"])
    def test_a_file_that_has_grown_is_not_read_into_memory(
        self, store: CheckpointStore, folder: Path, kind: str
    ):
        save(store, 3)
        for path in (folder / kind).rglob("*"):
            if path.is_file():
                os.truncate(path, LARGE)
        tracemalloc.start()
        try:
            with pytest.raises(CheckpointError):
                load(store, 3)
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak_bytes < LARGE // 10

    def test_a_manifest_beyond_every_bound_is_not_read_into_memory(
        self, store: CheckpointStore, folder: Path, monkeypatch: pytest.MonkeyPatch
    ):
        save(store, 3)
        monkeypatch.setattr("trainflow.checkpointing.store.MAX_MANIFEST_BYTES", LARGE // 4)
        os.truncate(folder / "manifests" / store.committed_manifest(3), LARGE)
        tracemalloc.start()
        try:
            with pytest.raises(CheckpointError):
                store.read_manifest(3)
            _, peak_bytes = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        assert peak_bytes < LARGE // 2

    def test_a_marker_of_endless_depth(self, store: CheckpointStore, folder: Path):
        save(store, 3)
        (folder / "committed" / f"{3:012d}.json").write_text("[" * 4000)
        with pytest.raises(CheckpointError, match="got no marker"):
            store.read_manifest(3)
