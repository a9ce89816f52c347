"""What a coordinator was told is not forgotten, and what it gave away not held against anybody."""

import json
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.crash.life import EPOCH, STEPS, OwnDesk, Place, bring_all, leave_snapshots
from tests.unit.checkpointing.test_sharing import make_snapshot
from trainflow.checkpointing.sharing import Share, ShareReport
from trainflow.checkpointing.store import CheckpointStore
from trainflow.checkpointing.uploader import upload_share
from trainflow.checkpointing.verification import verify
from trainflow.epochs import Version


@pytest.fixture
def place(places: Iterator[Place]) -> Place:
    return next(places)


@pytest.fixture
def store(place: Place) -> CheckpointStore:
    return CheckpointStore(str(place.store))


@pytest.fixture
def desk(place: Place) -> Iterator[OwnDesk]:
    desk = OwnDesk(place, incarnation=1)
    yield desk
    desk.close()


def upload(store: CheckpointStore, step: int, index: int, num_bytes: int) -> ShareReport:
    snapshot = replace(make_snapshot(num_bytes), version=Version(step, EPOCH))
    return upload_share(snapshot, Share(index, 2), store)


def bring(desk: OwnDesk, store: CheckpointStore, step: int, index: int, num_bytes: int) -> None:
    answer = desk.ask(Version(step, EPOCH))
    assert answer is not None
    assert answer.permit is not None
    assert desk.tell(upload(store, step, index, num_bytes), answer.permit) is not False


def test_a_share_that_waits_for_the_others_stays_in_the_store(
    desk: OwnDesk, store: CheckpointStore
):
    """One node is ahead: its share of step 20 is in the store while step 10 is made."""
    bring(desk, store, 10, 0, 150)
    bring(desk, store, 20, 0, 350)
    bring(desk, store, 10, 1, 150)
    bring(desk, store, 20, 1, 350)
    assert store.committed_steps()[-1] == 20
    assert verify(store, 20).flaws == ()


def test_a_permit_of_a_dead_coordinator_makes_no_checkpoint(
    desk: OwnDesk, place: Place, store: CheckpointStore
):
    answer = desk.ask(Version(10, EPOCH))
    assert answer is not None
    assert answer.permit is not None
    report = upload(store, 10, 0, 150)
    second = OwnDesk(place, incarnation=2)
    assert second.tell(report, answer.permit) is False
    assert second.tell(replace(report, share=Share(1, 2)), answer.permit) is False
    assert store.committed_steps() == []
    second.close()


def test_the_next_coordinator_knows_a_checkpoint_that_was_made_but_not_recorded(
    places: Iterator[Place],
):
    """The first one died between the marker and its record; the Keeper brings its share again."""
    place = replace(next(places), num_ranks=1)
    bring_one(place, 1, STEPS[0])
    newest = bring_one(place, 1, STEPS[1])
    assert newest == STEPS[1]
    events = place.record / "events.jsonl"
    lines = events.read_text().splitlines(keepends=True)
    made = max(i for i, line in enumerate(lines) if json.loads(line)["kind"] == "checkpoint")
    events.write_text("".join(lines[:made]))
    assert bring_one(place, 2, STEPS[1]) == STEPS[1]
    assert "checkpoint_failed" not in events.read_text()


def bring_one(place: Place, incarnation: int, step: int) -> int | None:
    """Bring one step to a coordinator; returns what that one goes on from afterwards."""
    desk = OwnDesk(place, incarnation)
    leave_snapshots(place, step)
    bring_all(place, desk)
    desk.close()
    return desk.control.newest.step if desk.control.newest else None


def test_the_next_coordinator_makes_the_checkpoint_that_was_half_reported(
    desk: OwnDesk, place: Place, store: CheckpointStore
):
    class HalfDesk:
        """The first coordinator hears of one share and is gone."""

        def __init__(self) -> None:
            self.desk = desk

        def ask(self, version: Version, share_index: int = 0):
            return self.desk.ask(version, share_index)

        def tell(self, report, permit: str):
            taken = self.desk.tell(report, permit)
            if self.desk is desk:
                self.desk = OwnDesk(place, incarnation=2)
            return taken

        def look(self, version: Version, permit: str):
            return self.desk.look(version, permit)

    leave_snapshots(place, STEPS[0])
    half = HalfDesk()
    bring_all(place, half)
    half.desk.close()
    assert store.committed_steps() == [STEPS[0]]
