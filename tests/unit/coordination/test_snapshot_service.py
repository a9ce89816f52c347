"""A Keeper brings to storage what its workers leave, whatever the store does."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.unit.coordination.fakes import FakeClock
from trainflow.checkpointing import chunks as chunking
from trainflow.checkpointing.held_snapshots import HeldSnapshots
from trainflow.checkpointing.sharing import ShareReport
from trainflow.checkpointing.snapshot import TensorRecord
from trainflow.checkpointing.snapshot_slots import Slot, SlotState
from trainflow.checkpointing.store import CheckpointStore
from trainflow.coordination.messages import ShareFailed, UploadAnswer
from trainflow.coordination.snapshot_service import SnapshotService
from trainflow.epochs import EpochId, Version
from trainflow.errors import CheckpointError, UnreachableError


class PatientClock(FakeClock):
    """Time passes only while somebody sleeps."""

    def __init__(self) -> None:
        super().__init__()
        self.naps_s: list[float] = []
        self.on_nap = lambda: None

    def sleep(self, duration_s: float) -> None:
        self.naps_s.append(duration_s)
        self.now_s += duration_s
        self.on_nap()


class Desk:
    """A coordinator that is absent for the first few calls."""

    def __init__(self) -> None:
        self.absences = 0
        self.looks: list[bool | None] = []
        self.looked: list[tuple[int, str]] = []
        self.answers: list[UploadAnswer] = []
        self.void: set[str] = set()
        self.asked: list[int] = []
        self.taken: list[ShareReport | ShareFailed] = []

    def ask(self, version: Version, share_index: int = 0) -> UploadAnswer:
        self.asked.append(version.step)
        answer = UploadAnswer(wanted=True, permit=f"p{len(self.asked)}")
        return self.answers.pop(0) if self.answers else answer

    def tell(self, report: ShareReport | ShareFailed, permit: str) -> bool | None:
        if self.absences:
            self.absences -= 1
            raise UnreachableError("nobody there")
        if permit in self.void:
            return False
        self.taken.append(report)
        return None if self.looks else True

    def look(self, version: Version, permit: str) -> bool | None:
        self.looked.append((version.step, permit))
        return self.looks.pop(0)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "node"
    folder.mkdir()
    return folder


@pytest.fixture
def desk() -> Desk:
    return Desk()


@pytest.fixture
def clock() -> PatientClock:
    return PatientClock()


@pytest.fixture
def service(tmp_path: Path, folder: Path, desk: Desk, clock: PatientClock) -> SnapshotService:
    url = str(tmp_path / "store")
    return SnapshotService(HeldSnapshots(folder), url, desk, clock, give_up_after_s=20.0)


def leave(folder: Path, worker_id: str, step: int, number: int = 0) -> Slot:
    """Leave a snapshot as a worker does that lives."""
    (folder / f"{worker_id}.stamp").touch()
    slot = Slot(folder / f"{worker_id}.{number}.snapshot")
    record = TensorRecord("/w", "uint8", (5,), 5)
    skeleton = {"tensor": 0}
    (view,) = slot.begin(Version(step, EpochId(1, 1)), skeleton, [record], {"share": [0, 1]})
    view[:] = bytes(range(step, step + 5))
    slot.complete()
    return slot


def finish(service: SnapshotService, slot: Slot, clock: PatientClock) -> None:
    """Go on until the slot is given back, as `run` does."""
    for _ in range(200):
        if not service.work_once():
            clock.sleep(0.5)
        if slot.state is SlotState.HELD:
            return
    raise AssertionError("the slot is not given back")


def test_what_is_left_is_brought_to_the_store_oldest_first(
    service: SnapshotService, folder: Path, desk: Desk, tmp_path: Path
):
    later, earlier = leave(folder, "slot0-1.0", 9, 1), leave(folder, "slot1-1.1", 8)
    assert service.work_once()
    assert not service.work_once()
    assert [report.version.step for report in desk.taken] == [8, 9]
    assert later.state is earlier.state is SlotState.HELD
    assert len(list(CheckpointStore(str(tmp_path / "store")).chunk_ids())) == 2


def test_a_slot_is_kept_until_the_coordinator_has_heard(
    service: SnapshotService, folder: Path, desk: Desk, clock: PatientClock
):
    slot = leave(folder, "slot0-1.0", 9)
    desk.absences = 3
    states: list[SlotState] = []
    clock.on_nap = lambda: states.append(slot.state)
    finish(service, slot, clock)
    assert states == [SlotState.READY] * 3
    assert desk.asked == [9], "what is told again is not uploaded again"


def test_a_report_that_was_heard_is_not_sent_again(
    service: SnapshotService, folder: Path, desk: Desk, clock: PatientClock
):
    """It may be large, and another share may be missing for long."""
    slot = leave(folder, "slot0-1.0", 9)
    desk.looks = [None, None, True]
    finish(service, slot, clock)
    assert len(desk.taken) == 1
    assert desk.looked == [(9, "p1")] * 3
    assert desk.asked == [9]


def test_what_another_coordinator_knows_nothing_of_is_brought_again(
    service: SnapshotService, folder: Path, desk: Desk, clock: PatientClock
):
    slot = leave(folder, "slot0-1.0", 9)
    desk.looks = [None, False]
    finish(service, slot, clock)
    assert desk.asked == [9, 9]
    assert len(desk.taken) == 2


def test_what_waits_for_others_holds_nothing_up(
    service: SnapshotService, folder: Path, desk: Desk, clock: PatientClock
):
    first, second = leave(folder, "slot0-1.0", 8), leave(folder, "slot1-1.1", 9)
    desk.absences = 1
    service.work_once()
    assert (first.state, second.state) == (SlotState.READY, SlotState.HELD)
    assert not service.work_once(), "it is spoken of again only after a while"
    finish(service, first, clock)
    assert [report.version.step for report in desk.taken] == [9, 8]


def test_nothing_is_uploaded_before_there_is_a_permit(
    service: SnapshotService, folder: Path, desk: Desk, clock: PatientClock, tmp_path: Path
):
    slot = leave(folder, "slot0-1.0", 9)
    desk.answers = [UploadAnswer(wanted=True)] * 2
    clock.on_nap = lambda: found.append(list((tmp_path / "store").glob("chunks/*/*")))
    found: list[list[Path]] = []
    finish(service, slot, clock)
    assert found == [[], []]
    assert desk.asked == [9, 9, 9]
    assert slot.state is SlotState.HELD


def test_what_nobody_wants_any_more_is_dropped(
    service: SnapshotService, folder: Path, desk: Desk, tmp_path: Path
):
    slot = leave(folder, "slot0-1.0", 9)
    desk.answers = [UploadAnswer(wanted=False)]
    service.work_once()
    assert slot.state is SlotState.HELD
    assert not desk.taken
    assert not (tmp_path / "store").exists()


def test_a_share_whose_permit_is_void_is_brought_again(
    service: SnapshotService, folder: Path, desk: Desk, clock: PatientClock
):
    """Another coordinator has come, and what was uploaded may have been removed again."""
    slot = leave(folder, "slot0-1.0", 9)
    desk.void = {"p1"}
    finish(service, slot, clock)
    assert desk.asked == [9, 9]
    assert len(desk.taken) == 1


def test_a_store_that_is_down_for_a_while_is_tried_again_less_and_less_often(
    service: SnapshotService, folder: Path, desk: Desk, clock: PatientClock, monkeypatch
):
    failures = [4]
    write = CheckpointStore.write_chunk

    def write_if_up(*args) -> None:
        if failures[0]:
            failures[0] -= 1
            raise CheckpointError("503")
        write(*args)

    monkeypatch.setattr(CheckpointStore, "write_chunk", write_if_up)
    leave(folder, "slot0-1.0", 9)
    service.work_once()
    assert isinstance(desk.taken[0], ShareReport)
    assert clock.naps_s == [0.5, 1.0, 2.0, 4.0]


def test_a_store_that_stays_down_costs_this_checkpoint_only(
    service: SnapshotService, folder: Path, desk: Desk, clock: PatientClock, monkeypatch
):
    def refuse(*args) -> None:
        raise CheckpointError("the bucket is gone")

    monkeypatch.setattr(CheckpointStore, "write_chunk", refuse)
    slot = leave(folder, "slot0-1.0", 9)
    service.work_once()
    failed = desk.taken[0]
    assert isinstance(failed, ShareFailed)
    assert failed.reason == "the bucket is gone"
    assert sum(clock.naps_s) <= 20.0
    assert slot.state is SlotState.HELD


def trickle(clock: PatientClock, num_tries: int) -> Callable[..., None]:
    """Return `write_chunk` of a store that takes a chunk in 15 s, and no other of the same try."""
    served: list[CheckpointStore] = []
    lock, write = threading.Lock(), CheckpointStore.write_chunk

    def write_one(store: CheckpointStore, *chunk: Any) -> None:
        with lock:
            if len(served) == num_tries or store in served:
                raise CheckpointError("503")
            served.append(store)
            clock.now_s += 15.0
        write(store, *chunk)

    return write_one


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunking, "CHUNK_BYTES", 1)


@pytest.mark.usefixtures("small_chunks")
def test_a_share_is_not_given_up_while_something_new_gets_through(
    service: SnapshotService, folder: Path, desk: Desk, clock: PatientClock, monkeypatch
):
    began_s = clock.now_s
    monkeypatch.setattr(CheckpointStore, "write_chunk", trickle(clock, num_tries=5))
    leave(folder, "slot0-1.0", 9)
    service.work_once()
    (report,) = desk.taken
    assert isinstance(report, ShareReport)
    assert len(report.chunks) == 5
    assert clock.now_s - began_s > 75.0


@pytest.mark.usefixtures("small_chunks")
def test_a_share_is_given_up_once_nothing_new_has_got_through_for_long(
    service: SnapshotService, folder: Path, desk: Desk, clock: PatientClock, monkeypatch
):
    began_s = clock.now_s
    monkeypatch.setattr(CheckpointStore, "write_chunk", trickle(clock, num_tries=2))
    leave(folder, "slot0-1.0", 9)
    service.work_once()
    assert isinstance(desk.taken[0], ShareFailed)
    assert 30.0 + 10.0 < clock.now_s - began_s <= 30.5 + 20.0


def test_an_error_nobody_thought_of_costs_this_checkpoint_only(
    service: SnapshotService, folder: Path, desk: Desk, clock: PatientClock, monkeypatch
):
    def fail(*args) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(CheckpointStore, "write_chunk", fail)
    slot = leave(folder, "slot0-1.0", 9)
    finish(service, slot, clock)
    (failed,) = desk.taken
    assert isinstance(failed, ShareFailed)
    assert failed.reason == "RuntimeError: can't start new thread"
    assert clock.naps_s[:4] == [0.5, 1.0, 2.0, 4.0]


def test_a_slot_is_given_back_though_its_report_can_not_be_sent(
    service: SnapshotService, folder: Path, desk: Desk, clock: PatientClock, monkeypatch
):
    told: list[type] = []

    def fail(report, permit) -> None:
        told.append(type(report))
        raise TypeError("can't be pickled")

    monkeypatch.setattr(desk, "tell", fail)
    finish(service, leave(folder, "slot0-1.0", 9), clock)
    assert told == [ShareReport] * 4 + [ShareFailed] * 4, "every ten seconds, for more than twenty"


def test_a_damaged_slot_holds_nothing_up(service: SnapshotService, folder: Path, desk: Desk):
    damaged = leave(folder, "slot0-1.0", 8)
    with damaged.path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 20)
    leave(folder, "slot1-1.1", 9)
    service.work_once()
    assert [report.version.step for report in desk.taken] == [9]


def test_what_holds_a_share_alone_is_forgotten_once_that_is_brought(
    folder: Path, service: SnapshotService
):
    """Nobody could begin from it."""
    slot = leave(folder, "w1", 5)
    snapshot = slot.read()
    assert snapshot is not None
    slot.free()
    purpose = {"share": [0, 1], "is_partial": True}
    slot.begin(snapshot.version, snapshot.skeleton, snapshot.tensors, purpose)
    slot.complete()
    while slot.state is SlotState.READY:
        assert service.work_once()
    assert slot.state is SlotState.FREE
    assert HeldSnapshots(folder).newest() is None
