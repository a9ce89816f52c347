"""What a checkpoint keeps of what explains a run, and who is given it."""

import asyncio
from pathlib import Path
from typing import Any

from tests.unit.checkpointing.test_sharing import make_snapshot, upload
from tests.unit.coordination.fakes import FakeClock
from tests.unit.coordination.test_checkpoint_control import STEP, bring, job_for
from trainflow.checkpointing.store import CheckpointStore
from trainflow.coordination.checkpoint_control import CheckpointControl
from trainflow.coordination.checkpoint_monitor import Unmonitored
from trainflow.coordination.run_record import RunRecord


class Knowing(Unmonitored):
    """Has something to keep, and notes what it is given."""

    def __init__(self) -> None:
        self.given: list[tuple[int, Any]] = []

    def describe_anomalies(self, step: int) -> Any:
        return {"step": step, "state": {}}

    def go_on_from(self, step: int, known: Any) -> None:
        self.given.append((step, known))


def test_what_is_known_of_losses_goes_with_the_checkpoint_to_whoever_begins_with_it(
    store: CheckpointStore, record: RunRecord, tmp_path: Path
):
    knowing, other = Knowing(), Knowing()

    async def act() -> None:
        own = CheckpointControl("job-1", job_for(store), record, FakeClock(), knowing)
        (report,) = upload(make_snapshot(35), store, 1)
        await bring(own, report)
        again = CheckpointControl("job-1", job_for(store), record, FakeClock(), knowing)
        await again.find_stored()
        its_record = RunRecord(tmp_path / "other", FakeClock())
        later = CheckpointControl("job-2", job_for(store), its_record, FakeClock(), other)
        await later.find_stored()

    asyncio.run(act())
    assert other.given == [(STEP, {"step": STEP, "state": {}})]
    assert knowing.given == [], "its own record says it"
