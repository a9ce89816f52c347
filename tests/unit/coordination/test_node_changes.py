"""What a Keeper tells of its node, and what follows."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.distributed.jobs import make_job
from tests.unit.coordination.fakes import FakePool
from trainflow.clock import SYSTEM_CLOCK
from trainflow.coordination.keeper import Heartbeat
from trainflow.coordination.node_changes import NodeChanges
from trainflow.coordination.preemption_notice import PreemptionNotice
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.unfit_nodes import UnfitNodes


def test_a_keeper_that_has_yet_to_ask_its_provider_takes_no_notice_back(tmp_path: Path):
    nodes: Any = SimpleNamespace(unfit=UnfitNodes(), node_ids={"a"}, alive={"a": "10.0.0.1"})
    nodes.host_of = nodes.alive.get
    control: Any = SimpleNamespace(
        candidacy=SimpleNamespace(unfit=None),
        members=(),
        empty_nodes=lambda: False,
        advance=lambda: None,
    )
    parts: Any = (FakePool(), control, nodes, RunRecord(tmp_path, SYSTEM_CLOCK), None)
    changes = NodeChanges(make_job(), *parts)
    beat = Heartbeat("a", {}, knows_peers=True, held=None)
    changes.hear(replace(beat, notice=PreemptionNotice(60.0)))
    changes.hear(replace(beat, knows_notice=False))
    assert "a" in nodes.unfit
    changes.hear(beat)
    assert "a" not in nodes.unfit
