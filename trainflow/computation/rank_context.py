"""What a rank is given to run with."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from pydantic import BaseModel

from trainflow.communication.group import Group
from trainflow.computation.data_feed import DataFeed
from trainflow.computation.epoch_gate import EpochGate
from trainflow.computation.own_memory import OwnMemory
from trainflow.computation.reports import Report
from trainflow.computation.snapshot_cadence import SnapshotCadence
from trainflow.computation.stamps import StampWriter
from trainflow.computation.training_state import PreparedModel
from trainflow.config.job import JobConfig


def _nothing(_models: Mapping[str, PreparedModel]) -> None:
    """Do nothing."""


@dataclass(frozen=True)
class RankContext:
    """Everything around the training function.

    Attributes:
        job: the job's configuration.
        args: its ``args``, checked by the training function's own model.
        job_id: names the run.
        device: where the model lives.
        feed: the samples.
        gate: where epochs come from.
        stamps: where progress is shown.
        report: takes a report of each committed step and evaluation; must not block.
        rehearsal: a group of this rank alone, to run one step in for nothing, so that the first
            real one finds all code loaded and all memory touched; None to go without.
        snapshots: copies the state out when that is due; None where nothing is kept of it.
        shared_memory: folder for what is to outlive this process; None: nothing is.
        worker_id: names this worker's files there.
        host: of this node; empty where it has no Keeper.
        on_built: called with the models, by name, when the training function has come to its steps,
            before any rehearsal.
    """

    job: JobConfig
    args: BaseModel
    job_id: str
    device: torch.device
    feed: DataFeed
    gate: EpochGate
    stamps: StampWriter
    report: Report
    rehearsal: Group | None
    snapshots: SnapshotCadence | None = None
    shared_memory: Path | None = None
    worker_id: str = ""
    host: str = ""
    on_built: Callable[[Mapping[str, PreparedModel]], None] = _nothing

    @property
    def own_memory(self) -> OwnMemory | None:
        """What this node holds of the state, where anything does."""
        if self.shared_memory is None or not self.host:
            return None
        return OwnMemory(self.shared_memory, self.host)
