"""What is on a GPU is copied while training goes on, and counts once it is there."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from trainflow.checkpointing.sharing import Share
from trainflow.checkpointing.snapshot_slots import CopyState, Slot, SlotState
from trainflow.computation.device_staging import DeviceStaging, Transfer
from trainflow.computation.snapshot_writer import SnapshotWriter
from trainflow.computation.training_state import TrainingState
from trainflow.epochs import WHOLE, EpochId, Version

ALL = Share(0, 1)
FILL = 7


class FakeStaging:
    """A device whose copies are there when somebody says so, or waits."""

    def __init__(self) -> None:
        self.begun: list[Transfer] = []
        self.num_releases = 0
        self.error: str | None = None
        self._on_done: Callable[[], None] | None = None

    def begin(self, transfers: Sequence[Transfer], on_done: Callable[[], None]) -> None:
        assert self._on_done is None, "one after the other"
        self.begun, self._on_done = list(transfers), on_done

    def wait(self) -> None:
        on_done, self._on_done = self._on_done, None
        assert on_done is not None, "there is something to wait for"
        if self.error is not None:
            raise RuntimeError(self.error)
        for each in self.begun:
            each.view[:] = bytes([FILL]) * each.tensor.nbytes
        on_done()

    def before_overwrite(self) -> None:
        self.num_releases += 1


@pytest.fixture
def staging() -> FakeStaging:
    return FakeStaging()


@pytest.fixture
def writer(tmp_path: Path, staging: FakeStaging) -> SnapshotWriter:
    def make_staging(device: torch.device) -> Any:
        assert device.type == "meta"
        return staging

    return SnapshotWriter(tmp_path, "w", make_staging=make_staging)


def tree() -> dict[str, Any]:
    """Return a state of which a part is not in the host's memory."""
    there = torch.zeros(3, dtype=torch.uint8, device="meta")
    return {
        "models": {"model": {"weight": there}},
        "optimizers": {"model": {"state": {"0": {"average": there, "step": torch.tensor(5)}}}},
    }


def version(step: int) -> Version:
    return Version(step, EpochId(1, 1))


def states(folder: Path) -> list[SlotState]:
    return sorted(Slot(path).state for path in folder.glob("*.snapshot"))


def whole(folder: Path) -> list[int]:
    """Return the steps whose snapshots are whole."""
    versions = [Slot(path).version for path in folder.glob("*.snapshot")]
    return sorted(each.step for each in versions if each is not None)


def test_a_snapshot_counts_once_all_of_it_is_there(
    writer: SnapshotWriter, staging: FakeStaging, tmp_path: Path
):
    assert writer.write(tree(), version(1), None)
    assert whole(tmp_path) == []
    staging.wait()
    assert whole(tmp_path) == [1]
    (snapshot,) = [found for path in tmp_path.glob("*") if (found := Slot(path).read())]
    payloads = [bytes(payload) for payload in snapshot.payloads]
    assert payloads[:2] == [bytes([FILL]) * 3] * 2
    assert int.from_bytes(payloads[2], "little") == 5


def test_what_forward_may_change_is_told_from_what_lasts(
    writer: SnapshotWriter, staging: FakeStaging
):
    assert writer.write(tree(), version(1), None)
    assert [each.is_lasting for each in staging.begun] == [False, True]


def test_the_next_waits_for_the_one_before(writer: SnapshotWriter, tmp_path: Path):
    assert writer.write(tree(), version(1), None)
    assert writer.write(tree(), version(2), None)
    assert whole(tmp_path) == [1]
    assert writer.write(tree(), version(3), None)
    assert 2 in whole(tmp_path), "the newest that is whole is not written over"


def test_one_on_its_way_to_storage_makes_the_store_busy_from_the_start(
    writer: SnapshotWriter, staging: FakeStaging, tmp_path: Path
):
    assert writer.write(tree(), version(1), ALL)
    assert SlotState.READY not in states(tmp_path)
    assert writer.is_busy
    staging.wait()
    assert SlotState.READY in states(tmp_path)
    assert writer.is_busy


