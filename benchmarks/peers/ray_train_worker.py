"""What one worker of a stock TorchTrainer runs: a loop that resumes from the newest checkpoint.

Process: a Ray Train worker.  Blocks: in gloo collectives and in `ray.train.report`, a barrier.
"""

import tempfile
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import ray.train
import torch
import torch.distributed as dist
from ray.train.torch import prepare_model
from torch import nn

from benchmarks import workload
from benchmarks.peers.events import STEP, EventLog
from trainflow.clock import SYSTEM_CLOCK

CHECKPOINT_EVERY_STEPS = 10
STATE_FILE = "state.pt"


class Training(ABC):
    """A model with its optimizer, and how their state goes to a folder and comes back."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.optimizer = workload.make_optimizer(model.parameters())

    @abstractmethod
    def save(self, directory: Path, step: int) -> bool:
        """Write the state; all ranks call it. Returns whether this rank has written anything."""

    @abstractmethod
    def load(self, directory: Path) -> int:
        """Read the state; all ranks call it. Returns its step."""


class ReplicatedTraining(Training):
    """DDP: every rank has the whole state, rank 0 writes it."""

    def save(self, directory: Path, step: int) -> bool:
        """Write the state, on rank 0."""
        if dist.get_rank() != 0:
            return False
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        torch.save({**state, "step": step}, directory / STATE_FILE)
        return True

    def load(self, directory: Path) -> int:
        """Read the state."""
        state: dict[str, Any] = torch.load(directory / STATE_FILE, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        return state["step"]


def train_worker(config: dict[str, Any]) -> None:
    """Train on one worker until it is killed; Ray runs it again after each failure."""
    log = begin(config)
    model = prepare_model(workload.build_model(seed=0))
    train_on(ReplicatedTraining(model), log, workload.SEQUENCES_PER_BATCH)


def begin(config: dict[str, Any]) -> EventLog:
    """Say that this worker has started, in the events that are returned."""
    torch.set_num_threads(1)
    context = ray.train.get_context()
    log = EventLog(Path(config["log_dir"]))
    log.rank, log.world_size = context.get_world_rank(), context.get_world_size()
    log.generation = _agree_on_generation()
    log.record("entered", step=-1)
    return log


def train_on(training: Training, log: EventLog, num_sequences: int) -> None:
    """Resume from the newest checkpoint and train, until killed."""
    step = _restore(training)
    log.record("ready", step)
    while True:
        training.optimizer.zero_grad()
        batch = workload.make_batch(step, log.rank, num_sequences)
        workload.loss_of(training.model, batch).backward()
        training.optimizer.step()
        step += 1
        log.record(STEP, step)
        if step % CHECKPOINT_EVERY_STEPS == 0:
            _report(training, step)


def _agree_on_generation() -> int:
    """Number this start of the worker group by rank 0's clock: later starts are greater."""
    started_ms = torch.tensor([int(SYSTEM_CLOCK.unix_s() * 1000)])
    dist.broadcast(started_ms, src=0)
    return int(started_ms.item())


def _restore(training: Training) -> int:
    """Load the newest checkpoint, if there is one, and return its step."""
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        return 0
    with checkpoint.as_directory() as directory:
        return training.load(Path(directory))


def _report(training: Training, step: int) -> None:
    """Save a checkpoint; Ray brings what each rank has written to storage."""
    with tempfile.TemporaryDirectory() as directory:
        has_written = training.save(Path(directory), step)
        checkpoint = ray.train.Checkpoint.from_directory(directory) if has_written else None
        ray.train.report({"step": step}, checkpoint=checkpoint)
