"""Copies to other nodes: what is sent, to whom, and how fast."""

from pathlib import Path

import pytest

from tests.full_disk import room_for
from tests.unit.checkpointing.snapshots import leave, version
from tests.unit.coordination.fakes import SleepyClock, free_pace
from trainflow.checkpointing.held_snapshots import HeldSnapshots
from trainflow.checkpointing.snapshot_server import SnapshotServer
from trainflow.checkpointing.wire import NoRoomError
from trainflow.coordination.copy_targets import CopyTargets
from trainflow.coordination.replication import Replicator
from trainflow.epochs import PeerAddress
from trainflow.errors import StateError


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "here").mkdir()
    return tmp_path / "here"


@pytest.fixture
def replicator(here: Path, clock: SleepyClock) -> Replicator:
    return Replicator(HeldSnapshots(here), "nodeA", free_pace(clock), clock)


@pytest.fixture
def there(tmp_path: Path):
    held = HeldSnapshots(tmp_path / "there")
    (tmp_path / "there").mkdir()
    server = SnapshotServer(held, "job-1", "127.0.0.1")
    yield held, server.address
    server.close()


def test_the_newest_is_sent_once_and_what_lies_between_is_left_out(
    replicator: Replicator, here: Path, there: tuple[HeldSnapshots, PeerAddress]
):
    held, address = there
    assert not replicator.work_once(), "nobody is to have a copy"
    replicator.send_to(CopyTargets((address,)))
    assert not replicator.work_once(), "there is nothing to send"
    leave(here, "slot0-1.0", 3)
    assert replicator.work_once()
    assert held.newest() == version(3)
    assert not replicator.work_once()
    leave(here, "slot0-1.0", 4, 1)
    leave(here, "slot0-1.0", 5, 2)
    assert replicator.work_once()
    assert held.newest() == version(5)
    replicator.send_to(CopyTargets())
    leave(here, "slot0-1.0", 6)
    assert not replicator.work_once()


def test_a_node_that_is_gone_keeps_no_other_from_its_copy(
    replicator: Replicator, here: Path, there: tuple[HeldSnapshots, PeerAddress]
):
    held, address = there
    gone = PeerAddress("127.0.0.1", 9, "token")
    replicator.send_to(CopyTargets((gone, address)))
    leave(here, "slot0-1.0", 3)
    with pytest.raises(OSError, match="refused"):
        replicator.work_once()
    assert held.newest() == version(3)


def test_why_a_node_has_no_room_is_known_until_it_has(
    replicator: Replicator, here: Path, there: tuple[HeldSnapshots, PeerAddress]
):
    held, address = there
    replicator.send_to(CopyTargets((address,)))
    leave(here, "slot0-1.0", 3)
    with room_for(100_000), pytest.raises(NoRoomError):
        replicator.work_once()
    assert replicator.trouble is not None
    assert "enlarge" in replicator.trouble
    replicator.send_to(CopyTargets((PeerAddress("127.0.0.1", 9, "token"),)))
    with pytest.raises(OSError, match="refused"):
        replicator.work_once()
    assert replicator.trouble is not None, "that another is gone makes no room"
    replicator.send_to(CopyTargets((address,)))
    assert replicator.work_once()
    assert replicator.trouble is None
    assert held.newest() == version(3)


def test_that_a_node_needs_no_copy_is_no_trouble(
    replicator: Replicator, here: Path, there: tuple[HeldSnapshots, PeerAddress], tmp_path: Path
):
    _, address = there
    leave(tmp_path / "there", "slot1-1.0", 4)
    replicator.send_to(CopyTargets((address,)))
    leave(here, "slot0-1.0", 3)
    with pytest.raises(StateError, match="expected a newer one"):
        replicator.work_once()
    assert replicator.trouble is None
