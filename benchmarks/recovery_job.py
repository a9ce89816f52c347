"""TrainFlow's side of the recovery benchmark: the workload as a training function.

Process: every worker.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from pydantic import BaseModel
from torch import Tensor, nn

from benchmarks import workload
from benchmarks.peers.events import STEP, EventLog
from trainflow import Session
from trainflow.computation.step import Step


class Args(BaseModel):
    """Where the events of the run go."""

    log_dir: Path


class RandomTokens:
    """A map-style dataset of seeded random sequences, never materialised."""

    def __len__(self) -> int:
        """Return enough for any run."""
        return 1_000_000

    def __getitems__(self, indices: Sequence[int]) -> dict[str, Tensor]:
        """Make the sequences at ``indices``."""
        rows = [self._make(index) for index in indices]
        return {"input_ids": torch.stack(rows), "labels": torch.stack(rows)}

    def _make(self, index: int) -> Tensor:
        generator = torch.Generator().manual_seed(index)
        return torch.randint(
            workload.VOCABULARY_SIZE, (workload.SEQUENCE_LENGTH,), generator=generator
        )


def open_dataset(_args: BaseModel) -> RandomTokens:
    """Open the samples."""
    return RandomTokens()


def train(session: Session, args: Args) -> None:
    """Train until stopped; each committed step is an event."""
    log = EventLog(args.log_dir)
    model = session.prepare(lambda: workload.build_model(seed=0), workload.make_optimizer)
    for step in session.steps():
        with step:
            take_step(session, step, model, log)


def take_step(session: Session, step: Step, model: nn.Module, log: EventLog) -> int:
    """Compute and commit one step, which is an event; returns its number."""
    for batch in step.microbatches():
        loss = workload.loss_of(model, batch.inputs["input_ids"])
        step.backward(loss, weight=batch.num_targets)
    return commit_on_record(session, step, log)


def commit_on_record(session: Session, step: Step, log: EventLog) -> int:
    """Commit a step, which is an event; returns its number."""
    done = step.commit()
    assert session.epoch is not None, "a rank that commits is in an epoch"
    log.generation = session.epoch.incarnation * 100_000 + session.epoch.counter
    log.rank, log.world_size = session.rank or 0, session.world_size
    if not step.replayed:
        log.record(STEP, done.number)
    return done.number
