"""The run of the detection benchmark: its workload, and what goes wrong within a rank on order.

What is to go wrong is a file in a folder; see `benchmarks.detection_orders`.

Process: every worker.
"""

from collections.abc import Sequence
from pathlib import Path

from pydantic import BaseModel
from torch import Tensor, nn

from benchmarks import workload
from benchmarks.detection_orders import DATA_STALLS, HANGS, MISCALCULATES, take
from benchmarks.recovery_job import RandomTokens
from trainflow import Session
from trainflow.clock import SYSTEM_CLOCK
from trainflow.computation.step import Step

_LOOK_EVERY_S = 0.05
_FOR_EVER_S = 1e6
_WRONG_BY = 1 + 1e-4


class Args(BaseModel):
    """Where orders come from."""

    orders_dir: Path


class StallingTokens(RandomTokens):
    """Random sequences that don't come as long as a file is there."""

    def __init__(self, stalls: Path):
        self._stalls = stalls

    def __getitems__(self, indices: Sequence[int]) -> dict[str, Tensor]:
        """Make the sequences at ``indices``."""
        while self._stalls.exists():
            SYSTEM_CLOCK.sleep(_LOOK_EVERY_S)
        return super().__getitems__(indices)


def open_dataset(args: Args) -> StallingTokens:
    """Open the samples."""
    return StallingTokens(args.orders_dir / DATA_STALLS)


def train(session: Session, args: Args) -> None:
    """Train until stopped."""
    model = session.prepare(lambda: workload.build_model(seed=0), workload.make_optimizer)
    wrong_by = 1.0
    for step in session.steps():
        with step:
            if take(args.orders_dir, MISCALCULATES, session.rank):
                wrong_by = _WRONG_BY
            hangs = take(args.orders_dir, HANGS, session.rank)
            take_step(step, model, wrong_by=wrong_by, hangs=hangs)


def take_step(step: Step, model: nn.Module, *, wrong_by: float, hangs: bool) -> None:
    """Compute and commit one step, with losses that are wrong by a factor, or stand still in it."""
    for batch in step.microbatches():
        if hangs:
            SYSTEM_CLOCK.sleep(_FOR_EVER_S)
        loss = workload.loss_of(model, batch.inputs["input_ids"]) * wrong_by
        step.backward(loss, weight=batch.num_targets)
    step.commit()
