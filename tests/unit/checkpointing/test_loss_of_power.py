"""What a loss of power leaves: a marker that is there stands for a manifest and chunks that are.

File systems may keep the names in one folder and lose those in another. So each name counts as
lost until its own folder has been flushed.
"""

import errno
import os
import stat
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.checkpointing.test_store import PAYLOAD, save, small_chunks
from trainflow.checkpointing import chunks as chunking
from trainflow.checkpointing.chunk_writer import ChunkWriter
from trainflow.checkpointing.collector import collect
from trainflow.checkpointing.store import CheckpointStore
from trainflow.errors import StoreError

__all__ = ["small_chunks"]

MANY = b"".join(number.to_bytes(2, "big") * 50 for number in range(300))


class Names:
    """The names in a store: those that would be lost now, and those when each marker came.

    Likewise markers that are gone and would be back, now and when each other file went.
    """

    def __init__(self, root: Path):
        self.back: set[str] = set()
        self.back_at_removal: list[set[str]] = []
        self.lost: set[str] = set()
        self.lost_at_marker: list[set[str]] = []
        self.flushed: Counter[Path] = Counter()
        self._root = root

    def give(self, path: Path) -> None:
        """A file or folder takes its name."""
        if self._root not in path.parents:
            return
        if path.parent.name != "committed":
            self.lost.add(str(path))
        elif path.suffix == ".json":
            self.lost_at_marker.append(set(self.lost))

    def take(self, path: Path) -> None:
        """A file's name goes."""
        if self._root not in path.parents:
            return
        if path.parent.name == "committed":
            self.back.add(str(path))
        else:
            self.back_at_removal.append(set(self.back))

    def keep(self, folder: Path) -> None:
        """A folder is flushed."""
        self.back -= {name for name in self.back if Path(name).parent == folder}
        self.flushed[folder] += 1
        self.lost -= {name for name in self.lost if Path(name).parent == folder}


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Names:
    names = Names(tmp_path.resolve() / "store")
    flush = os.fsync

    def note(call: str, place: int, heard: Callable[[Path], None]) -> None:
        really = getattr(os, call)

        def noted(*arguments: Any, **options: Any) -> None:
            really(*arguments, **options)
            heard(Path(arguments[place]).absolute())

        monkeypatch.setattr(os, call, noted)

    def keep(descriptor: int) -> None:
        flush(descriptor)
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            names.keep(Path(f"/proc/self/fd/{descriptor}").readlink())

    for call, place in (("mkdir", 0), ("replace", 1), ("link", 1)):
        note(call, place, names.give)
    note("unlink", 0, names.take)
    monkeypatch.setattr(os, "fsync", keep)
    return names


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(str(tmp_path.resolve() / "store"))


def test_a_marker_comes_when_all_that_it_stands_for_is_there_to_stay(
    store: CheckpointStore, names: Names
):
    save(store, 1)
    save(store, 2, MANY)
    assert names.lost_at_marker == [set(), set()]


def test_what_one_node_uploads_needs_nobody_else_to_stay(store: CheckpointStore, names: Names):
    writer = ChunkWriter(store, known=(), num_threads=3)
    for part in chunking.split(memoryview(MANY)):
        writer.add(part)
    writer.finish()
    assert names.lost == set()


def test_what_an_upload_that_failed_has_left_is_there_to_stay_too(
    store: CheckpointStore, names: Names, monkeypatch: pytest.MonkeyPatch
):
    write, written = CheckpointStore.write_chunk, list[Any]()

    def write_some(*arguments: Any) -> None:
        if len(written) > 1:
            raise StoreError("503")
        write(*arguments)
        written.append(arguments)

    with monkeypatch.context() as patch:
        patch.setattr(CheckpointStore, "write_chunk", write_some)
        with pytest.raises(StoreError):
            save(store, 1)
    assert names.lost
    save(CheckpointStore(store.url), 1)
    assert names.lost_at_marker == [set()]


def test_nothing_goes_that_a_marker_could_come_back_to(store: CheckpointStore, names: Names):
    save(store, 1)
    save(store, 2, MANY)
    collect(store, [1])
    assert store.committed_steps() == [1]
    assert set(map(frozenset, names.back_at_removal)) == {frozenset()}


def test_a_folder_is_flushed_once_for_all_its_chunks(store: CheckpointStore, names: Names):
    save(store, 1, MANY)
    flushed = [count for path, count in names.flushed.items() if path.parent.name == "chunks"]
    assert 2 < len(flushed) <= 256
    assert set(flushed) == {1}


def test_a_folder_that_can_not_be_flushed_makes_no_checkpoint(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
):
    save(store, 1)
    flush = os.fsync

    def fail(descriptor: int) -> None:
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(errno.EIO, "Input/output error")
        flush(descriptor)

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(StoreError, match="Input/output error"):
        save(store, 2, PAYLOAD[::-1])
    assert store.committed_steps() == [1]
