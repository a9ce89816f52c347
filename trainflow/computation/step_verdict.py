"""Decide whether a step is applied, from what all ranks have been told alike. Pure.

A step is skipped if its loss or gradient isn't finite and, where the job asks for it, if its
gradient is far larger than those before.
"""

import math
from dataclasses import dataclass

from trainflow.communication.commit_record import CommitDecision
from trainflow.config.job import JobConfig
from trainflow.errors import TooManySkippedStepsError
from trainflow.monitoring.anomalies.norm_guard import NormGuard, OddNorm, judge_norm


@dataclass(frozen=True)
class StepVerdict:
    """What becomes of a step.

    Attributes:
        norm: 2-norm of the mean gradient, before clipping.
        is_finite: its loss and gradient are, and it has samples.
        odd: why it is skipped all the same; None if it isn't.
        guard: what is known of norms after it; None if none is judged.
    """

    norm: float
    is_finite: bool
    odd: OddNorm | None
    guard: NormGuard | None

    @property
    def is_applied(self) -> bool:
        """Tell whether it moves the model."""
        return self.is_finite and self.odd is None


def judge_step(decision: CommitDecision, guard: NormGuard | None, job: JobConfig) -> StepVerdict:
    """Judge a step that all ranks commit.

    Args:
        decision: what they have come to.
        guard: what is known of earlier norms; None where none is judged.
        job: what is run.
    """
    total = decision.total_weight
    norm = decision.norm / total if total else 0.0
    is_finite = bool(total) and math.isfinite(norm) and math.isfinite(decision.loss)
    odd = None
    if guard is not None and is_finite:
        guard, odd = judge_norm(guard, norm, job.monitoring.anomalies)
    return StepVerdict(norm, is_finite, odd, guard)


def require_finite_steps(step: int, num_in_a_row: int, limit: int) -> None:
    """Refuse to go on where gradients stay as they are.

    Args:
        step: the newest.
        num_in_a_row: steps whose gradients were not finite, up to that.
        limit: ``training.max_skipped_steps``.

    Raises:
        TooManySkippedStepsError: there are as many.
    """
    if num_in_a_row >= limit:
        raise TooManySkippedStepsError(
            f"step {step}: got gradients that are not finite for {num_in_a_row} steps in a row, "
            f"expected fewer than training.max_skipped_steps = {limit}; lower the learning rate or "
            "look at the data of these steps"
        )
