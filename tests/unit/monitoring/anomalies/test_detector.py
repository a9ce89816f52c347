"""What is told of a run's steps, by made-up runs with and without something wrong."""

import json
import math
import random
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.anomalies import Tally, find_anomalies
from benchmarks.loss_traces import WRONGS, make_healthy, make_wrong
from trainflow.config.anomalies import AnomaliesConfig
from trainflow.monitoring.anomalies.detector import (
    DetectorState,
    StepValues,
    Verdict,
    observe,
)
from trainflow.monitoring.anomalies.kinds import AnomalyKind, EndCause

LIMITS = AnomaliesConfig()


def run(values: Iterable[StepValues], state: DetectorState | None = None) -> list[Verdict]:
    verdicts: list[Verdict] = []
    for each in values:
        before = verdicts[-1].state if verdicts else state or DetectorState()
        verdicts.append(observe(before, each, LIMITS))
    return verdicts


def usual(begin: int, end: int, loss: float = 2.0, norm: float = 1.0) -> list[StepValues]:
    rng = random.Random(begin)
    return [
        StepValues(step, loss * (1 + rng.gauss(0, 0.01)), norm * (1 + rng.gauss(0, 0.05)))
        for step in range(begin, end)
    ]


def begun(verdicts: Iterable[Verdict]) -> list[AnomalyKind]:
    return [each.kind for verdict in verdicts for each in verdict.begun]


def ended(verdicts: Iterable[Verdict]) -> list[tuple[AnomalyKind, EndCause]]:
    return [(each.anomaly.kind, each.cause) for verdict in verdicts for each in verdict.ended]


@pytest.mark.parametrize("wrong", WRONGS)
def test_what_is_wrong_is_told_of_in_time(wrong: str):
    tally, rng = Tally(), random.Random(wrong)
    for _ in range(3):
        tally.add(make_wrong(rng, wrong), LIMITS)
    assert len(tally.delays.get(wrong, ())) == 3


def test_of_healthy_runs_nothing_is_told():
    rng = random.Random(11)
    assert [find_anomalies(make_healthy(rng), LIMITS) for _ in range(4)] == [[]] * 4


@pytest.mark.parametrize(
    ("loss", "norm"), [(math.nan, 1.0), (math.inf, 1.0), (2.0, math.nan), (2.0, math.inf)]
)
def test_what_is_not_finite_is_told_of_once_and_at_any_step(loss: float, norm: float):
    verdicts = run([*usual(1, 3), StepValues(3, loss, norm), StepValues(4, loss, norm)])
    assert begun(verdicts) == [AnomalyKind.NOT_FINITE]
    verdicts = run(usual(5, 6), verdicts[-1].state)
    assert ended(verdicts) == [(AnomalyKind.NOT_FINITE, EndCause.USUAL)]


def test_an_overflow_of_scaled_gradients_is_no_anomaly():
    for norm, expected in ((math.inf, 0), (1.0, 0)):
        verdict = observe(DetectorState(), StepValues(1, 2.0, norm), LIMITS, may_overflow=True)
        assert len(verdict.begun) == expected
    verdict = observe(DetectorState(), StepValues(1, math.nan, 1.0), LIMITS, may_overflow=True)
    assert len(verdict.begun) == 1


def test_a_step_that_is_not_finite_ends_nothing_else():
    state = run([*usual(1, 200), StepValues(200, 8.0, 9.0)])[-1].state
    assert state.current.keys() == {"loss_spike", "norm_high"}
    (verdict,) = run([StepValues(201, math.nan, math.nan)], state)
    assert verdict.ended == ()
    assert verdict.state.current.keys() == {"loss_spike", "norm_high", "not_finite"}


def test_a_spike_is_told_of_with_its_figures_and_its_end():
    verdicts = run([*usual(1, 200), StepValues(200, 8.0, 1.0), *usual(201, 210)])
    (spike,) = (each for verdict in verdicts for each in verdict.begun)
    assert (spike.kind, spike.since_step, spike.value) == (AnomalyKind.LOSS_SPIKE, 200, 8.0)
    assert spike.expected == pytest.approx(2.0, rel=0.05)
    assert spike.score > 50
    assert ended(verdicts) == [(AnomalyKind.LOSS_SPIKE, EndCause.USUAL)]


def test_a_spike_that_lasts_becomes_a_rise_and_is_accepted_at_last():
    verdicts = run([*usual(1, 600), *usual(600, 2500, loss=3.0)])
    assert begun(verdicts) == [AnomalyKind.LOSS_SPIKE, AnomalyKind.LOSS_RISE]
    assert ended(verdicts) == [
        (AnomalyKind.LOSS_SPIKE, EndCause.LASTS),
        (AnomalyKind.LOSS_RISE, EndCause.ACCEPTED),
    ]


def test_a_norm_that_stays_high_is_accepted():
    verdicts = run([*usual(1, 200), *usual(200, 600, norm=10.0)])
    assert begun(verdicts) == [AnomalyKind.NORM_HIGH]
    assert ended(verdicts) == [(AnomalyKind.NORM_HIGH, EndCause.ACCEPTED)]


def test_a_loss_that_stands_still_is_told_with_that_loss():
    verdicts = run([StepValues(step, 2.5, 1.0) for step in range(1, 30)])
    (stall,) = (each for verdict in verdicts for each in verdict.begun)
    assert (stall.kind, stall.since_step) == (AnomalyKind.LOSS_STALLED, 1)
    assert stall.value == stall.expected == 2.5


def test_a_stall_is_told_of_from_where_it_began():
    verdicts = run([*usual(1, 200, loss=3.0), *usual(200, 1500)])
    (stall,) = (each for verdict in verdicts for each in verdict.begun)
    assert stall.kind is AnomalyKind.LOSS_STALLED
    assert 200 <= stall.since_step <= 500
    assert stall.expected == pytest.approx(2.0, rel=0.02)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1000), cut=st.integers(0, 250), wrong=st.sampled_from(sorted(WRONGS)))
def test_a_state_that_was_kept_goes_on_as_if_it_had_not_been(seed: int, cut: int, wrong: str):
    values = make_wrong(random.Random(seed), wrong, num_steps=250).values
    whole = run(values)
    before = whole[cut - 1].state if cut else DetectorState()
    kept = json.loads(json.dumps(before.to_json()))
    resumed = run(values[cut:], DetectorState.from_json(kept))
    assert [repr(each) for each in resumed] == [repr(each) for each in whole[cut:]]


@pytest.mark.parametrize(
    "change",
    [
        {"loss": {}},
        {"level": {"block": []}},
        {"current": {"loss_spike": {"kind": "no_such"}}},
        {"current": []},
        {"norm": 3},
    ],
)
def test_what_is_no_state_is_refused(change: dict[str, object]):
    with pytest.raises(ValueError, match="got no state"):
        DetectorState.from_json(DetectorState().to_json() | change)
    with pytest.raises(ValueError, match="got no state"):
        DetectorState.from_json({})
