"""From where on a loss or a gradient norm is told of: the section ``monitoring.anomalies``.

Process: any.  Pure: plain values in, a frozen configuration out.
"""

from typing import Annotated

from pydantic import Field

from trainflow.config.section import PositiveFloat, Section

_LEAST_Z = 3.0
_LEAST_PATIENCE = 256

Score = Annotated[float, Field(ge=_LEAST_Z, allow_inf_nan=False)]


class AnomaliesConfig(Section):
    """What is looked for in losses and gradient norms; an event tells of what is found."""

    enabled: bool = True
    """Whether anything is looked for."""

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
