"""Whom a node that was cut off has ended by itself is told once, with its rank and why."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.unit.coordination.fakes import FakeClock
from trainflow.coordination.keeper import Heartbeat
from trainflow.coordination.lease import Lease, LeaseEnd
from trainflow.coordination.lease_ends import LEASE_ENDED, LeaseEnds
from trainflow.coordination.run_record import RunRecord

MEMBER, SPARE, OTHER = "slot0-1.0", "slot3-1.3", "slot1-1.1"
END = LeaseEnd((SPARE, MEMBER), at_s=990.5, unheard_s=4.13)


@pytest.fixture
def record(tmp_path: Path) -> RunRecord:
    """Return one of a run with two members."""
    record = RunRecord(tmp_path, FakeClock())
    record.add_event("epoch", "epoch 1.1", members=[OTHER, MEMBER])
    return record


def open_ends(record: RunRecord) -> LeaseEnds:
    nodes: Any = SimpleNamespace(host_of={"a": "10.0.0.1"}.get)
    return LeaseEnds(nodes, record, lease_s=4.0)


def beat(*ends: LeaseEnd, node_id: str = "a") -> Heartbeat:
    return Heartbeat(node_id, {}, knows_peers=True, held=None, lease_ends=ends)


def told(record: RunRecord) -> list[dict[str, Any]]:
    return [each for each in record.events_since(0) if each["kind"] == LEASE_ENDED]


def test_it_is_told_who_was_ended_where_and_why(record: RunRecord):
    record.add_event("failure", "lost", worker=MEMBER, rank=1)
    record.add_event("epoch", "epoch 1.2", members=[OTHER, "slot4-1.4"])
    open_ends(record).hear(beat(END))
    (event,) = told(record)
    assert event["text"] == (
        "node 10.0.0.1 has ended slot0-1.0 (rank 1), slot3-1.3 (spare) itself, so that nobody "
        "trains there beside those who took their ranks: it could reach neither the coordinator "
        "nor most other nodes for 4.1 s, longer than its lease (failures.lease_s = 4)"
    )
    assert event["data"] == {
        "node": "a",
        "host": "10.0.0.1",
        "workers": {MEMBER: 1, SPARE: None},
        "ended_at_s": 990.5,
        "unheard_s": 4.13,
        "is_given_up": False,
    }


def test_a_rank_is_known_also_before_its_loss_is_heard_of(record: RunRecord):
    open_ends(record).hear(beat(END, node_id="b"))
    (event,) = told(record)
    assert event["data"]["workers"] == {MEMBER: 1, SPARE: None}
    assert event["text"].startswith("node b has ended")


def test_one_that_stood_still_is_told_as_such(record: RunRecord):
    open_ends(record).hear(beat(LeaseEnd((MEMBER,), 990.5, 45.0, is_given_up=True)))
    assert told(record)[0]["text"].endswith(
        "it stood still for 45.0 s, longer than its lease (failures.lease_s = 4), and the "
        "coordinator had given it up by then"
    )


def test_what_is_heard_again_is_told_once_by_all_coordinators(record: RunRecord):
    later = LeaseEnd((OTHER,), at_s=999.0, unheard_s=4.2)
    for beats in ([beat(END)] * 2, [beat(END, later), beat(END, later), beat()]):
        known = RunRecord(record.directory, FakeClock())
        ends = open_ends(known)
        for each in beats:
            ends.hear(each)
    assert [each["data"]["ended_at_s"] for each in told(known)] == [990.5, 999.0]


def test_a_lease_that_ends_nobody_leaves_nothing_to_tell():
    lease = Lease(10.0, now_s=0.0)
    lease.note_end((), 10.5, 10.5, 1000.0)
    assert lease.untold == ()


def test_only_what_was_told_is_told_no_more():
    lease = Lease(10.0, now_s=0.0)
    lease.note_end((MEMBER,), 10.5, 10.5, 1000.0)
    sent = lease.untold
    lease.note_end((SPARE,), 11.0, 11.0, 1000.5)
    lease.note_told(sent)
    assert lease.untold == (LeaseEnd((SPARE,), 1000.5, 11.0),)
