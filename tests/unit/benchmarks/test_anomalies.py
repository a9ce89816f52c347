"""Figures of the detector come from when each run was told of, and from nothing else."""

import random
from collections import Counter
from typing import Any

import pytest

from benchmarks.anomalies import Tally, demo_rows
from benchmarks.demo_losses import QUICK_RUNS, DemoRuns, find_told
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


def watched(*events: dict[str, Any], num_steps: int = 3, state: str = "succeeded") -> Any:
    steps = [{"step": step} for step in range(1, num_steps + 1)]
    return {"state": state, "ending": None, "steps": steps, "events": [*events]}


def event(kind: str, **data: str) -> dict[str, Any]:
    return {"kind": kind, "data": data}


def test_of_a_run_of_the_demo_each_anomaly_counts():
    spike = event("anomaly", anomaly="loss_spike")
    told = find_told(watched(spike, event("anomaly_over", anomaly="loss_spike"), spike), 3)
    assert told == {"loss_spike": 2}
    rows = {row.metric: row.value for row in demo_rows(DemoRuns((1, 2), 500), told)}
    assert rows["steps"] == 1000
    assert (rows["false_alarms_loss_spike"], rows["false_alarms"]) == (2, 2)
    assert demo_rows(QUICK_RUNS, Counter())[-1].value == 0


@pytest.mark.parametrize(
    "status",
    [
        watched(num_steps=2),
        watched(state="failed"),
        watched(event("detector_off", detector="anomalies")),
        watched(event("monitoring_failed", follower="AnomalyWatch")),
    ],
    ids=["a step is missing", "failed", "detector off", "follower gone"],
)
def test_a_run_that_was_not_watched_to_its_end_does_not_count(status: Any):
    with pytest.raises(RuntimeError, match="not watched to its end"):
        find_told(status, 3)
