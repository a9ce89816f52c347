"""Decide whether a run goes back for its loss, and to where. Pure.

A loss that spikes or rises after a bad stretch of data has often gone into the weights, and into
the optimizer's moments, by the time it shows. What its authors did for PaLM by hand, to go back to
a checkpoint before it and leave the batches out that led there (A. Chowdhery et al., "PaLM: Scaling
Language Modeling with Pathways", arXiv:2204.02311, section 5.1), is decided here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from trainflow.config.anomalies import AnomaliesConfig
from trainflow.monitoring.anomalies.kinds import AnomalyKind
from trainflow.monitoring.anomalies.levels import BLOCK, SUDDEN_WITHIN
from trainflow.monitoring.anomalies.outliers import BEGIN_AFTER

_AGO = {AnomalyKind.LOSS_SPIKE: BEGIN_AFTER, AnomalyKind.LOSS_RISE: SUDDEN_WITHIN * BLOCK}
"""What a run goes back for, and how many steps before it was found it may have begun: a spike with
the update before the first loss that was too high."""


@dataclass(frozen=True)
class GoBack:
    """The run goes back to the checkpoint of this step."""

    step: int


@dataclass(frozen=True)
class GoOn:
    """The run goes on, though it would have gone back; ``reason`` is why it doesn't."""

    reason: str


def decide_rewind(
    since_steps: Mapping[AnomalyKind, int],
    stored_steps: Sequence[int],
    num_rewinds: int,
    limits: AnomaliesConfig,
) -> GoBack | GoOn | None:
    """Decide what follows from what there is to tell of a loss.

    Args:
        since_steps: when each kind was found that there is to tell of now.
        stored_steps: of which there are checkpoints.
        num_rewinds: how often the run has gone back so far.
        limits: whether and how often it may.

    Returns:
        None where there is nothing to go back for, or that is not asked for.
    """
    begun = [step - _AGO[kind] for kind, step in since_steps.items() if kind in _AGO]
    if limits.action != "rewind" or not begun:
        return None
    if num_rewinds >= limits.max_rewinds:
        return GoOn(
            f"it has gone back {num_rewinds} times, as often as "
            f"monitoring.anomalies.max_rewinds = {limits.max_rewinds} allows"
        )
    good = [step for step in stored_steps if step < min(begun)]
    if not good:
        return GoOn(f"there is no checkpoint before step {min(begun)}, where it may have begun")
    return GoBack(max(good))
