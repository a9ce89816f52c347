from pathlib import Path
from typing import Any

import pytest
import torch

from tests.full_disk import room_for
from trainflow.checkpointing.chunks import CHUNK_BYTES
from trainflow.checkpointing.sharing import Share, deal, hash_user_state
from trainflow.checkpointing.snapshot import Snapshot
from trainflow.checkpointing.snapshot_slots import Slot
from trainflow.computation.snapshot_writer import SnapshotWriter
from trainflow.computation.state_tree import unflatten_state
from trainflow.epochs import EpochId, Version

VERSION = Version(7, EpochId(1, 2))
SHARE = Share(1, 2)


def make_tree() -> dict[str, Any]:
    return {
        "weights": torch.arange(12, dtype=torch.float32).reshape(3, 4).t(),
        "half": torch.tensor([1.5, -2.0], dtype=torch.bfloat16),
        "none": torch.zeros(0, 3),
        "flag": torch.tensor([True, False]),
        "scalar": torch.tensor(3.0, dtype=torch.float64),
        "lowest": float("inf"),
        "name": "adam",
    }


def rebuild(snapshot: Snapshot) -> dict[str, Any]:
    tensors: list[torch.Tensor] = []
    for record, payload in zip(snapshot.tensors, snapshot.payloads, strict=True):
        tensor = torch.empty(record.shape, dtype=getattr(torch, record.dtype))
        if record.num_bytes:
            tensor = torch.frombuffer(bytearray(payload), dtype=tensor.dtype).reshape(record.shape)
        tensors.append(tensor)
    return unflatten_state(snapshot.skeleton, tensors)


def read(directory: Path) -> list[Snapshot]:
    found = [Slot(path).read() for path in sorted(directory.glob("*.snapshot"))]
    return [snapshot for snapshot in found if snapshot is not None]


@pytest.fixture
def writer(tmp_path: Path) -> SnapshotWriter:
    return SnapshotWriter(tmp_path, "slot0-1.0")


def test_the_state_is_read_back_as_it_was(writer: SnapshotWriter, tmp_path: Path):
    tree = make_tree()
    assert writer.write(tree, VERSION, SHARE)
    tree["weights"].zero_()
    (snapshot,) = read(tmp_path)
    assert (snapshot.version, snapshot.purpose) == (VERSION, {"share": [1, 2]})
    rebuilt, expected = rebuild(snapshot), make_tree()
    assert rebuilt.keys() == expected.keys()
    for key, value in expected.items():
        if isinstance(value, torch.Tensor):
            assert rebuilt[key].dtype == value.dtype
            assert torch.equal(rebuilt[key], value)
        else:
            assert rebuilt[key] == value


def test_of_what_is_for_storage_alone_only_a_share_is_copied(tmp_path: Path):
    tree = {
        "model": {"large": torch.randint(256, (5 * CHUNK_BYTES + 100,), dtype=torch.uint8)},
        "registered": {"own": torch.ones(3 * CHUNK_BYTES, dtype=torch.uint8)},
    }
    writer = SnapshotWriter(tmp_path, "slot0-1.0", num_slots=1, shares_only=True)
    assert writer.write(tree, VERSION, SHARE)
    (snapshot,) = read(tmp_path)
    assert snapshot.purpose == {"share": [1, 2], "is_partial": True}
    large, own = (bytes(payload) for payload in snapshot.payloads)
    expected = tree["model"]["large"].numpy().tobytes()
    for number, start in enumerate(range(0, len(expected), CHUNK_BYTES)):
        part = slice(start, start + CHUNK_BYTES)
        assert large[part] == (expected[part] if number % 2 else bytes(len(expected[part])))
    assert own == bytes([1]) * (3 * CHUNK_BYTES), "it is compared between ranks as a whole"
    whole = SnapshotWriter(tmp_path / "whole", "slot0-1.0")
    assert whole.write(tree, VERSION, SHARE)
    dealt = [dict(deal(each, SHARE)) for each in (snapshot, *read(tmp_path / "whole"))]
    assert dealt[0] == dealt[1]
    assert hash_user_state(snapshot, SHARE) == hash_user_state(*read(tmp_path / "whole"), SHARE)


