"""What is left of what follows a run where nothing is to."""

import asyncio
from pathlib import Path
from unittest import mock

from tests.distributed.jobs import make_job
from tests.unit.coordination.fakes import FakeClock
from tests.unit.coordination.test_run_record import STEP
from trainflow.coordination import run_monitor
from trainflow.coordination.run_monitor import RunMonitor
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.run_state import RunState


def _live(directory: Path, *, enabled: bool) -> RunMonitor:
    """Go through a run of one step, with a loss that is no number."""
    clock = FakeClock()
    record = RunRecord(directory, clock)
    job = make_job(monitoring={"enabled": enabled})
    monitor = RunMonitor("job-1", job, record, clock)
    monitor.tick(world_size=2, num_spares=1)
    monitor.on_checkpoint_skipped()
    record.add_event("submitted", "job-1")
    clock.now_s += 1.0
    record.add_event("launched", "two workers", workers=["slot0-1.0", "slot1-1.1"])
    clock.now_s += 1.0
    record.add_step(STEP)
    monitor.end(RunState.SUCCEEDED)
    asyncio.run(monitor.close())
    assert record.last_step == STEP.step
    return monitor


def test_what_is_not_monitored_leaves_its_record_and_nothing_else(tmp_path: Path):
    with mock.patch.object(run_monitor, "RayExport") as export:
        monitor = _live(tmp_path, enabled=False)
    export.assert_not_called()
    assert monitor.describe() == {"anomalies": [], "goodput": None}
    assert {path.name for path in tmp_path.iterdir()} == {"events.jsonl", "metrics.jsonl"}
    events = RunRecord(tmp_path, FakeClock()).events_since(0)
    assert [event["kind"] for event in events] == ["submitted", "launched"]


def test_what_is_monitored_tells_all_that_it_does(tmp_path: Path):
    with mock.patch.object(run_monitor, "RayExport") as export:
        monitor = _live(tmp_path, enabled=True)
    moved = {call.args[0].suffix for call in export.return_value.method_calls}
    assert {"world_size", "loss", "checkpoints_skipped_total", "goodput_ratio"} <= moved
    assert monitor.describe()["goodput"] is not None
