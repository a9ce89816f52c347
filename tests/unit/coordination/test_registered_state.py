"""State that ranks register and don't hold alike: no checkpoint is mixed of it."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.unit.coordination.fakes import FakeClock
from tests.unit.coordination.test_checkpoint_control import bring, control_for
from trainflow.checkpointing.sharing import Share, ShareReport
from trainflow.checkpointing.snapshot_slots import Slot
from trainflow.checkpointing.store import CheckpointStore
from trainflow.checkpointing.uploader import upload_share
from trainflow.computation.snapshot_writer import SnapshotWriter
from trainflow.computation.training_state import Registered, TrainingState
from trainflow.coordination.run_record import RunRecord
from trainflow.epochs import EpochId, Version


class Values:
    """A state of the user's."""

    def __init__(self, *values: float):
        self._values = torch.tensor(values)

    def state_dict(self) -> dict[str, Any]:
        return {"values": self._values}

    def load_state_dict(self, state_dict: dict[str, Any], /) -> None:
        self._values = state_dict["values"]


def save(store: CheckpointStore, folder: Path, step: int, *by_rank: Values) -> list[ShareReport]:
    """Bring a share from each of some ranks, as their nodes do."""
    reports: list[ShareReport] = []
    for rank, values in enumerate(by_rank):
        state = TrainingState(registered={"seen": Registered(values, None)})
        share, writer = Share(rank, len(by_rank)), SnapshotWriter(folder, f"{step}.{rank}", 1)
        assert writer.write(state.tree(), Version(step, EpochId(1, 1)), share)
        snapshot = Slot(folder / f"{step}.{rank}.0.snapshot").read()
        assert snapshot is not None
        reports.append(upload_share(snapshot, share, store))
    return reports


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(str(tmp_path / "store"))


def test_a_checkpoint_of_different_values_is_given_up_and_the_next_is_made(
    store: CheckpointStore, tmp_path: Path
):
    record = RunRecord(tmp_path / "record", FakeClock())
    differing = save(store, tmp_path, 5, Values(1, 2), Values(1, 3))

    async def act() -> None:
        control = control_for(store, record)
        assert await bring(control, differing[0]) is None
        assert await bring(control, differing[1]), "what is given up is not to be kept either"
        for report in save(store, tmp_path, 6, Values(1, 2), Values(1, 2)):
            await bring(control, report)

    asyncio.run(act())
    assert store.committed_steps() == [6]
    told, made = record.events_since(0)
    assert (told["kind"], made["kind"]) == ("checkpoint_failed", "checkpoint")
    assert "/registered/seen/values: got different values on two ranks" in told["text"]
    assert "session.reduce" in told["text"]
