"""No event of another release, and no damaged one, keeps a new coordinator from its detectors."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.distributed.jobs import make_job
from tests.unit.coordination.fakes import FakeClock, FakePool, guard_of
from trainflow.coordination.node_changes import NodeChanges
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.step_detectors import StepDetectors
from trainflow.coordination.unfit_nodes import UnfitNodes

PACE = {"waited_s": 0.1, "computed_s": 1.0}
LINK = {"node_ids": ["a"], "hosts": ["10.0.0.1"]}
SLOWDOWN = {"layout": ["a", "b"], "usual": PACE, "now": PACE}
FIGURES = {"rank": 0, "node_id": "a", "compute_s": 3.0, "typical_s": 1.0, "score": 9.0}
STRAGGLER = FIGURES | {"worker_id": "slot0-1.0", "ratio": 3.0}

WHOLE: dict[str, dict[str, Any]] = {
    "straggler": {"stragglers": [STRAGGLER]},
    "slow_network": {"links": [LINK], "slowdown": SLOWDOWN},
    "link_cut": {"nodes": ["a", "b"], "hosts": ["10.0.0.1", "10.0.0.2"], "leaving": ["b"]},
    "drain": {"node": "c", "workers": {"slot2-1.0": 2}, "world_size": 3},
    "isolate": {"host": "10.0.0.4", "probe_at_s": 2e9, "num_times": 1},
    "detector_off": {"detector": "cuts"},
}
DAMAGED: list[tuple[str, dict[str, Any]]] = [
    *((kind, {}) for kind in WHOLE),
    *((f"{kind}_over", {}) for kind in ("straggler", "slow_network", "link_cut", "drain")),
    *((kind, {}) for kind in ("readmit", "drain_late", "detector_on")),
    ("straggler", {"stragglers": [STRAGGLER | {"news": 1}]}),
    ("straggler", {"stragglers": [STRAGGLER | {"worker_id": "other", "typical_s": "1 s"}]}),
    ("slow_network", {"links": [LINK], "slowdown": SLOWDOWN | {"now": PACE | {"news": 1}}}),
    ("link_cut", WHOLE["link_cut"] | {"nodes": ["a", "b", "c"]}),
    ("link_cut", WHOLE["link_cut"] | {"leaving": None}),
    ("drain", WHOLE["drain"] | {"workers": None}),
    ("isolate", WHOLE["isolate"] | {"probe_at_s": "soon"}),
    ("detector_off", {"detector": ["cuts"]}),
]


def open_detectors(record: RunRecord) -> tuple[UnfitNodes, dict[str, Any], Any]:
    """Return the nodes that take no ranks, what is described, and who isolates nodes."""
    nodes: Any = SimpleNamespace(unfit=UnfitNodes(), node_ids={"a"}, alive={"d": "10.0.0.4"})
    control: Any = SimpleNamespace(candidacy=SimpleNamespace(unfit=None), members=(), epoch=None)
    parts: Any = (FakePool(), control, nodes, record, guard_of(record))
    changes: Any = NodeChanges(make_job(), *parts)
    return nodes.unfit, StepDetectors(make_job(), *parts).describe(), changes._isolation


@pytest.mark.parametrize(("kind", "data"), DAMAGED, ids=str)
def test_what_can_not_be_read_is_left_out_and_told_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str, data: dict[str, Any]
):
    RunRecord(tmp_path, FakeClock()).add_event(kind, "told", **data)
    unfit, described, isolation = open_detectors(RunRecord(tmp_path, FakeClock()))
    assert described == {"stragglers": [], "slow_network": [], "detectors_off": []}
    isolation.tick()
    assert unfit.all() == set()
    if kind != "slow_network_over":  # nothing is read of that
        assert "an event of an earlier coordinator is left out" in caplog.text
        assert f"'kind': '{kind}'" in caplog.text


def test_what_can_be_read_beside_it_still_holds(tmp_path: Path):
    first = RunRecord(tmp_path, FakeClock())
    damaged = [each for each in DAMAGED if not each[0].startswith("slow_network")]
    for kind, data in [*WHOLE.items(), *damaged]:
        first.add_event(kind, "told", **data)
    record = RunRecord(tmp_path, FakeClock())
    unfit, described, isolation = open_detectors(record)
    isolation.tick()
    assert described["stragglers"] == [STRAGGLER]
    assert described["slow_network"] == [LINK]
    assert unfit.all() == {"b", "c", "d"}
    assert record.events_since(0)[-1]["kind"] == "detector_on"


def test_a_slow_link_that_can_not_be_read_replaces_the_one_before(tmp_path: Path):
    record = RunRecord(tmp_path, FakeClock())
    record.add_event("slow_network", "told", **WHOLE["slow_network"])
    record.add_event("slow_network", "told", links=[LINK])
    assert open_detectors(record)[1]["slow_network"] == []
