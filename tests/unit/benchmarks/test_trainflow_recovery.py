"""What the coordinator's record adds to a sample, and what may not replace what was seen."""

from typing import Any

import pytest

from benchmarks import recovery
from benchmarks.peers.samples import Kill, RecoverySample
from benchmarks.trainflow_recovery import (
    HANG,
    HANG_TIMEOUT_S,
    NODE_LOSS,
    WITH_SPARES,
    Scenario,
    complete_sample,
    find_recovered,
    make_job,
)

KILL = Kill(unix_s=100.0, pid=11, generation=1)
SAMPLE = RecoverySample(3.75, 0.25, steps_lost=1, phase_in_step_ratio=0.5, phases={})


def make_recovered(noticed_at_s: float) -> dict[str, Any]:
    data = {
        "noticed_at_s": noticed_at_s,
        "freed_s": 0.01,
        "connected_s": 0.03,
        "parked_s": 0.07,
        "begun_at_s": noticed_at_s + 0.1,
        "healed_at_s": noticed_at_s + 0.25,
        "steps_lost": 0,
    }
    return {"kind": "recovered", "at_s": noticed_at_s + 0.5, "data": data}


def make_hang(at_s: float) -> dict[str, Any]:
    return {"kind": "hang", "at_s": at_s, "data": {"worker": "slot1"}}


def test_steps_lost_is_what_the_ranks_saw_and_not_what_the_coordinator_says():
    sample = complete_sample(SAMPLE, KILL, [make_recovered(100.05)], WITH_SPARES)
    assert sample.steps_lost == 1


def test_phases_sum_to_the_recovery():
    sample = complete_sample(SAMPLE, KILL, [make_recovered(100.05)], WITH_SPARES)
    assert sum(sample.phases.values()) == pytest.approx(SAMPLE.recovery_s)
    assert sample.phases["seen"] == pytest.approx(0.05)
    assert sample.detect_s is None


def test_a_recovery_belongs_to_the_kill_before_it():
    events = [make_recovered(110.05), make_recovered(90.0), make_recovered(100.05)]
    assert find_recovered(events, KILL) == events[2]
    assert find_recovered(events[1:2], KILL) is None


def test_the_verdict_is_the_first_one_after_the_stop():
    events = [make_hang(90.0), make_hang(103.125), make_hang(113.0), make_recovered(103.125)]
    assert complete_sample(SAMPLE, KILL, events, HANG).detect_s == pytest.approx(3.125)


def test_a_stop_without_a_verdict_is_no_measurement():
    with pytest.raises(ValueError, match="no verdict"):
        complete_sample(SAMPLE, KILL, [make_hang(90.0), make_recovered(103.0)], HANG)


@pytest.mark.parametrize("scenario", [WITH_SPARES, NODE_LOSS, HANG])
def test_only_a_run_that_is_stopped_has_a_hang_timeout_of_its_own(scenario: Scenario, tmp_path):
    expected = HANG_TIMEOUT_S if scenario.victim == "hang" else "auto"
    job = make_job(tmp_path, scenario)
    assert job.failures.hang_timeout_s == expected
    assert job.workers.spares == scenario.num_spares


def test_a_hang_is_reported_beyond_its_timeout():
    events = [make_hang(103.125), make_recovered(103.125)]
    stopped = complete_sample(SAMPLE, KILL, events, HANG)
    killed = complete_sample(SAMPLE, KILL, events, WITH_SPARES)
    rows = recovery.to_rows({"trainflow": [killed], "trainflow_hang": [stopped]})
    found = {(row.system, row.metric): row.value for row in rows}
    assert found["trainflow_hang", "detect_beyond_timeout_s"] == pytest.approx(0.125)
    assert found["trainflow_hang", "recovery_beyond_timeout_s"] == pytest.approx(0.75)
    assert ("trainflow", "detect_beyond_timeout_s") not in found
    assert found["trainflow_hang", "steps_lost"] == 1


def test_every_planned_system_can_be_measured():
    assert recovery.FULL_KILLS.keys() == recovery.SYSTEMS.keys()
    assert recovery.QUICK_KILLS.keys() <= recovery.SYSTEMS.keys()
