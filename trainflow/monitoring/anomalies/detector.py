"""Tell of anomalies in a run's losses and gradient norms, step by step. Pure.

The state is a value: it is kept with the run, and a run that goes back to an earlier step goes on
with the state of that step. A step takes the same time whatever came before it.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, TypeVar, cast

from trainflow.config.anomalies import AnomaliesConfig
from trainflow.monitoring.anomalies.kinds import AnomalyKind, EndCause
from trainflow.monitoring.anomalies.levels import Level, follow
from trainflow.monitoring.anomalies.outliers import Judged, Series, borrow_spread, judge


@dataclass(frozen=True)
class StepValues:
    """What a committed step came to; norms are those before clipping."""

    step: int
    loss: float
    norm: float


@dataclass(frozen=True)
class Anomaly:
    """Something to tell of.

    Attributes:
        kind: what is wrong.
        since_step: the step that it was found in.
        value: of that step; of a rise, a drift and a stall the median of the newest steps.
        expected: what it would have been; of a rise and a drift the lowest before; of a stall what
            it has not fallen below, and of a loss that is the very same that loss.
        score: by how many spreads it is off; 0 where that isn't what it was found by.
    """

    kind: AnomalyKind
    since_step: int
    value: float
    expected: float
    score: float = 0.0


@dataclass(frozen=True)
class Ended:
    """Something that there is to tell of no more."""

    anomaly: Anomaly
    cause: EndCause
    step: int


@dataclass(frozen=True)
class DetectorState:
    """All that is known of a run's steps so far.

    Attributes:
        loss: of single steps.
        norm: of single steps.
        level: of blocks of steps.
        current: what there is to tell of, by kind.
    """

    loss: Series = field(default_factory=Series)
    norm: Series = field(default_factory=Series)
    level: Level = field(default_factory=Level)
    current: Mapping[str, Anomaly] = field(default_factory=dict[str, Anomaly])

    def to_json(self) -> dict[str, Any]:
        """Return it as plain JSON, of which `from_json` makes the very same state."""
        current = {name: _keep_anomaly(each) for name, each in self.current.items()}
        return asdict(self) | {"current": current}

    @classmethod
    def from_json(cls, kept: Mapping[str, Any]) -> "DetectorState":
        """Make a state of what `to_json` returned, also after it has been JSON.

        Raises:
            ValueError: that is no such state.
        """
        try:
            current = {name: _restore_anomaly(each) for name, each in kept["current"].items()}
            return cls(
                _restore(Series, kept["loss"]),
                _restore(Series, kept["norm"]),
                _restore(Level, kept["level"]),
                current,
            )
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"got no state of a detector: {error!r}") from error


def go_back(to: DetectorState, known: DetectorState) -> DetectorState:
    """Return the state of an earlier step, with what it lacks to judge by from a later one."""
    loss, norm = borrow_spread(to.loss, known.loss), borrow_spread(to.norm, known.norm)
    return to if (loss, norm) == (to.loss, to.norm) else replace(to, loss=loss, norm=norm)


@dataclass(frozen=True)
class Verdict:
    """What a step came to.

    Attributes:
        state: what is known now.
        begun: anomalies found in this step.
        ended: those that are over with it.
    """

    state: DetectorState
    begun: tuple[Anomaly, ...] = ()
    ended: tuple[Ended, ...] = ()


def observe(
    state: DetectorState, values: StepValues, limits: AnomaliesConfig, *, may_overflow: bool = False
) -> Verdict:
    """Take the next committed step.

    Args:
        state: what is known of those before.
        values: of the step.
        limits: from where on something is an anomaly.
        may_overflow: a norm that is not finite is no anomaly by itself: under fp16 the scale of the
            loss is found by overflows.
    """
    bad = _find_not_finite(values, may_overflow=may_overflow)
    found: dict[AnomalyKind, Anomaly] = {} if bad is None else {bad.kind: bad}
    causes: dict[AnomalyKind, EndCause] = {}
    after = state
    if math.isfinite(values.loss):
        loss = judge(state.loss, values.loss, limits.spike_z, low_is_fine=True)
        level = follow(state.level, values.loss, limits.rise_ratio, limits.stalled_after_steps)
        after = replace(after, loss=loss.series, level=level)
        found |= _find_spike(loss, values) | _find_levels(level, values.step)
        causes |= _find_causes(loss, state.level, level)
    else:
        found |= {each.kind: each for each in state.current.values() if _is_of_loss(each.kind)}
    if math.isfinite(values.norm):
        norm = judge(state.norm, values.norm, limits.norm_z)
        after = replace(after, norm=norm.series)
        found |= _find_odd_norm(norm, values)
        if norm.accepted:
            causes |= dict.fromkeys(
                (AnomalyKind.NORM_HIGH, AnomalyKind.NORM_LOW), EndCause.ACCEPTED
            )
    else:
        found |= {each.kind: each for each in state.current.values() if _is_of_norm(each.kind)}
    return _compare(after, found, causes, values.step)


def _compare(
    state: DetectorState,
    found: Mapping[AnomalyKind, Anomaly],
    causes: Mapping[AnomalyKind, EndCause],
    step: int,
) -> Verdict:
    """Say what has begun and what is over, by what was told of before."""
    before = state.current
    current = {str(kind): before.get(kind, anomaly) for kind, anomaly in found.items()}
    begun = tuple(anomaly for kind, anomaly in found.items() if kind not in before)
    ended = tuple(
        Ended(anomaly, causes.get(anomaly.kind, EndCause.USUAL), step)
        for name, anomaly in before.items()
        if name not in current
    )
    return Verdict(replace(state, current=current), begun, ended)


def _find_not_finite(values: StepValues, *, may_overflow: bool) -> Anomaly | None:
    if not math.isfinite(values.loss):
        return Anomaly(AnomalyKind.NOT_FINITE, values.step, values.loss, 0.0)
    if not math.isfinite(values.norm) and not may_overflow:
        return Anomaly(AnomalyKind.NOT_FINITE, values.step, values.norm, 0.0)
    return None


def _find_spike(loss: Judged, values: StepValues) -> dict[AnomalyKind, Anomaly]:
    if loss.series.side <= 0:
        return {}
    kind = AnomalyKind.LOSS_SPIKE
    return {kind: Anomaly(kind, values.step, values.loss, loss.expected, loss.score)}


def _find_odd_norm(norm: Judged, values: StepValues) -> dict[AnomalyKind, Anomaly]:
    if norm.series.side == 0:
        return {}
    kind = AnomalyKind.NORM_HIGH if norm.series.side > 0 else AnomalyKind.NORM_LOW
    return {kind: Anomaly(kind, values.step, values.norm, norm.expected, norm.score)}


def _find_levels(level: Level, step: int) -> dict[AnomalyKind, Anomaly]:
    """Return what blocks of steps tell of."""
    found: dict[AnomalyKind, Anomaly] = {}
    kinds = {"sudden": AnomalyKind.LOSS_RISE, "slow": AnomalyKind.LOSS_DRIFT}
    if level.rise:
        kind = kinds[level.rise]
        found[kind] = Anomaly(kind, step, level.median_value, level.lowest_value)
    if level.is_stalled:
        kind = AnomalyKind.LOSS_STALLED
        since = step - (level.num_same if level.is_frozen else level.num_steps - level.mark_at)
        expected = level.newest if level.is_frozen else level.mark_value
        found[kind] = Anomaly(kind, since, level.newest, expected)
    return found


def _find_causes(loss: Judged, before: Level, level: Level) -> dict[AnomalyKind, EndCause]:
    """Return why what is over is, where it isn't that values are what they were."""
    causes: dict[AnomalyKind, EndCause] = {}
    if loss.accepted:
        causes[AnomalyKind.LOSS_SPIKE] = EndCause.LASTS if level.rise else EndCause.ACCEPTED
    if before.rise and not level.rise and level.lowest == level.median:
        both = (AnomalyKind.LOSS_RISE, AnomalyKind.LOSS_DRIFT)
        causes |= dict.fromkeys(both, EndCause.ACCEPTED)
    return causes


