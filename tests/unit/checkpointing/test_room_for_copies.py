"""A node whose memory is full refuses a copy, and says what to change."""

import errno
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.full_disk import room_for
from tests.unit.checkpointing.snapshots import SIZES, leave, version
from trainflow.checkpointing.held_snapshots import HeldSnapshots
from trainflow.checkpointing.peer_memory import send_copy
from trainflow.checkpointing.snapshot_server import SnapshotServer
from trainflow.checkpointing.wire import NoRoomError

HOST = "127.0.0.1"


@contextmanager
def no_space() -> Generator[None]:
    """Let nothing be reserved any more, as a full /dev/shm would."""

    def refuse(descriptor: int, offset: int, num_bytes: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "posix_fallocate", refuse)
        yield


@pytest.fixture
def full(tmp_path: Path) -> Generator[SnapshotServer]:
    (tmp_path / "full").mkdir()
    server = SnapshotServer(HeldSnapshots(tmp_path / "full"), "job-1", HOST)
    yield server
    server.close()


def test_a_copy_without_room_is_refused_with_what_to_change(tmp_path: Path, full: SnapshotServer):
    (tmp_path / "here").mkdir()
    here, there = HeldSnapshots(tmp_path / "here"), HeldSnapshots(tmp_path / "full")
    leave(tmp_path / "here", "slot0-1.0", 3)

    def copy() -> None:
        with here.reading(version(3)) as snapshot:
            send_copy(snapshot, full.address, "nodeA", lambda *_: None)

    expected = rf"in /dev/shm of {HOST}, expected room for two copies of {sum(SIZES)} bytes; enl"
    with no_space(), pytest.raises(NoRoomError, match=f"got No space left on device {expected}"):
        copy()  # not even for a first page
    with room_for(100_000), pytest.raises(NoRoomError, match=expected):
        copy()
    assert there.newest() is None
    copy()
    assert there.newest() == version(3)
