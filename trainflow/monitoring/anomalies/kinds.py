"""What can be wrong with a loss or a gradient norm, and how that ends."""

from enum import StrEnum


class AnomalyKind(StrEnum):
    """What is wrong.

    Attributes:
        NOT_FINITE: the loss, or the norm, is NaN or infinite.
        LOSS_SPIKE: the loss is far above those of the steps before.
        LOSS_RISE: the loss has risen within some hundred steps, and stays there.
        LOSS_DRIFT: the loss has risen slowly.
        LOSS_STALLED: the loss has not fallen for long, or has been the very same in each step.
        NORM_HIGH: the gradient's norm is far above those of the steps before.
        NORM_LOW: it is far below them.
    """

    NOT_FINITE = "not_finite"
    LOSS_SPIKE = "loss_spike"
    LOSS_RISE = "loss_rise"
    LOSS_DRIFT = "loss_drift"
    LOSS_STALLED = "loss_stalled"
    NORM_HIGH = "norm_high"
    NORM_LOW = "norm_low"


class EndCause(StrEnum):
    """Why there is nothing to tell of any more.

    Attributes:
        USUAL: values are what they were.
        ACCEPTED: values have been so for so long that they are the norm.
        LASTS: a spike that lasts is told of as a rise.
        VOID: the run has gone back to before it.
    """

    USUAL = "usual"
    ACCEPTED = "accepted"
    LASTS = "lasts"
    VOID = "void"
