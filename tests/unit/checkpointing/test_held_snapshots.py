"""What a node holds in memory, who may write over it, and when it goes."""

from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.unit.checkpointing.snapshots import SIZES, leave, payload, version
from tests.unit.coordination.fakes import FakeClock
from trainflow.checkpointing import held_snapshots
from trainflow.checkpointing.chunks import name_of
from trainflow.checkpointing.held_snapshots import HeldSnapshots
from trainflow.checkpointing.snapshot import Snapshot
from trainflow.checkpointing.snapshot_slots import CopyState, Slot, SlotState
from trainflow.epochs import EpochId, Version
from trainflow.errors import StateError

OWNER, OTHER = "slot0-1.0", "slot1-1.1"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def held(tmp_path: Path, clock: FakeClock) -> HeldSnapshots:
    return HeldSnapshots(tmp_path, clock)


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


def test_while_one_for_storage_is_read_its_worker_does_not_write_over_it(
    held: HeldSnapshots, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    leave(tmp_path, OWNER, 1, for_storage=True)
    (path,) = tmp_path.glob("*.snapshot")
    read, taken = Slot.read, list[bool]()

    def deal_with_it_and_read(slot: Slot) -> Snapshot | None:
        Slot(path).hold()  # another thread has brought it to the store
        taken.append(Slot(path).take())
        return read(slot)

    monkeypatch.setattr(Slot, "read", deal_with_it_and_read)
    ((_, snapshot),) = held.find_ready()
    assert (snapshot.version, taken) == (version(1), [False])
    assert Slot(path).take()


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


def receive(held: HeldSnapshots, of: Version, origin: str = "nodeA") -> None:
    with held.writing_copy(origin) as slot:
        slot.begin(of, {}, [])
        slot.complete(for_storage=False)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_copies_take_turns_so_that_one_is_always_whole(held: HeldSnapshots, tmp_path: Path):
    for step in (1, 2, 3):
        with held.writing_copy("nodeA") as slot:
            slot.begin(version(step), {}, [])
            assert held.newest() == (version(step - 1) if step > 1 else None)
            slot.complete(for_storage=False)
    assert held.newest() == version(3)
    assert names(tmp_path) == ["copy-nodeA.0.snapshot", "copy-nodeA.1.snapshot"]


def test_a_node_that_sends_keeps_its_slots_and_one_that_is_gone_what_is_needed(
    held: HeldSnapshots, tmp_path: Path, clock: FakeClock
):
    for step in (1, 2, 3):
        receive(held, version(step))
    held.tidy(version(4))
    assert len(names(tmp_path)) == 2, "the next copy finds the room reserved"
    clock.now_s += 61.0
    held.tidy(version(3))
    assert names(tmp_path) == ["copy-nodeA.0.snapshot"]
    held.tidy(version(4))
    assert names(tmp_path) == []


def test_what_a_gone_node_left_unfinished_goes_even_if_the_keeper_began_anew(
    held: HeldSnapshots, tmp_path: Path, clock: FakeClock
):
    with held.writing_copy("nodeA") as slot:
        slot.begin(version(3), {}, [])
    Slot(tmp_path / "copy-nodeB.0.snapshot").begin(version(3), {}, [])  # its Keeper died
    anew = HeldSnapshots(tmp_path, clock)
    for each in (held, anew):
        each.tidy(None)
    assert len(names(tmp_path)) == 3, "their nodes may still send"
    clock.now_s += 61.0
    anew.tidy(None)
    assert names(tmp_path) == []


def test_the_copy_that_arrives_is_not_tidied_away(
    held: HeldSnapshots, tmp_path: Path, clock: FakeClock
):
    with held.writing_copy("nodeA") as slot:
        slot.begin(version(5), {}, [])
        clock.now_s += 61.0
        held.tidy(version(9))
        anew = HeldSnapshots(tmp_path, clock)
        clock.now_s += 61.0
        anew.tidy(version(9))  # knows of no sender, but finds the lock
        slot.complete(for_storage=False)
    assert held.newest() == version(5)


def test_what_was_written_since_it_was_looked_at_is_not_tidied_away(
    held: HeldSnapshots, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
):
    receive(held, version(1))
    clock.now_s += 61.0
    alone = Slot.alone

    def write_first(slot: Slot) -> AbstractContextManager[None]:
        monkeypatch.setattr(Slot, "alone", alone)
        slot.free()
        slot.begin(version(5), {}, [])
        slot.complete(for_storage=False)
        return slot.alone()

    monkeypatch.setattr(Slot, "alone", write_first)
    held.tidy(version(3))
    assert held.newest() == version(5)


def test_what_is_read_is_not_tidied_away(held: HeldSnapshots, tmp_path: Path):
    leave(tmp_path, OWNER, 3)
    die(tmp_path, OWNER)
    with held.reading(version(3)):
        held.tidy(version(9))
        assert held.newest() == version(3)
    held.tidy(version(9))
    assert held.newest() is None


def test_two_connections_of_one_node_write_to_two_slots_and_a_third_is_refused(
    held: HeldSnapshots,
):
    with held.writing_copy("nodeA") as first, held.writing_copy("nodeA") as second:
        assert first.path != second.path
        with pytest.raises(StateError, match="every slot in use"), held.writing_copy("nodeA"):
            pass
        for step, slot in ((2, second), (1, first)):
            slot.begin(version(step), {}, [])
            slot.complete(for_storage=False)
    with held.writing_copy("nodeA") as slot:
        assert slot.path == first.path
        with pytest.raises(StateError, match="every slot in use"), held.writing_copy("nodeA"):
            pass
    assert held.newest() == version(2), "the newest is never written over"


def test_a_slot_whose_file_is_gone_is_made_anew(held: HeldSnapshots, tmp_path: Path):
    receive(held, version(1))
    receive(held, version(2))
    for path in tmp_path.iterdir():
        path.unlink()
    receive(held, version(3))
    assert held.newest() == version(3)
    (path,) = [path for path in tmp_path.iterdir() if Slot(path).version]
    assert Slot(path).version == version(3)


def test_a_copy_that_arrives_once_the_job_is_over_leaves_no_file(
    held: HeldSnapshots, tmp_path: Path
):
    receive(held, version(1))
    held.take_no_more()
    for path in tmp_path.iterdir():
        path.unlink()
    with pytest.raises(StateError, match="the job is over"):
        receive(held, version(2))
    assert names(tmp_path) == []


def test_a_history_that_was_given_up_hides_no_newer_one(
    held: HeldSnapshots, tmp_path: Path, clock: FakeClock
):
    given_up, now = version(100), Version(90, EpochId(1, 5))
    ready = leave(tmp_path, OWNER, 100, for_storage=True)
    receive(held, given_up)
    receive(held, now)
    assert held.newest() == now
    with held.writing_copy("nodeA") as slot:
        assert slot.version is None
        assert held.newest() == now
    receive(held, given_up, "nodeB")
    ready.hold()
    die(tmp_path, OWNER)
    clock.now_s += 61.0
    held.tidy(now)
    assert names(tmp_path) == ["copy-nodeA.1.snapshot"]


def test_uploads_go_in_the_order_in_which_states_came_about(held: HeldSnapshots, tmp_path: Path):
    later = leave(tmp_path, OWNER, 90, for_storage=True)
    leave(tmp_path, OTHER, 100, for_storage=True)
    later.hold()
    assert later.take()
    later.begin(Version(90, EpochId(1, 5)), {}, [])
    later.complete()
    assert [each.version.step for _, each in held.find_ready()] == [100, 90]


def test_a_slot_in_no_state_that_there_is_is_left_out_and_said_once(
    held: HeldSnapshots, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    said: list[str] = []
    monkeypatch.setattr(
        held_snapshots.logger, "warning", lambda text, *values: said.append(text % values)
    )
    damaged = leave(tmp_path, OWNER, 4)
    leave(tmp_path, OTHER, 3)
    with damaged.path.open("r+b") as file:
        file.seek(8)
        file.write(b"M")
    assert {held.newest() for _ in range(3)} == {version(3)}
    assert held.find_ready() == []
    assert said == [f"{damaged.path} is left out: it is in no state that there is"]
    die(tmp_path, OWNER)
    held.tidy(None)
    assert not damaged.path.exists()


def test_what_is_no_slot_is_left_out(held: HeldSnapshots, tmp_path: Path):
    damaged = leave(tmp_path, OWNER, 4, for_storage=True)
    with damaged.path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xff" * 20)
    leave(tmp_path, OTHER, 3, for_storage=True)
    assert [each.version.step for _, each in held.find_ready()] == [3]


def test_that_a_copy_has_arrived_is_not_noted_of_what_its_worker_writes_over(
    held: HeldSnapshots, tmp_path: Path
):
    """Else what is written then would never set out."""
    slot = leave(tmp_path, OWNER, 3)
    slot.want_copy()
    with slot.alone():
        held.note_copied(version(3), slot.shard)
        assert slot.copy_state is CopyState.WANTED
    held.note_copied(version(3), slot.shard)
    assert slot.copy_state is CopyState.DONE
