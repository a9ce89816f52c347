"""What a Keeper tells of its node, and what follows."""

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.distributed.jobs import make_job
from tests.unit.coordination.fakes import FakePool, guard_of
from trainflow.clock import SYSTEM_CLOCK
from trainflow.coordination import drain_watch
from trainflow.coordination.keeper import Heartbeat
from trainflow.coordination.lease import LeaseEnd
from trainflow.coordination.node_changes import NodeChanges
from trainflow.coordination.preemption_notice import PreemptionNotice
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.unfit_nodes import UnfitNodes


def open_changes(directory: Path) -> tuple[NodeChanges, Any, RunRecord]:
    """Return who looks after the node a, with the nodes and the record of the run."""
    nodes: Any = SimpleNamespace(unfit=UnfitNodes(), node_ids={"a"}, alive={"a": "10.0.0.1"})
    nodes.host_of = nodes.alive.get
    nodes.note_alive = nodes.alive.update
    control: Any = SimpleNamespace(
        candidacy=SimpleNamespace(unfit=None),
        members=(),
        empty_nodes=lambda: False,
        advance=lambda: None,
    )
    record = RunRecord(directory, SYSTEM_CLOCK)
    parts: Any = (FakePool(), control, nodes, record, guard_of(record))
    return NodeChanges(make_job(), *parts), nodes, record


def test_a_keeper_that_has_yet_to_ask_its_provider_takes_no_notice_back(tmp_path: Path):
    changes, nodes, _ = open_changes(tmp_path)
    beat = Heartbeat("a", {}, knows_peers=True, held=None)
    changes.hear(replace(beat, notice=PreemptionNotice(60.0)))
    changes.hear(replace(beat, knows_notice=False))
    assert "a" in nodes.unfit
    changes.hear(beat)
    assert "a" not in nodes.unfit


def test_whom_a_keeper_has_ended_is_told(tmp_path: Path):
    changes, _, record = open_changes(tmp_path)
    beat = Heartbeat("a", {}, knows_peers=True, held=None)
    changes.hear(replace(beat, lease_ends=(LeaseEnd(("slot0-1.0",), 990.5, 10.5),)))
    (event,) = record.events_since(0)
    assert event["kind"] == "lease_ended"


def test_a_new_coordinator_knows_of_nodes_before_it_forms_an_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(drain_watch, "find_draining_nodes", lambda: {"c": None})
    monkeypatch.setattr(drain_watch, "find_alive_nodes", lambda: {"b": "10.0.0.2"})
    _, _, record = open_changes(tmp_path)
    record.add_event("isolate", "failed", host="10.0.0.2", probe_at_s=2e9, num_times=1)
    changes, nodes, _ = open_changes(tmp_path)
    asyncio.run(changes.begin())
    assert nodes.unfit.all() == {"b", "c"}


def test_that_ray_does_not_tell_of_drains_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(drain_watch, "find_draining_nodes", lambda: 1 / 0)
    monkeypatch.setattr(drain_watch, "find_alive_nodes", lambda: {"b": "10.0.0.2"})
    changes, nodes, record = open_changes(tmp_path)
    asyncio.run(changes.begin())
    assert nodes.alive["b"] == "10.0.0.2"
    (event,) = record.events_since(0)
    assert event["kind"] == "detector_off"
    assert event["data"]["detector"] == "drains"
    assert "Ray does not tell which nodes it drains (ZeroDivisionError" in event["text"]


def test_that_a_node_can_t_ask_its_provider_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(drain_watch, "find_draining_nodes", dict)
    monkeypatch.setattr(drain_watch, "find_alive_nodes", lambda: {"b": "10.0.0.2"})
    changes, _, record = open_changes(tmp_path)
    beat = Heartbeat("b", {}, knows_peers=True, held=None, knows_notice=False)
    changes.hear(replace(beat, notice_trouble="PermissionError: no"))
    asyncio.run(changes.begin())
    (event,) = record.events_since(0)
    assert event["kind"] == "detector_off"
    assert "can't ask whether it stays (PermissionError: no)" in event["text"]
