"""Where workers are reached, as a coordinator leaves it to the next one."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.unit.coordination.fakes import FakeClock, describe
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.worker_contacts import WorkerContacts
from trainflow.epochs import EpochId, EpochSpec

SPEC = EpochSpec(EpochId(1, 3), ("a",), "127.0.0.1", 1)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "workers.jsonl"


def test_the_next_coordinator_knows_what_does_not_change(path: Path):
    contacts = WorkerContacts(path)
    told = describe("a", spec=SPEC, has_begun=True, failure="connection reset")
    contacts.note(replace(told, node_labels={"rack": "r1"}, presence_port=40001))
    for each in (contacts, WorkerContacts(path)):
        expected = replace(describe("a"), node_labels={"rack": "r1"}, presence_port=40001)
        assert each.find("a") == expected
        assert each.find("b") is None


def test_who_says_the_same_again_is_written_down_once(path: Path):
    contacts = WorkerContacts(path)
    for _ in range(3):
        contacts.note(describe("a"))
    WorkerContacts(path).note(describe("a"))
    assert len(path.read_text().splitlines()) == 1


def test_the_newest_word_counts(path: Path):
    contacts = WorkerContacts(path)
    contacts.note(describe("a"))
    contacts.note(replace(describe("a"), presence_port=2))
    found = WorkerContacts(path).find("a")
    assert found is not None
    assert found.presence_port == 2


def test_names_that_are_used_anew_are_of_others(tmp_path: Path):
    """Those of the first launch are the same in each attempt."""
    record = RunRecord(tmp_path, FakeClock())
    record.contacts.note(describe("slot0-1.0"))
    record.add_event("submitted", "job 1")
    assert record.contacts.find("slot0-1.0") is None
    record.contacts.note(describe("slot1-1.1"))
    record = RunRecord(tmp_path, FakeClock())
    assert record.contacts.find("slot0-1.0") is None
    assert record.contacts.find("slot1-1.1") is not None


@pytest.mark.parametrize("line", ['{"worker_id": "a", "no', '{"worker_id": "a"}', "{}", '{"x": 1}'])
def test_what_is_no_contact_is_left_out(path: Path, line: str):
    path.write_text(line + "\n")
    contacts = WorkerContacts(path)
    assert contacts.find("a") is None
    contacts.note(describe("a"))
    assert WorkerContacts(path).find("a") == describe("a")
