import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from tests.full_disk import room_for
from trainflow.checkpointing.snapshot_slots import Slot, SlotState, TensorRecord
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
