"""What one worker of a stock TorchTrainer runs: a DDP loop that resumes from the newest checkpoint.

Process: a Ray Train worker.  Blocks: in gloo collectives and in `ray.train.report`, a barrier.
"""

import tempfile
from pathlib import Path
from typing import Any

import ray.train
import torch
import torch.distributed as dist
from ray.train.torch import prepare_model
from torch import nn
from torch.optim import Optimizer

from benchmarks import workload
from benchmarks.peers.events import STEP, EventLog
from trainflow.clock import SYSTEM_CLOCK

CHECKPOINT_EVERY_STEPS = 10
STATE_FILE = "state.pt"


def train_worker(config: dict[str, str]) -> None:
    """Train on one worker until it is killed; Ray runs it again after each failure."""
    torch.set_num_threads(1)
    context = ray.train.get_context()
    log = EventLog(Path(config["log_dir"]))
    log.rank, log.world_size = context.get_world_rank(), context.get_world_size()
    log.generation = _agree_on_generation()
    log.record("entered", step=-1)
    model = prepare_model(workload.build_model(seed=0))
    optimizer = workload.make_optimizer(model.parameters())
    step = _restore(model, optimizer)
    log.record("ready", step)
    while True:
        optimizer.zero_grad()
        workload.loss_of(model, workload.make_batch(step, log.rank)).backward()
        optimizer.step()
        step += 1
        log.record(STEP, step)
        if step % CHECKPOINT_EVERY_STEPS == 0:
            _report(model, optimizer, step, is_saver=log.rank == 0)


def _agree_on_generation() -> int:
    """Number this start of the worker group by rank 0's clock: later starts are greater."""
    started_ms = torch.tensor([int(SYSTEM_CLOCK.unix_s() * 1000)])
    dist.broadcast(started_ms, src=0)
    return int(started_ms.item())


def _restore(model: nn.Module, optimizer: Optimizer) -> int:
    """Load the newest checkpoint, if there is one, and return its step."""
    checkpoint = ray.train.get_checkpoint()
    if checkpoint is None:
        return 0
    with checkpoint.as_directory() as directory:
        state: dict[str, Any] = torch.load(Path(directory) / STATE_FILE, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return state["step"]


def _report(model: nn.Module, optimizer: Optimizer, step: int, *, is_saver: bool) -> None:
    with tempfile.TemporaryDirectory() as directory:
        checkpoint = None
        if is_saver:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(state, Path(directory) / STATE_FILE)
            checkpoint = ray.train.Checkpoint.from_directory(directory)
        ray.train.report({"step": step}, checkpoint=checkpoint)
