"""Say of an anomaly what it is, how far out, and since when. Pure."""

from collections.abc import Callable, Mapping

from trainflow.monitoring.anomalies.detector import Anomaly, Ended
from trainflow.monitoring.anomalies.kinds import AnomalyKind, EndCause
from trainflow.monitoring.anomalies.norm_guard import OddNorm

_FAR = 10.0


def describe(anomaly: Anomaly) -> str:
    """Return what there is to tell of."""
    return _TEXTS[anomaly.kind](anomaly)


def describe_end(ended: Ended) -> str:
    """Return that there is no more, and why."""
    what = f"{_NAMES[ended.anomaly.kind]} (since step {ended.anomaly.since_step})"
    return f"step {ended.step}: {what}: {_ENDS[ended.cause]}"


def describe_skip(step: int, norm: float, odd: OddNorm) -> str:
    """Return why a step was skipped."""
    found = Anomaly(AnomalyKind.NORM_HIGH, step, norm, odd.expected, odd.score)
    return f"{describe(found)}: nothing of the step is applied"


def _times(anomaly: Anomaly) -> str:
    """Return how a value compares with what was expected of it."""
    value, expected = anomaly.value, anomaly.expected
    if expected <= 0 or value < 0:
        return f"where {expected:.5g} was to be expected"
    ratio = value / expected
    many = f"{ratio:.1f}" if ratio >= _FAR else f"{ratio:.3g}"
    return f"{many} times the {expected:.5g} that was to be expected"


def _describe_not_finite(anomaly: Anomaly) -> str:
    return f"step {anomaly.since_step}: the loss or the gradient's norm is {anomaly.value}"


def _describe_outlier(what: str) -> Callable[[Anomaly], str]:
    return lambda each: (
        f"step {each.since_step}: {what} {each.value:.5g} is {_times(each)}, "
        f"{each.score:+.1f} spreads"
    )


def _describe_rise(how: str) -> Callable[[Anomaly], str]:
    return lambda each: (
        f"step {each.since_step}: the loss has risen {how}, to {each.value:.5g} from the "
        f"{each.expected:.5g} that it had come down to"
    )


def _describe_stall(each: Anomaly) -> str:
    if each.value == each.expected:
        return f"the loss is the very same since step {each.since_step}: {each.value:.5g}"
    return f"the loss has not fallen below {each.expected:.5g} since step {each.since_step}"


_TEXTS: Mapping[AnomalyKind, Callable[[Anomaly], str]] = {
    AnomalyKind.NOT_FINITE: _describe_not_finite,
    AnomalyKind.LOSS_SPIKE: _describe_outlier("the loss"),
    AnomalyKind.LOSS_RISE: _describe_rise("within some hundred steps"),
    AnomalyKind.LOSS_DRIFT: _describe_rise("slowly"),
    AnomalyKind.LOSS_STALLED: _describe_stall,
    AnomalyKind.NORM_HIGH: _describe_outlier("the gradient's norm"),
    AnomalyKind.NORM_LOW: _describe_outlier("the gradient's norm"),
}

_NAMES: Mapping[AnomalyKind, str] = {
    AnomalyKind.NOT_FINITE: "a loss or norm that is not finite",
    AnomalyKind.LOSS_SPIKE: "a spike of the loss",
    AnomalyKind.LOSS_RISE: "a rise of the loss",
    AnomalyKind.LOSS_DRIFT: "a slow rise of the loss",
    AnomalyKind.LOSS_STALLED: "a loss that did not fall",
    AnomalyKind.NORM_HIGH: "a large gradient norm",
    AnomalyKind.NORM_LOW: "a small gradient norm",
}

_ENDS: Mapping[EndCause, str] = {
    EndCause.USUAL: "over, values are as usual",
    EndCause.ACCEPTED: "it has lasted so long that it is taken for usual from here on",
    EndCause.LASTS: "it lasts, and is told of as a rise",
    EndCause.VOID: "the run has gone back to before it",
}