def _is_of_loss(name: str) -> bool:
    return name.startswith("loss_")


def _is_of_norm(name: str) -> bool:
    return name.startswith("norm_")


_FIGURES = ("value", "expected", "score")


def _keep_anomaly(anomaly: Anomaly) -> dict[str, Any]:
    """Return it as JSON, where what is not finite is text."""
    figures = {name: getattr(anomaly, name) for name in _FIGURES}
    texts = {name: str(value) for name, value in figures.items() if not math.isfinite(value)}
    return asdict(anomaly) | texts


def _restore_anomaly(kept: Mapping[str, Any]) -> Anomaly:
    figures = {name: float(kept[name]) for name in _FIGURES}
    values: dict[str, Any] = dict(kept) | {"kind": AnomalyKind(kept["kind"])} | figures
    return Anomaly(**values)


Kept = TypeVar("Kept", Series, Level)


def _restore(kind: type[Kept], kept: Mapping[str, Any]) -> Kept:
    """Make a dataclass of plain values of what JSON has made of it: lists are tuples."""
    known = {each.name for each in fields(kind)}
    if set(kept) != known:
        raise ValueError(f"got {sorted(kept)}, expected {sorted(known)}")
    return kind(**{name: _as_tuple(value) for name, value in kept.items()})


def _as_tuple(value: Any) -> Any:  # noqa: ANN401  JSON
    return tuple(cast("list[float]", value)) if isinstance(value, list) else value