def test_a_copy_may_be_wanted_before_all_of_it_is_there(
    writer: SnapshotWriter, staging: FakeStaging, tmp_path: Path
):
    assert writer.write(tree(), version(1), None)
    assert writer.copy_state_of(version(1), WHOLE) is CopyState.NONE, "it is not lost"
    writer.want_copy(version(1), WHOLE, version(0))
    assert writer.copy_state_of(version(1), WHOLE) is CopyState.WANTED
    staging.wait()
    (slot,) = [each for path in tmp_path.glob("*") if (each := Slot(path)).version is not None]
    assert (slot.copy_state, slot.kept) == (CopyState.WANTED, version(0))


def test_a_copy_of_what_fails_is_lost(writer: SnapshotWriter, staging: FakeStaging, tmp_path: Path):
    assert writer.write(tree(), version(1), None)
    writer.want_copy(version(1), WHOLE)
    staging.error = "an illegal memory access was encountered"
    assert not writer.write(tree(), version(2), None)
    assert writer.copy_state_of(version(1), WHOLE) is None
    assert whole(tmp_path) == []


def test_the_last_is_waited_for(writer: SnapshotWriter, tmp_path: Path):
    assert writer.write(tree(), version(1), ALL, patience_s=1.0)
    assert SlotState.READY in states(tmp_path)


def test_one_that_fails_is_told_and_costs_only_itself(
    writer: SnapshotWriter, staging: FakeStaging, tmp_path: Path
):
    assert writer.write(tree(), version(1), None)
    staging.error = "an illegal memory access was encountered"
    assert not writer.write(tree(), version(2), None)
    assert "illegal memory access" in writer.trouble
    staging.error = None
    assert writer.write(tree(), version(3), None, patience_s=1.0)
    assert whole(tmp_path) == [3]


def test_memory_is_given_back_once_nothing_is_copied_to_it(
    writer: SnapshotWriter, staging: FakeStaging, tmp_path: Path
):
    assert writer.write(tree(), version(1), None)
    writer.discard()
    assert list(tmp_path.iterdir()) == []


def test_whoever_changes_the_state_waits_for_the_copy(writer: SnapshotWriter, staging: FakeStaging):
    state = TrainingState(version=version(1), before_overwrite=writer.before_overwrite)
    state.begin_overwrite()
    assert staging.num_releases == 0, "nothing has been copied from there yet"
    assert writer.write(tree(), version(1), None)
    state.begin_overwrite()
    assert staging.num_releases == 1
    assert state.version is None


@pytest.mark.gpu
def test_a_gpu_s_tensors_arrive_as_they_were():
    device = torch.device("cuda")
    early, lasting = (torch.randn(1 << 20, device=device) for _ in range(2))
    expected = [early.cpu(), lasting.cpu()]
    landings = [bytearray(early.nbytes) for _ in range(2)]
    staging, done = DeviceStaging(device), list[int]()
    transfers = [
        Transfer(tensor, memoryview(landing), is_lasting=tensor is lasting)
        for tensor, landing in zip((early, lasting), landings, strict=True)
    ]
    for number in range(3):
        staging.begin(transfers, lambda number=number: done.append(number))
        early.add_(0)  # as a forward that changes it may do at once
        staging.before_overwrite()
        if number == 2:
            early.zero_()
            lasting.zero_()
    staging.wait()
    assert done == [0, 1, 2]
    found = [torch.frombuffer(landing, dtype=torch.float32) for landing in landings]
    assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))


def test_what_is_being_copied_is_whole_once_the_rank_has_settled(
    writer: SnapshotWriter, tmp_path: Path
):
    assert writer.write(tree(), version(1), None)
    writer.settle()
    assert whole(tmp_path) == [1]
    writer.settle()
    assert writer.write(tree(), version(2), None), "the one before is waited for once"


def test_a_copy_that_fails_as_the_rank_settles_counts_for_nothing(
    writer: SnapshotWriter, staging: FakeStaging, tmp_path: Path
):
    assert writer.write(tree(), version(1), None)
    staging.error = "no more room"
    writer.settle()
    assert whole(tmp_path) == []
