import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from tests.full_disk import room_for
from trainflow.checkpointing.snapshot import TensorRecord
from trainflow.checkpointing.snapshot_slots import CopyState, Slot, SlotState
from trainflow.epochs import EpochId, Version
from trainflow.errors import StateError

VERSION = Version(7, EpochId(2, 3))
SKELETON = {"dict": [["weights", {"tensor": 0}], ["step", 7]]}
TENSORS = (
    TensorRecord("/weights", "float32", (3, 5), 60),
    TensorRecord("/empty", "int64", (0,), 0),
    TensorRecord("/scalar", "float64", (), 8),
)
PURPOSE = {"share": [0, 2]}
PAYLOADS = (bytes(range(60)), b"", b"12345678")


def fill(slot: Slot, version: Version = VERSION) -> None:
    for view, payload in zip(
        slot.begin(version, SKELETON, TENSORS, PURPOSE), PAYLOADS, strict=True
    ):
        view[:] = payload
    slot.complete()


@pytest.fixture
def slot(tmp_path: Path) -> Slot:
    return Slot(tmp_path / "node" / "slot0.snapshot")


def test_a_reader_in_another_mapping_sees_what_was_written(slot: Slot):
    reader = Slot(slot.path)
    assert reader.read() is None
    fill(slot)
    snapshot = reader.read()
    assert snapshot is not None
    assert snapshot.version == VERSION
    assert snapshot.purpose == PURPOSE
    assert snapshot.skeleton == SKELETON
    assert snapshot.tensors == TENSORS
    assert tuple(bytes(view) for view in snapshot.payloads) == PAYLOADS


def test_a_description_is_parsed_once_and_again_when_it_is_another(slot: Slot):
    fill(slot)
    first, again = slot.read(), slot.read()
    assert first is not None
    assert again is not None
    assert again.tensors is first.tensors
    slot.hold()
    assert slot.take()
    slot.begin(VERSION, {"dict": []}, TENSORS[2:])
    slot.complete()
    other = slot.read()
    assert other is not None
    assert (other.skeleton, other.tensors) == ({"dict": []}, TENSORS[2:])


def test_half_a_snapshot_is_none(slot: Slot):
    slot.begin(VERSION, SKELETON, TENSORS)
    assert slot.state is SlotState.WRITING
    assert Slot(slot.path).read() is None


def test_a_slot_is_written_again_only_once_it_is_free(slot: Slot):
    fill(slot)
    with pytest.raises(StateError, match="READY, expected FREE"):
        slot.begin(VERSION, SKELETON, TENSORS)
    Slot(slot.path).free()
    later = Version(8, EpochId(2, 3))
    fill(slot, later)
    snapshot = Slot(slot.path).read()
    assert snapshot is not None
    assert snapshot.version == later


def test_a_larger_state_makes_the_file_grow_under_its_reader(slot: Slot):
    fill(slot)
    reader = Slot(slot.path)
    assert reader.read() is not None
    slot.free()
    num_bytes = 3_000_000
    (view,) = slot.begin(VERSION, None, [TensorRecord("/big", "uint8", (num_bytes,), num_bytes)])
    view[:] = b"\x05" * num_bytes
    slot.complete()
    snapshot = reader.read()
    assert snapshot is not None
    assert bytes(snapshot.payloads[0]) == b"\x05" * num_bytes


def test_one_that_becomes_whole_while_it_is_looked_at_is_no_damage(
    slot: Slot, monkeypatch: pytest.MonkeyPatch
):
    reader = Slot(slot.path)
    large = TensorRecord("w", "uint8", (1 << 20,), 1 << 20)
    slot.begin(VERSION, {}, [large])
    remap = reader._remap_if_grown

    def complete_and_remap() -> None:
        if slot.state is SlotState.WRITING:
            slot.complete()
        remap()

    monkeypatch.setattr(reader, "_remap_if_grown", complete_and_remap)
    assert reader.read() is None
    slot.complete()
    assert reader.read() is not None


def test_without_room_the_slot_stays_as_it_was(slot: Slot):
    record = TensorRecord("/big", "uint8", (1_000_000,), 1_000_000)
    with room_for(100_000), pytest.raises(OSError, match="too large"):
        slot.begin(VERSION, None, [record])
    assert slot.state is SlotState.FREE
    fill(slot)


def _write_and_die(path: Path, *, whole: bool) -> None:
    slot = Slot(path)
    if whole:
        fill(slot)
    else:
        slot.begin(VERSION, SKELETON, TENSORS)[0][:30] = PAYLOADS[0][:30]
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize("whole", [True, False])
def test_a_snapshot_outlives_its_writer_if_it_was_whole(slot: Slot, *, whole: bool):
    context = multiprocessing.get_context("spawn")
    writer = context.Process(target=_write_and_die, args=(slot.path,), kwargs={"whole": whole})
    writer.start()
    writer.join(timeout=60.0)
    assert writer.exitcode == -signal.SIGKILL
    snapshot = slot.read()
    if whole:
        assert snapshot is not None
        assert bytes(snapshot.payloads[0]) == PAYLOADS[0]
    else:
        assert snapshot is None
        slot.free()  # as the Keeper does
        fill(slot)


