"""What error feedback of a dead worker has left: found, read, served, and removed in time."""

import os
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from trainflow.checkpointing import residual_file
from trainflow.checkpointing.held_residuals import HeldResiduals
from trainflow.checkpointing.held_snapshots import HeldSnapshots
from trainflow.checkpointing.residual_client import fetch_part, list_parts
from trainflow.checkpointing.residual_file import PartId, ResidualFile, find_part, read_part
from trainflow.checkpointing.snapshot_server import SnapshotServer
from trainflow.checkpointing.wire import FRAME_BYTES
from trainflow.epochs import INITIAL_EPOCH, EpochId, PeerAddress, Version
from trainflow.errors import StateError

VERSION = Version(7, EpochId(1, 2))
PART = PartId(VERSION, INITIAL_EPOCH, 3, 1)
CONTENT = bytes(range(256)) * 4


def leave(folder: Path, name: str = "w1.0", part: PartId = PART) -> ResidualFile:
    """Write a part as a worker does."""
    file = ResidualFile(folder / f"{name}.residual", len(CONTENT) // 4)
    file.enter(part.version.epoch)
    file.payload[:] = CONTENT
    file.complete(part)
    return file


def test_a_part_is_its_numbers():
    part = PartId(Version(5, EpochId(1, 2)), EpochId(3, 4), 6, 5)
    assert part.pack() == (5, 1, 2, 3, 4, 6, 5)
    assert PartId.unpack(part.pack()) == part


def test_what_a_worker_left_whole_is_found(tmp_path):
    leave(tmp_path)
    left = find_part(tmp_path / "w1.0.residual")
    assert left is not None
    assert left.part == PART
    assert bytes(read_part(left)) == CONTENT


def test_what_is_being_written_is_not(tmp_path):
    file = leave(tmp_path)
    left = find_part(tmp_path / "w1.0.residual")
    file.clear()
    assert find_part(tmp_path / "w1.0.residual") is None
    assert left is not None
    with pytest.raises(StateError, match="got another part"):
        read_part(left)


def test_a_new_file_is_zero_and_not_whole(tmp_path):
    leave(tmp_path)
    file = ResidualFile(tmp_path / "w1.0.residual", 300)
    assert find_part(tmp_path / "w1.0.residual") is None
    assert bytes(file.payload) == bytes(1200)


@pytest.mark.parametrize("content", [b"", b"short", b"x" * 5000])
def test_another_file_is_none(tmp_path, content):
    (tmp_path / "w.0.residual").write_bytes(content)
    assert find_part(tmp_path / "w.0.residual") is None
    assert HeldResiduals(tmp_path).find(VERSION) == []
    assert find_part(tmp_path / "gone.residual") is None


def test_without_room_it_is_refused_with_what_to_change(tmp_path, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(residual_file.os, "posix_fallocate", full)
    with pytest.raises(StateError, match=r"No space left.*two files of 5096 bytes.*error_feedback"):
        ResidualFile(tmp_path / "w1.0.residual", 250)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def keeper(tmp_path: Path):
    with closing(SnapshotServer(HeldSnapshots(tmp_path), "job-1", "127.0.0.1")) as server:
        yield server.address


def test_a_keeper_lists_the_parts_of_a_state(tmp_path: Path, keeper: PeerAddress):
    leave(tmp_path)
    leave(tmp_path, "w1.1", replace(PART, version=Version(6, EpochId(1, 2))))
    leave(tmp_path, "w2.0", replace(PART, rank=2))
    assert list_parts(keeper, VERSION) == [PART, replace(PART, rank=2)]
    assert list_parts(keeper, Version(9, EpochId(1, 2))) == []


def test_a_keeper_gives_a_part(tmp_path: Path, keeper: PeerAddress):
    leave(tmp_path)
    got = bytearray(len(CONTENT))
    fetch_part(keeper, PART, memoryview(got))
    assert got == CONTENT


def test_a_part_of_many_frames_arrives_whole(tmp_path: Path, keeper: PeerAddress):
    size = 2 * FRAME_BYTES + 4000
    file = ResidualFile(tmp_path / "w1.0.residual", size // 4)
    content = os.urandom(size)
    file.payload[:] = content
    file.complete(PART)
    got = bytearray(size)
    fetch_part(keeper, PART, memoryview(got))
    assert got == content


def test_what_a_keeper_has_not_is_refused(tmp_path: Path, keeper: PeerAddress):
    leave(tmp_path)
    with pytest.raises(StateError, match="no residuals"):
        fetch_part(keeper, replace(PART, rank=0), memoryview(bytearray(1024)))


def test_a_part_of_another_model_is_refused(tmp_path: Path, keeper: PeerAddress):
    leave(tmp_path)
    with pytest.raises(StateError, match="got residuals of 1024 bytes, expected 512"):
        fetch_part(keeper, PART, memoryview(bytearray(512)))


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.glob("*.residual")}


def test_what_a_dead_worker_left_stays_until_a_later_epoch_has_committed(tmp_path: Path):
    leave(tmp_path)
    held = HeldResiduals(tmp_path)
    for committed_in in (None, EpochId(1, 1), EpochId(1, 2)):
        held.tidy(committed_in)
        assert names(tmp_path) == {"w1.0.residual"}
    held.tidy(EpochId(1, 3))
    assert names(tmp_path) == set()


def test_what_a_living_worker_has_is_left_alone(tmp_path: Path):
    leave(tmp_path)
    (tmp_path / "w1.stamp").touch()
    HeldResiduals(tmp_path).tidy(EpochId(2, 1))
    assert names(tmp_path) == {"w1.0.residual"}


def test_it_counts_in_which_epoch_the_worker_was_last_and_not_when_it_was_left(tmp_path: Path):
    """A rank's residuals can be of a step long ago: those since were all skipped."""
    file = leave(tmp_path)
    file.enter(EpochId(1, 5))
    HeldResiduals(tmp_path).tidy(EpochId(1, 5))
    assert names(tmp_path) == {"w1.0.residual"}
    HeldResiduals(tmp_path).tidy(EpochId(1, 6))
    assert names(tmp_path) == set()
