"""What Keepers tell of their memory, and what the coordinator makes of it."""

from pathlib import Path
from typing import Any

import pytest

from tests.distributed.jobs import make_job
from tests.unit.coordination.fakes import FakeClock
from trainflow.config.job import SnapshotConfig
from trainflow.coordination.keeper import Heartbeat
from trainflow.coordination.memory_tier import MemoryTier
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.unfit_nodes import UnfitNodes
from trainflow.epochs import EpochId, PeerAddress, Version


class NoNodes:
    node_ids: frozenset[str] = frozenset()
    unfit = UnfitNodes()


def test_a_refusal_is_told_once_in_a_row_for_each_node(tmp_path: Path):
    clock, nodes = FakeClock(), NoNodes()
    any_nodes: Any = nodes
    record = RunRecord(tmp_path, clock)
    memory = MemoryTier(make_job(), any_nodes, record, clock)

    def hear(node_id: str, trouble: str | None) -> None:
        memory.hear(Heartbeat(node_id, {}, knows_peers=True, held=None, trouble=trouble))

    def told() -> list[str]:
        return [e["text"] for e in record.events_since(0) if e["kind"] == "copy_refused"]

    hear("a", None)
    assert told() == []
    for trouble in ("no space, 5 bytes", "no space, 6 bytes"):
        hear("a", trouble)
        hear("b", None)
    assert told() == ["node a sends copies of the state in vain: no space, 5 bytes"]
    hear("b", "no space")
    assert len(told()) == 2
    hear("a", None)
    hear("a", "no space again")
    assert told()[2:] == ["node a sends copies of the state in vain: no space again"]


@pytest.mark.parametrize(("replicas", "needed"), [(0, 8), (1, 8), (2, 6), (3, 5), (4, 5)])
def test_of_replicated_state_the_newest_counts_that_as_many_nodes_hold_as_are_to(
    tmp_path: Path, replicas: int, needed: int
):
    clock, nodes = FakeClock(), NoNodes()
    any_nodes: Any = nodes
    job = make_job().model_copy(update={"snapshot": SnapshotConfig(replicas=replicas)})
    memory = MemoryTier(job, any_nodes, RunRecord(tmp_path, clock), clock)
    nodes.node_ids = frozenset("abcd")
    for node_id, step in zip("abcd", (9, 8, 6, 5), strict=True):
        held = Version(step, EpochId(1, 1))
        answer = memory.hear(Heartbeat(node_id, {}, knows_peers=True, held=held))
    assert answer == Version(needed, EpochId(1, 1))


def test_members_are_told_where_living_nodes_serve_what_they_hold(tmp_path: Path):
    clock, nodes = FakeClock(), NoNodes()
    any_nodes: Any = nodes
    memory = MemoryTier(make_job(), any_nodes, RunRecord(tmp_path, clock), clock)

    def hear(node_id: str, port: int | None) -> None:
        address = None if port is None else PeerAddress("10.0.0.1", port, "token")
        memory.hear(Heartbeat(node_id, {}, knows_peers=True, held=None, address=address))

    nodes.node_ids = frozenset({"a", "b"})
    for node_id, port in (("a", 1), ("b", 2), ("gone", 3), ("a", 4), ("b", None)):
        hear(node_id, port)
    assert {each.port for each in memory.addresses} == {4, 2}, "the newest that each has said"


def test_a_state_that_a_living_node_holds_needs_no_worker(tmp_path: Path):
    clock, nodes = FakeClock(), NoNodes()
    any_nodes: Any = nodes
    record = RunRecord(tmp_path, clock)
    memory = MemoryTier(make_job(), any_nodes, record, clock)
    nodes.node_ids = frozenset({"a", "gone"})

    def hear(node_id: str, version: Version | None) -> None:
        memory.hear(Heartbeat(node_id, {}, knows_peers=True, held=version))

    assert memory.holds(0), "any worker may begin"
    hear("a", None)
    assert not memory.holds(7)
    hear("a", Version(6, EpochId(1, 1)))
    hear("gone", Version(7, EpochId(1, 1)))
    nodes.node_ids = frozenset({"a"})
    assert not memory.holds(7)
    hear("a", Version(7, EpochId(1, 1)))
    assert memory.holds(7)
    hear("a", None)
    assert not memory.holds(7), "it has it no more"
    hear("a", Version(7, EpochId(1, 1)))
    record.add_event("epoch", "", epoch="1.2", members=[], base="5@1.1")
    assert not memory.holds(6), "of a history that the run has gone back from"


def test_a_share_on_its_way_to_storage_is_no_state_that_could_be_gone_on_from(tmp_path: Path):
    clock, nodes = FakeClock(), NoNodes()
    any_nodes: Any = nodes
    nodes.node_ids = frozenset({"a"})
    job = make_job().model_copy(update={"snapshot": SnapshotConfig(every_steps=None)})
    memory = MemoryTier(job, any_nodes, RunRecord(tmp_path, clock), clock)
    memory.hear(Heartbeat("a", {}, knows_peers=True, held=Version(7, EpochId(1, 1))))
    assert not memory.holds(7)
    assert memory.holds(0)


def test_sharded_state_is_on_the_node_of_each_worker(tmp_path: Path):
    clock = FakeClock()
    any_nodes: Any = NoNodes()
    job = make_job(parallel={"mode": "fsdp"})
    assert MemoryTier(job, any_nodes, RunRecord(tmp_path, clock), clock).holds(7)