def test_a_cut_file_is_damage(slot: Slot):
    fill(slot)
    os.truncate(slot.path, 4096)
    with pytest.raises(StateError, match="got 4096 bytes, expected"):
        Slot(slot.path).read()


@pytest.mark.parametrize(
    "text",
    [b"{}", b"\xff", b"[" * 4000, b'{"purpose":0,"skeleton":0,"tensors":[["","",[],1e999]]}'],
)
def test_a_description_that_is_none_is_damage(slot: Slot, text: bytes):
    fill(slot)
    with slot.path.open("r+b") as file:
        file.seek(4096)
        file.write(text)
        file.seek(5 * 8)
        file.write(len(text).to_bytes(8, "little"))
    with pytest.raises(StateError, match="got no description"):
        slot.read()


def num_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_without_room_for_its_first_page_a_slot_leaves_nothing_behind(tmp_path: Path):
    path = tmp_path / "slot0.snapshot"
    before = num_descriptors()
    with room_for(100), pytest.raises(OSError, match="too large"):
        Slot(path)
    assert num_descriptors() == before
    assert not path.exists()
    path.touch()
    with room_for(100), pytest.raises(OSError, match="too large"):
        Slot(path, create=False)
    assert num_descriptors() == before
    assert path.exists(), "another made it"


def test_only_one_writes_at_a_time_and_who_has_it_not_cannot_free_it(slot: Slot):
    with slot.writing():
        view = slot.begin(VERSION, SKELETON, TENSORS)[0]
        assert not slot.take(), "nor in the same process, by the same mapping"
        assert not Slot(slot.path).take()
        with pytest.raises(StateError, match="in use"), slot.writing():
            pass
        assert slot.state is SlotState.WRITING
        view[:] = PAYLOADS[0]
        slot.complete(for_storage=False)
    assert slot.version == VERSION
    assert slot.take()


def test_what_a_writer_leaves_unfinished_is_forgotten(slot: Slot):
    with slot.writing():
        slot.begin(VERSION, SKELETON, TENSORS)
    assert slot.state is SlotState.FREE
    fill(slot)
    with pytest.raises(StateError, match="got a READY slot"), slot.writing():
        pass
    assert slot.version == VERSION


def test_a_slot_whose_file_was_removed_is_nobody_s_to_take(slot: Slot):
    slot.path.unlink()
    Slot(slot.path)  # another in its place
    assert not slot.is_there
    assert not slot.take()
    with pytest.raises(StateError, match="removed"), slot.writing():
        pass
    assert not slot.discard()
    assert slot.path.exists()


def test_a_closed_slot_touches_no_other_file(slot: Slot, tmp_path: Path):
    fill(slot)
    slot.close()
    with (tmp_path / "other").open("w+b") as other:  # gets the number that has become free
        slot.close()
        os.fstat(other.fileno())
        assert not slot.take()
        assert not slot.discard()
        with pytest.raises(StateError, match="closed"), slot.reading():
            pass
        with pytest.raises(StateError, match="closed"):
            slot.begin(VERSION, SKELETON, TENSORS)
        os.truncate(other.fileno(), 1_000_000)
        assert slot.read() is None
        assert (slot.state, slot.version, slot.is_there) == (SlotState.FREE, None, False)
        assert os.fstat(other.fileno()).st_size == 1_000_000


def test_what_was_read_outlives_the_closing(slot: Slot):
    fill(slot)
    snapshot = slot.read()
    slot.close()
    assert snapshot is not None
    assert tuple(bytes(view) for view in snapshot.payloads) == PAYLOADS


def test_a_worker_discards_what_neither_the_keeper_nor_a_reader_needs(slot: Slot):
    fill(slot)
    reader = Slot(slot.path)
    assert not slot.discard()
    reader.hold()
    with reader.reading():
        assert not slot.discard()
    assert reader.version == VERSION
    assert slot.discard()
    assert not slot.path.exists()
    assert reader.version is None
    assert not reader.is_there
    assert not slot.discard(), "it is gone already"


def test_a_state_that_there_is_not_is_damage_and_its_worker_writes_over_it(slot: Slot):
    fill(slot)
    with slot.path.open("r+b") as file:
        file.seek(8)
        file.write(b"M")
    assert slot.state is SlotState.DAMAGED
    assert slot.version is None
    assert slot.read() is None
    assert slot.take()
    fill(slot)
    assert slot.version == VERSION


def test_what_is_to_be_copied_and_kept_is_known_until_the_slot_is_written_again(slot: Slot):
    fill(slot)
    reader = Slot(slot.path)
    assert (reader.copy_state, reader.kept) == (CopyState.NONE, None)
    slot.want_copy(Version(0, EpochId(0, 0)))
    slot.want_copy(VERSION)
    assert (reader.copy_state, reader.kept) == (CopyState.WANTED, Version(0, EpochId(0, 0)))
    reader.note_copied()
    assert slot.copy_state is CopyState.DONE
    slot.free()
    fill(slot)
    assert (reader.copy_state, reader.kept) == (CopyState.NONE, None)


def test_a_damaged_number_there_asks_for_no_copy(slot: Slot):
    fill(slot)
    with slot.path.open("r+b") as file:
        file.seek(9 * 8)
        file.write(b"M")
    assert slot.copy_state is CopyState.NONE
