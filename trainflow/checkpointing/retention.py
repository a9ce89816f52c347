"""Which checkpoints stay, and how often one is worth its cost.  Pure."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class RetentionPolicy:
    """What to keep; a checkpoint stays if any of these wants it.

    Attributes:
        keep_last: the newest so many, at least one.
        keep_every: those whose step is a multiple of it; None keeps none for that.
        keep_best: so many with the smallest value; 0 keeps none for that.
    """

    keep_last: int = 3
    keep_every: int | None = None
    keep_best: int = 0


def choose_kept(
    steps: Sequence[int], values: Mapping[int, float], policy: RetentionPolicy
) -> frozenset[int]:
    """Return the steps to keep.

    Args:
        steps: of all committed checkpoints.
        values: by step, smaller is better (a validation loss); a checkpoint without one, or whose
            value is not a number, is never among the best.
        policy: what to keep.
    """
    ordered = sorted(steps)
    kept = set(ordered[-max(1, policy.keep_last) :])
    if policy.keep_every is not None:
        kept |= {step for step in ordered if step % policy.keep_every == 0}
    rated = [step for step in ordered if not math.isnan(values.get(step, math.nan))]
    kept |= set(sorted(rated, key=lambda step: (values[step], step))[: policy.keep_best])
    return frozenset(kept)


def is_due(step: int, every_steps: int | None) -> bool:
    """Whether a checkpoint is wanted after this step, by its number."""
    return every_steps is not None and step % every_steps == 0


def best_interval_s(save_s: float, seconds_between_failures: float) -> float:
    """Return the time between two checkpoints that loses least.

    Source: J. W. Young, "A first order approximation to the optimum checkpoint interval", CACM
    17(9), 1974; with the bound by J. T. Daly, FGCS 22(3), 2006: where saving takes more than half
    the time between failures, the interval is that time.

    Args:
        save_s: seconds by which one checkpoint holds the run up; positive.
        seconds_between_failures: mean time between failures of the whole run; positive.
    """
    if save_s >= seconds_between_failures / 2:
        return seconds_between_failures
    return math.sqrt(2 * save_s * seconds_between_failures)