def version(step: int) -> Version:
    return Version(step, EpochId(1, 1))


def test_when_every_slot_is_in_use_a_snapshot_is_left_out_and_says_why(tmp_path: Path):
    writer = SnapshotWriter(tmp_path, "slot0-1.0", num_slots=2)
    taken = [writer.write(make_tree(), version(step), SHARE) for step in range(3)]
    assert taken == [True, True, False]
    assert writer.trouble.startswith("got every slot in use")
    assert writer.is_busy
    Slot(tmp_path / "slot0-1.0.0.snapshot").hold()
    assert writer.write(make_tree(), version(9), SHARE)
    assert sorted(snapshot.version.step for snapshot in read(tmp_path)) == [1, 9]


def test_the_newest_is_never_written_over_and_no_more_memory_taken_than_needed(
    writer: SnapshotWriter, tmp_path: Path
):
    for step in range(1, 7):
        assert writer.write(make_tree(), version(step), None)
        held = [snapshot.version.step for snapshot in read(tmp_path)]
        assert sorted(held) == list(range(max(1, step - 1), step + 1))
    assert not writer.is_busy


def test_what_is_being_read_or_uploaded_stays(writer: SnapshotWriter, tmp_path: Path):
    writer.write(make_tree(), version(1), SHARE)
    writer.write(make_tree(), version(2), None)
    with Slot(tmp_path / "slot0-1.0.1.snapshot").reading():
        for step in range(3, 7):
            assert writer.write(make_tree(), version(step), None)
        kept = {snapshot.version.step for snapshot in read(tmp_path)}
        assert kept == {1, 2, 5, 6}
    writer.write(make_tree(), version(7), None)
    assert {snapshot.version.step for snapshot in read(tmp_path)} == {1, 7, 5, 6}


def test_one_slot_is_used_again_and_again(tmp_path: Path):
    writer = SnapshotWriter(tmp_path, "slot0-1.0", num_slots=1)
    for step in (1, 2):
        assert writer.write(make_tree(), version(step), SHARE)
        assert not writer.write(make_tree(), version(9), None)
        Slot(tmp_path / "slot0-1.0.0.snapshot").hold()


def test_without_memory_a_snapshot_is_left_out_and_training_goes_on(
    writer: SnapshotWriter, tmp_path: Path
):
    tree = make_tree() | {"large": torch.zeros(100_000)}
    with room_for(50_000):
        assert not writer.write(tree, VERSION, SHARE)
    assert "enlarge /dev/shm" in writer.trouble
    assert read(tmp_path) == []
    assert writer.write(tree, VERSION, SHARE)


def test_a_rank_that_copies_no_more_gives_its_memory_back(writer: SnapshotWriter, tmp_path: Path):
    writer.write(make_tree(), version(1), SHARE)
    writer.write(make_tree(), version(2), None)
    writer.discard()
    assert [snapshot.version.step for snapshot in read(tmp_path)] == [1], "it goes to storage"
    assert writer.is_busy
    assert writer.write(make_tree(), version(3), None)
    assert {snapshot.version.step for snapshot in read(tmp_path)} == {1, 3}


def test_slots_that_were_removed_are_made_anew(writer: SnapshotWriter, tmp_path: Path):
    assert writer.write(make_tree(), version(1), None)
    for path in tmp_path.glob("*.snapshot"):
        path.unlink()
    assert writer.write(make_tree(), version(2), None)
    assert [snapshot.version.step for snapshot in read(tmp_path)] == [2]


def test_a_state_that_can_t_be_kept_is_left_out_and_training_goes_on(
    writer: SnapshotWriter, tmp_path: Path
):
    assert not writer.write(make_tree() | {"names": {"a", "b"}}, VERSION, SHARE)
    assert writer.trouble.startswith("state at /names: got set; expected tensors")
    assert read(tmp_path) == []
    assert writer.write(make_tree(), VERSION, SHARE)
