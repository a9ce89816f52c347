"""The state that a run begins with, put back after a rehearsal has gone through a step with it.

A rank whose state is whole on other ranks is given theirs. Of a sharded model each rank makes its
own part at the beginning, and nobody else has it: what a rehearsal has moved must be as it was.

Process: a spare.  Thread: training.
"""

from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from trainflow.computation.loss_scaling import make_loss_scaler
from trainflow.computation.training_state import StepStart, TrainingState
from trainflow.config.job import JobConfig
from trainflow.monitoring.anomalies.norm_guard import NormGuard, make_guard


def begin_state(job: JobConfig) -> TrainingState:
    """Return what a job's training begins with; without a model, and without a version."""
    scaler = make_loss_scaler(job.training.precision)
    return TrainingState(loss_scaler=scaler, norm_guard=make_guard(job.monitoring.anomalies))


@dataclass(frozen=True)
class FreshState:
    """All of it but the models, which are made anew when an epoch begins with it."""

    start: StepStart
    loss_scaler: dict[str, Any] | None

    @classmethod
    def capture(cls, state: TrainingState) -> "FreshState":
        """Copy it before the first step."""
        scaler = state.loss_scaler
        return cls(
            StepStart.capture(state), None if scaler is None else deepcopy(scaler.state_dict())
        )

    def restore(self, state: TrainingState) -> None:
        """Put it back; the state still has no version."""
        self.start.restore(state)
        state.consumed_samples = state.skipped_in_a_row = 0
        state.last_commit = None
        if state.norm_guard is not None:
            state.norm_guard = NormGuard()
        if state.loss_scaler is not None and self.loss_scaler is not None:
            state.loss_scaler.load_state_dict(self.loss_scaler)
