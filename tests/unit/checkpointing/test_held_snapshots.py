"""What a node holds in memory, who may write over it, and when it goes."""

from pathlib import Path

import pytest

from tests.unit.checkpointing.snapshots import SIZES, leave, payload, version
from trainflow.checkpointing.chunks import name_of
from trainflow.checkpointing.held_snapshots import HeldSnapshots
from trainflow.checkpointing.snapshot_slots import Slot, SlotState
from trainflow.errors import StateError

OWNER, OTHER = "slot0-1.0", "slot1-1.1"


@pytest.fixture
def held(tmp_path: Path) -> HeldSnapshots:
    return HeldSnapshots(tmp_path)


def die(folder: Path, owner: str) -> None:
    (folder / f"{owner}.stamp").unlink()


def test_nothing_is_held_at_first(held: HeldSnapshots):
    assert held.newest() is None
    assert held.find_ready() == []
    with pytest.raises(StateError, match=r"no snapshot of 3@1\.1"), held.reading(version(3)):
        pass


def test_the_newest_is_found_whoever_made_it_and_what_half_a_one_is_worth(
    held: HeldSnapshots, tmp_path: Path
):
    leave(tmp_path, OWNER, 3)
    leave(tmp_path, OTHER, 4)
    half = Slot(tmp_path / f"{OTHER}.1.snapshot")
    half.begin(version(5), {}, [])
    assert held.newest() == version(4)


def test_only_what_is_for_storage_is_ready_the_oldest_first(held: HeldSnapshots, tmp_path: Path):
    leave(tmp_path, OWNER, 1)
    leave(tmp_path, OWNER, 3, 1, for_storage=True)
    leave(tmp_path, OTHER, 2, for_storage=True)
    (slot, snapshot), (_, later) = held.find_ready()
    assert (snapshot.version.step, later.version.step) == (2, 3)
    assert snapshot.purpose == {"share": [0, 1]}
    slot.hold()
    assert held.newest() == version(3)
    assert [each.version.step for _, each in held.find_ready()] == [3]


def test_what_is_read_is_not_written_over(held: HeldSnapshots, tmp_path: Path):
    slot = leave(tmp_path, OWNER, 3)
    with held.reading(version(3)) as snapshot:
        assert not slot.take()
        assert bytes(snapshot.payloads[2]) == payload(3, 2)[: SIZES[2]]
    assert slot.take()
    assert held.newest() is None


def test_several_read_at_once_and_the_last_one_counts(held: HeldSnapshots, tmp_path: Path):
    slot = leave(tmp_path, OWNER, 3)
    with held.reading(version(3)):
        with held.reading(version(3)):
            pass
        assert not slot.take()
    assert slot.take()


def test_the_description_names_the_bytes(held: HeldSnapshots, tmp_path: Path):
    leave(tmp_path, OWNER, 3)
    manifest = held.describe(version(3), "job-1")
    assert (manifest.step, manifest.attempt) == (3, "1.1")
    chunks = manifest.tensors["/0"].shards[0].chunks
    assert sum(chunk.num_bytes for chunk in chunks) == SIZES[0]
    assert chunks[0].chunk_id == name_of(payload(3, 0)[: chunks[0].num_bytes])


def test_a_dead_worker_s_newest_stays_until_it_is_to_be_had_elsewhere(
    held: HeldSnapshots, tmp_path: Path
):
    leave(tmp_path, OWNER, 3)
    Slot(tmp_path / f"{OWNER}.1.snapshot").begin(version(4), {}, [])
    die(tmp_path, OWNER)
    held.tidy(None)
    assert [path.name for path in tmp_path.iterdir()] == [f"{OWNER}.0.snapshot"]
    held.tidy(version(3))
    assert held.newest() == version(3)
    held.tidy(version(4))
    assert list(tmp_path.iterdir()) == []


def test_what_is_on_its_way_to_storage_stays_and_so_does_a_living_worker_s(
    held: HeldSnapshots, tmp_path: Path
):
    ready = leave(tmp_path, OWNER, 3, for_storage=True)
    die(tmp_path, OWNER)
    leave(tmp_path, OTHER, 2)
    held.tidy(version(9))
    assert ready.state is SlotState.READY
    assert ready.path.exists()
    assert (tmp_path / f"{OTHER}.0.snapshot").exists()
    ready.hold()
    held.tidy(version(9))
    assert not ready.path.exists()


def test_copies_take_turns_so_that_one_is_always_whole(held: HeldSnapshots, tmp_path: Path):
    for step in (1, 2, 3):
        slot = held.take_copy_slot("nodeA")
        slot.begin(version(step), {}, [])
        assert held.newest() == (version(step - 1) if step > 1 else None)
        slot.complete(for_storage=False)
    assert held.newest() == version(3)
    assert len(list(tmp_path.glob("copy-nodeA.*"))) == 2
    held.tidy(version(3))
    assert [slot.name for slot in tmp_path.iterdir()] == ["copy-nodeA.0.snapshot"]
    held.tidy(version(4))
    assert list(tmp_path.iterdir()) == []


def test_the_copy_that_arrives_is_not_tidied_away(held: HeldSnapshots):
    slot = held.take_copy_slot("nodeA")
    slot.begin(version(5), {}, [])
    held.tidy(version(9))
    slot.complete(for_storage=False)
    assert held.newest() == version(5)


def test_what_is_no_slot_is_left_out(held: HeldSnapshots, tmp_path: Path):
    damaged = leave(tmp_path, OWNER, 4, for_storage=True)
    with damaged.path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 20)
    leave(tmp_path, OTHER, 3, for_storage=True)
    assert [each.version.step for _, each in held.find_ready()] == [3]
