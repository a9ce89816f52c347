from pathlib import Path

import pytest

from tests.unit.coordination.fakes import FakeClock
from trainflow.checkpointing.store import CheckpointStore
from trainflow.coordination.run_record import RunRecord


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(str(tmp_path / "store"))


@pytest.fixture
def record(tmp_path: Path) -> RunRecord:
    return RunRecord(tmp_path / "record", FakeClock())
