"""Figures of the detector come from when each run was told of, and from nothing else."""

import random

import pytest

from benchmarks.anomalies import Tally
from benchmarks.loss_traces import WRONGS, Trace, make_healthy, make_wrong
from trainflow.config.anomalies import AnomaliesConfig
from trainflow.monitoring.anomalies.detector import StepValues
from trainflow.monitoring.anomalies.kinds import AnomalyKind

LIMITS = AnomaliesConfig()


def trace_of(nan_at: int, from_step: int, until_step: int) -> Trace:
    values = [StepValues(n, float("nan") if n == nan_at else 2.0, 1.0) for n in range(1, 11)]
    return Trace(values, "not_finite", from_step, until_step)


def rows_of(*traces: Trace) -> dict[str, float]:
    tally = Tally()
    for trace in traces:
        tally.add(trace, LIMITS)
    return {row.metric: row.value for row in tally.rows()}


def test_what_is_told_in_time_counts_for_recall_with_its_delay():
    rows = rows_of(trace_of(5, 4, 6), trace_of(7, 4, 6))
    assert rows["recall_not_finite"] == 0.5
    assert rows["delay_not_finite"] == 1
    assert rows["false_alarms_not_finite"] == 0


def test_what_is_told_before_anything_is_wrong_is_a_false_alarm():
    rows = rows_of(trace_of(2, 4, 6))
    assert rows["recall_not_finite"] == 0
    assert "delay_not_finite" not in rows
    assert rows["false_alarms_not_finite"] == pytest.approx(10_000 / 3)


def test_of_a_healthy_run_everything_is_a_false_alarm():
    rows = rows_of(Trace(trace_of(5, 0, 0).values))
    assert rows["false_alarms_not_finite"] == pytest.approx(1000)
    assert rows.keys() == {f"false_alarms_{kind}" for kind in AnomalyKind}


@pytest.mark.parametrize("wrong", WRONGS)
def test_a_made_up_run_is_healthy_until_something_is_wrong_with_it(wrong: str):
    trace = make_wrong(random.Random(3), wrong, num_steps=400)
    assert [each.step for each in trace.values] == list(range(1, 401))
    assert 0 < trace.from_step <= trace.until_step <= 1500
    again = make_wrong(random.Random(3), wrong, num_steps=400)
    assert [repr(e) for e in again.values] == [repr(e) for e in trace.values], "from the seed"


def test_a_healthy_run_falls():
    values = make_healthy(random.Random(1)).values
    assert values[-1].loss < values[0].loss
    assert min(each.norm for each in values) > 0
