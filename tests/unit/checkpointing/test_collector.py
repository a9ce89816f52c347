"""What is kept stays whole at every moment, also when the collector dies half-way."""

from pathlib import Path
from typing import Any

import pytest

from tests.unit.checkpointing.test_store import PAYLOAD, load, save, small_chunks
from trainflow.checkpointing.collector import collect
from trainflow.checkpointing.store import CheckpointStore
from trainflow.checkpointing.verification import quarantine
from trainflow.errors import CheckpointError

__all__ = ["small_chunks"]

LATER = PAYLOAD[:500] + bytes(range(100, 200)) * 5


class DiedError(Exception):
    """The process is gone."""


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    """Three checkpoints, of which neighbours share half their chunks, and one never committed."""
    store = CheckpointStore(str(tmp_path / "store"))
    save(store, 1, b"only in the first " * 40)
    save(store, 2)
    save(store, 3, LATER)
    save(store, 4, b"never committed" * 30)
    store.remove_marker(4)
    return store


def files(store: CheckpointStore) -> list[str]:
    return sorted(str(p.relative_to(store.url)) for p in Path(store.url).rglob("*") if p.is_file())


def test_what_only_others_need_goes(store: CheckpointStore):
    collected = collect(store, {2, 3})
    assert collected.steps == (1,)
    assert store.committed_steps() == [2, 3]
    assert load(store, 2) == PAYLOAD
    assert load(store, 3) == LATER
    assert len(store.manifest_names()) == 2
    assert len(list(store.chunk_ids())) == len(
        store.read_manifest(2).chunks().keys() | store.read_manifest(3).chunks().keys()
    )


def test_again_it_finds_nothing(store: CheckpointStore):
    collect(store, {3})
    assert collect(store, {3}).num_chunks == 0


def test_the_last_good_one_is_never_removed(store: CheckpointStore):
    before = files(store)
    with pytest.raises(CheckpointError, match="got no checkpoint to keep"):
        collect(store, {17})
    assert files(store) == before


def test_when_a_kept_manifest_is_damaged_nothing_is_removed(store: CheckpointStore):
    path = Path(store.url) / "manifests" / store.committed_manifest(3)
    path.write_bytes(path.read_bytes()[:-10])
    before = files(store)
    with pytest.raises(CheckpointError, match="damaged"):
        collect(store, {2, 3})
    assert files(store) == before


def test_it_may_die_at_every_moment(store: CheckpointStore, monkeypatch: pytest.MonkeyPatch):
    """Die after 0, 1, 2, ... removals: what is kept can be read, what counts is whole."""
    remove: Any = store._files.remove
    left = [0]

    def remove_while_alive(path: str) -> None:
        if left[0] == 0:
            raise DiedError
        left[0] -= 1
        remove(path)

    monkeypatch.setattr(store._files, "remove", remove_while_alive)
    for lifetime in range(100):
        left[0] = lifetime
        try:
            collect(store, {2, 3})
            break
        except DiedError:
            assert {2, 3} <= set(store.committed_steps())
            for step in store.committed_steps():
                load(store, step)
    assert lifetime > 0
    assert load(store, 2) == PAYLOAD
    assert load(store, 3) == LATER


def test_what_writers_left_that_died_goes_too(store: CheckpointStore):
    collect(store, {2, 3})
    before = files(store)
    for name in ("committed/.part-a", "manifests/.part-b", "chunks/00/.part-c", "committed/probe-"):
        path = Path(store.url) / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"half of it")
    collect(store, {2, 3})
    assert files(store) == before


def test_what_is_whole_is_not_quarantined(store: CheckpointStore):
    before = files(store)
    assert quarantine(store, 3) is None
    assert files(store) == before


def test_what_has_no_manifest_that_can_be_read_is_quarantined(store: CheckpointStore):
    path = Path(store.url) / "manifests" / store.committed_manifest(3)
    path.write_bytes(path.read_bytes()[:-10])
    assert quarantine(store, 3) == 0
    assert store.committed_steps() == [1, 2]


def test_what_lacks_a_chunk_is_quarantined(store: CheckpointStore):
    store.remove_chunk(next(iter(store.read_manifest(3).chunks())))
    assert quarantine(store, 3) == 1
    assert 3 not in store.committed_steps()


def test_a_quarantine_that_was_cut_off_can_be_done_again(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
):
    """Whatever was done of it: a bad chunk doesn't stay while nobody knows that it is bad."""
    bad = list(store.read_manifest(3).chunks().values())[-1]
    store.write_chunk(bad, b"something else")
    remove: Any = store._files.remove

    def die(path: str) -> None:
        raise DiedError

    monkeypatch.setattr(store._files, "remove", die)
    with pytest.raises(DiedError):
        quarantine(store, 3)
    left = [1]

    def remove_once(path: str) -> None:
        if not left[0]:
            raise DiedError
        left[0] -= 1
        remove(path)

    monkeypatch.setattr(store._files, "remove", remove_once)
    with pytest.raises(DiedError):
        quarantine(store, 3)
    monkeypatch.undo()
    quarantine(store, 3)
    assert 3 not in store.committed_steps()
    assert bad.chunk_id not in set(store.chunk_ids())
