"""From where on a loss or a gradient norm is odd, and what is done then: ``monitoring.anomalies``.

Process: any.  Pure: plain values in, a frozen configuration out.
"""

from typing import Annotated, Literal

from pydantic import Field, PositiveInt

from trainflow.config.problems import Problem
from trainflow.config.section import PositiveFloat, Section

_LEAST_Z = 3.0
_LEAST_PATIENCE = 256
_MAX_SKIPS = 5

Score = Annotated[float, Field(ge=_LEAST_Z, allow_inf_nan=False)]


class AnomaliesConfig(Section):
    """What is looked for in losses and gradient norms; an event tells of what is found."""

    enabled: bool = True
    """Whether anything is looked for."""

    action: Literal["alert", "skip"] = "alert"
    """What is done beside telling. skip: nothing is applied of a step whose gradient's norm is
    high, by ``norm_z``; its samples count as used."""

    max_skips: PositiveInt = _MAX_SKIPS
    """Steps in a row that are skipped for their norms, after which norms like these are usual."""

    spike_z: Score = 6.0
    """By how many spreads (1.4826 MAD, in the log domain) a loss is above those before it, in two
    steps in a row, or three times as far in one, when it is a spike."""

    norm_z: Score = 8.0
    """The same of the gradient's norm before clipping; also below, in eight steps in a row."""

    rise_ratio: PositiveFloat = 0.05
    """Share by which the loss is above its lowest, over some sixty steps, when it has risen."""

    stalled_after_steps: Annotated[int, Field(ge=_LEAST_PATIENCE)] | None = 1000
    """Steps for which a loss has not fallen, and at least half of those so far, when it is stalled;
    null: that is not told."""

    def conflicts(self) -> list[Problem]:
        """Return what is wrong with settings that are right one by one."""
        problems: list[Problem] = []
        name = "monitoring.anomalies"
        if self.action == "skip" and not self.enabled:
            expected = f"alert where {name}.enabled is false"
            change = f"leave it out, or set {name}.enabled to true"
            problems.append(Problem(f"{name}.action", "'skip'", expected, change))
        if self.action == "alert" and self.max_skips != _MAX_SKIPS:
            expected = f"nothing where {name}.action is alert"
            change = f"leave it out, or set {name}.action to skip"
            problems.append(Problem(f"{name}.max_skips", str(self.max_skips), expected, change))
        return problems
