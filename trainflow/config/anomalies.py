"""From where on a loss or a gradient norm is odd, and what is done then: ``monitoring.anomalies``.

Process: any.  Pure: plain values in, a frozen configuration out.
"""

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveInt

from trainflow.config.problems import Problem, show
from trainflow.config.section import PositiveFloat, Section

_NAME = "monitoring.anomalies"
_LEAST_Z = 3.0
_LEAST_PATIENCE = 256
_MAX_SKIPS = 5
_MAX_REWINDS = 2
_REWIND_MARGIN = 10
_LIMITS = ("spike_z", "norm_z", "rise_ratio", "stalled_after_steps")

Score = Annotated[float, Field(ge=_LEAST_Z, allow_inf_nan=False)]


class AnomaliesConfig(Section):
    """What is looked for in losses and gradient norms; an event tells of what is found."""

    enabled: bool = True
    """Whether anything is looked for."""

    action: Literal["alert", "skip", "rewind"] = "alert"
    """What is done beside telling. skip: nothing is applied of a step whose gradient's norm is
    high, by ``norm_z``; its samples count as used. rewind: after a spike or a sudden rise of the
    loss training goes on from the newest checkpoint before it, with samples that come later."""

    max_skips: PositiveInt = _MAX_SKIPS
    """Steps in a row that are skipped for their norms, after which norms like these are usual."""

    max_rewinds: PositiveInt = _MAX_REWINDS
    """How often the job goes back for its loss; from then on it is only told."""

    rewind_margin: NonNegativeInt = _REWIND_MARGIN
    """Steps' worth of samples that are passed over then beyond the step in which it was found: what
    is wrong with the data seldom ends with the step that shows it."""

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

    def conflicts(self, *, makes_checkpoints: bool) -> list[Problem]:
        """Return what is wrong with settings that are right one by one.

        Args:
            makes_checkpoints: while the job goes on.
        """
        problems: list[Problem] = []
        if self.action != "alert" and not self.enabled:
            expected = f"alert where {_NAME}.enabled is false"
            change = f"leave it out, or set {_NAME}.enabled to true"
            problems.append(Problem(f"{_NAME}.action", show(self.action), expected, change))
        if self.action == "rewind" and not makes_checkpoints:
            expected = "alert or skip where no checkpoints are made while the job goes on"
            change = "set checkpoint.url, and checkpoint.every_steps or every_s, or leave it out"
            problems.append(Problem(f"{_NAME}.action", show(self.action), expected, change))
        if not self.enabled:
            problems += self._unread()
        bounds = (
            ("skip", "max_skips", _MAX_SKIPS),
            ("rewind", "max_rewinds", _MAX_REWINDS),
            ("rewind", "rewind_margin", _REWIND_MARGIN),
        )
        for action, name, usual in bounds:
            value = getattr(self, name)
            if value != usual and self.action != action:
                expected = f"nothing where {_NAME}.action is {self.action}"
                change = f"leave it out, or set {_NAME}.action to {action}"
                problems.append(Problem(f"{_NAME}.{name}", str(value), expected, change))
        return problems

    def _unread(self) -> Iterator[Problem]:
        """Yield the limits that are set although nothing is looked for."""
        for name in _LIMITS:
            value = getattr(self, name)
            if value != type(self).model_fields[name].default:
                expected = f"nothing where {_NAME}.enabled is false"
                change = f"leave it out, or set {_NAME}.enabled to true"
                yield Problem(f"{_NAME}.{name}", show(value), expected, change)
