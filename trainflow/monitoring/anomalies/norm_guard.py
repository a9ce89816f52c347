"""Judge whether a step's gradient is so large that the step is to be skipped. Pure.

It is judged as `norm_high` is told: beyond the bound in two steps in a row, or three times as far
in one. What is known of earlier norms is part of the training state, so that all ranks, and whoever
heals, resumes or replays, decide alike.

Skipping what spikes is what PaLM's authors did by hand, who went back and left out some hundred
batches (A. Chowdhery et al., "PaLM: Scaling Language Modeling with Pathways", arXiv:2204.02311,
section 5.1); here the step is not applied to begin with.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from trainflow.config.anomalies import AnomaliesConfig
from trainflow.monitoring.anomalies.outliers import Series, judge
from trainflow.monitoring.anomalies.robust import to_log


@dataclass(frozen=True)
class OddNorm:
    """Why a step was skipped.

    Attributes:
        expected: what the norm would have been.
        score: by how many spreads it is above that.
        num_in_a_row: such steps, with this one.
    """

    expected: float
    score: float
    num_in_a_row: int


@dataclass(frozen=True)
class NormGuard:
    """What is known of the norms of committed steps.

    Attributes:
        series: of them all, in order.
        num_skipped: steps in a row that were skipped for theirs, up to now.
    """

    series: Series = field(default_factory=Series)
    num_skipped: int = 0

    def to_tree(self) -> dict[str, Any]:
        """Return it as plain values, of which `from_tree` makes the very same guard."""
        return {"num_skipped": self.num_skipped, **asdict(self.series)}

    @classmethod
    def from_tree(cls, tree: Mapping[str, Any]) -> "NormGuard":
        """Make a guard of what `to_tree` returned; of a checkpoint, where it was JSON between."""
        values = dict(tree)
        num_skipped = values.pop("num_skipped")
        values |= {name: tuple(values[name]) for name in ("recent", "residuals")}
        return cls(Series(**values), num_skipped)


def make_guard(limits: AnomaliesConfig) -> NormGuard | None:
    """Return what a run begins with; None where steps are not to be skipped."""
    return NormGuard() if limits.action == "skip" else None


def judge_norm(
    guard: NormGuard, norm: float, limits: AnomaliesConfig
) -> tuple[NormGuard, OddNorm | None]:
    """Take the norm of the next committed step.

    Args:
        guard: what is known of those before.
        norm: finite, before clipping.
        limits: from where on it is odd, and for how long.

    Returns:
        What is known now; and why the step is to be skipped, None if it isn't. After
        ``limits.max_skips`` in a row norms like these are taken to be what is usual.
    """
    judged = judge(guard.series, norm, limits.norm_z)
    if judged.series.side <= 0 or judged.score < limits.norm_z:
        return NormGuard(judged.series), None
    if guard.num_skipped >= limits.max_skips:
        return NormGuard(Series(recent=(to_log(norm),))), None
    known = replace(guard, series=judged.series, num_skipped=guard.num_skipped + 1)
    return known, OddNorm(judged.expected, judged.score, known.num_skipped)
