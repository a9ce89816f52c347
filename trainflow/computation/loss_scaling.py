"""Dynamic loss scaling keeps small gradients from vanishing in fp16: torch.amp.GradScaler's rules.

The loss is multiplied before backward, and gradients are divided as they enter their buckets, so
that sums, residuals and clipping are in units that don't change with the scale. Scales are powers
of two: both are exact. The scale is that of a mean loss: what a microbatch's weight adds to it in
backward is taken out, or gradients in fp16 would overflow the sooner, the more targets there are.

Process: every rank.  Thread: training.  Ranks: the scale is the same on all, since all see the same
sums; what a loss with its weight is multiplied with is each rank's own.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

INITIAL_SCALE = 2.0**16
_GROWTH, _BACKOFF = 2.0, 0.5


@dataclass
class LossScaler:
    """The scale, and when it changes.

    Attributes:
        scale: what a mean loss is multiplied with.
        num_finite: steps with finite gradients since it last changed.
        growth_interval: after so many of them it doubles.
    """

    scale: float = INITIAL_SCALE
    num_finite: int = 0
    growth_interval: int = 2000

    @property
    def may_be_to_blame(self) -> bool:
        """Whether gradients may have overflowed for the scale alone."""
        return self.scale > 1.0

    def scale_weighted(self, weight: float) -> float:
        """Return with what a mean loss times about ``weight`` has the scale, a power of two.

        Args:
            weight: above 0, of one microbatch; those of a step's others may differ.
        """
        return math.ldexp(self.scale, -math.frexp(weight)[1])

    def update(self, *, finite: bool) -> None:
        """Halve the scale after a step without finite gradients, double it after many with."""
        self.num_finite = self.num_finite + 1 if finite else 0
        if not finite:
            self.scale *= _BACKOFF
        elif self.num_finite == self.growth_interval:
            self.scale *= _GROWTH
            self.num_finite = 0

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint keeps."""
        return {"scale": self.scale, "num_finite": self.num_finite}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over such a state."""
        self.scale, self.num_finite = float(state["scale"]), int(state["num_finite"])


def make_loss_scaler(precision: Literal["fp32", "bf16", "fp16"]) -> LossScaler | None:
    """Return a scaler where the precision needs one: bf16 has the range of fp32."""
    return LossScaler() if precision == "fp16" else None
