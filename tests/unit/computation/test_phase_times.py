"""How long a training thread is in each phase, from what it stamps."""

from pathlib import Path

import pytest

from trainflow.computation.phase_times import PhaseTimes, tell_waiting_apart
from trainflow.computation.stamps import StampWriter
from trainflow.epochs import INITIAL_EPOCH, Phase
from trainflow.monitoring.phases import STEP_PHASES


def test_each_phase_has_the_time_until_the_next():
    times = PhaseTimes()
    moments = [(Phase.DATA, 10.0), (Phase.COMPUTE, 11.0), (Phase.DATA, 13.0), (Phase.COMPUTE, 13.5)]
    for phase, at_s in moments:
        times.enter(phase, at_s)
    assert times.take(15.0) == {"data": 1.5, "compute": 3.5}
    assert times.take(16.0) == {"compute": 1.0}, "what follows counts for the next step"


def test_what_comes_before_the_first_step_is_of_none():
    times = PhaseTimes()
    times.enter(Phase.STARTING, 5.0)
    times.enter(Phase.PARKED, 8.0)
    times.enter(Phase.HEALING, 9.0)
    times.enter(Phase.COMPUTE, 10.0)
    assert times.take(11.0) == {"compute": 1.0}


def test_an_abandoned_try_counts_for_no_step():
    times = PhaseTimes()
    times.enter(Phase.COMPUTE, 10.0)
    times.enter(Phase.PARKED, 14.0)
    times.enter(Phase.USER, 20.0)
    assert times.take(20.5) == {"user": 0.5}


def test_a_writer_of_stamps_keeps_them(tmp_path: Path):
    writer = StampWriter(tmp_path / "job" / "node" / "a.stamp")
    try:
        assert writer.take_phases() == {}
        writer.stamp(Phase.DATA, step=1, epoch=INITIAL_EPOCH, sequence=0)
        with writer.waiting():
            pass
        taken = writer.take_phases()
        assert taken.keys() == {"data", "communicate"}
        assert min(taken.values()) >= 0
    finally:
        writer.close()


@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.PARKED, Phase.HEALING, Phase.RESTORING])
def test_what_is_no_part_of_a_step(phase: Phase):
    assert not phase.is_of_step


def test_what_the_last_rank_did_not_wait_was_waiting_for_it():
    told = tell_waiting_apart({"compute": 1.0, "communicate": 0.5, "commit": 0.25}, 0.375)
    assert told == {"compute": 1.0, "communicate": 0.125, "wait": 0.375, "commit": 0.25}


def test_the_rank_that_came_last_waited_for_nobody():
    assert tell_waiting_apart({"communicate": 0.5}, 0.0) == {"communicate": 0.5, "wait": 0.0}
    assert tell_waiting_apart({"compute": 0.5}, 0.0) == {"compute": 0.5}, "it was alone"


@pytest.mark.parametrize("phases_s", [{"communicate": 0.5}, {"compute": 1.0}, {}])
def test_waiting_takes_no_more_from_communicating_than_there_is(phases_s: dict[str, float]):
    told = tell_waiting_apart(phases_s, 2.0)
    assert sum(told.values()) == sum(phases_s.values())
    assert min(told.values(), default=0.0) >= 0.0
    assert set(told) <= set(STEP_PHASES)
