"""Judging heartbeats that were read at different times."""

from pathlib import Path
from typing import Any

import pytest

from tests.distributed.jobs import make_job
from tests.unit.coordination.fakes import FakeClock, FakePool
from trainflow.coordination.hang_detection import Progress
from trainflow.coordination.hang_watch import HangWatch
from trainflow.coordination.run_record import RunRecord
from trainflow.epochs import EpochId, Phase

OLD, NEW = EpochId(1, 1), EpochId(1, 2)


def waiting(epoch: EpochId) -> Progress:
    return Progress(1, 5, epoch, Phase.COMMUNICATE, progress_age_s=500.0, pulse_age_s=0.0)


@pytest.mark.parametrize(
    ("second", "deadlocked"), [(NEW, True), (OLD, False)], ids=["both in it", "one read before it"]
)
def test_only_those_in_the_epoch_can_deadlock_it(tmp_path: Path, second: EpochId, deadlocked: Any):
    class Nodes:
        def progress_of(self, worker_ids: set[str]) -> dict[str, Progress]:
            return {"a": waiting(NEW), "b": waiting(second)}

    pool: Any = FakePool()
    nodes: Any = Nodes()
    watch = HangWatch(make_job(), pool, nodes, RunRecord(tmp_path, FakeClock()))
    assert watch.is_deadlocked(("a", "b"), NEW) is deadlocked
