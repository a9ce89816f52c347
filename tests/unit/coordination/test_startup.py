"""Where the time of a start went, from what is known of it."""

import os
import subprocess
import sys

import pytest

from trainflow.clock import SYSTEM_CLOCK
from trainflow.coordination.start_times import StartTimes, read_process_age_s
from trainflow.coordination.startup import (
    PlacedStart,
    RunMoments,
    Share,
    StartPhase,
    WorkerStart,
    name_longest,
    share_out_run,
    share_out_worker,
)

MOMENTS = RunMoments(
    submitted_at_s=100.0, launched_at_s=101.0, formed_at_s=106.0, committed_at_s=106.5
)
QUICK = PlacedStart(103.0, {StartPhase.PROCESS: 0.5, StartPhase.IMPORTS: 1.5})
LATE = PlacedStart(105.75, {StartPhase.PROCESS: 0.25, StartPhase.IMPORTS: 4.5})


class Clock:
    """Time that a test sets; what the machine says of the date is wrong by days."""

    def __init__(self) -> None:
        self.now_s = 50.0

    def monotonic_s(self) -> float:
        return self.now_s

    def unix_s(self) -> float:
        raise AssertionError("another machine's clock may say anything")

    def sleep(self, duration_s: float) -> None:
        raise AssertionError("a stopwatch doesn't sleep")


def begin(process_age_s: float) -> tuple[StartTimes, Clock]:
    """Begin one that was asked for at 1000 s by the coordinator's clock."""
    clock = Clock()
    return StartTimes(1000.0, process_age_s, clock), clock


def told(times: StartTimes) -> WorkerStart:
    told = times.tell()
    assert told is not None
    return told


def test_each_phase_is_what_passed_since_the_one_before():
    times, clock = begin(process_age_s=2.0)
    for phase, now_s in ((StartPhase.IMPORTS, 54.0), (StartPhase.MODEL, 55.0)):
        clock.now_s = now_s
        times.end(phase)
    assert times.tell() is None, "it isn't warm yet"
    clock.now_s = 55.5
    times.finish(StartPhase.REHEARSAL, kernels_s=0.0)
    placed = told(times).place(heard_at_s=1008.5)
    assert placed.phases_s == {
        StartPhase.PLACED: 1.0,
        StartPhase.PROCESS: 2.0,
        StartPhase.IMPORTS: 4.0,
        StartPhase.MODEL: 1.0,
        StartPhase.REHEARSAL: 0.5,
    }
    assert placed.warm_at_s == 1008.5
    assert placed.took_s == 8.5


def test_a_worker_that_is_asked_again_was_warm_when_it_was():
    times, clock = begin(process_age_s=1.0)
    clock.now_s = 53.0
    times.finish(StartPhase.MODEL, kernels_s=0.0)
    first = told(times).place(heard_at_s=1004.0)
    clock.now_s = 653.0
    assert told(times).place(heard_at_s=1604.0) == first


def test_a_process_has_lived_since_it_was_started():
    before_s = SYSTEM_CLOCK.monotonic_s()
    source = f"from {read_process_age_s.__module__} import read_process_age_s as age; print(age())"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, check=True)
    in_all_s = SYSTEM_CLOCK.monotonic_s() - before_s
    assert 0.0 < float(done.stdout) < in_all_s + 0.02, "it is told in hundredths of a second"
    assert read_process_age_s() > in_all_s


def test_a_process_that_has_ended_has_no_age_though_nobody_has_waited_for_it():
    with subprocess.Popen(["true"]) as ended:
        assert os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(ProcessLookupError):
            read_process_age_s(ended.pid)


def test_kernels_are_taken_out_of_the_model_that_they_were_loaded_for():
    times, clock = begin(process_age_s=0.0)
    clock.now_s = 53.0
    times.end(StartPhase.MODEL)
    clock.now_s = 53.5
    times.finish(StartPhase.MODEL, kernels_s=2.0)
    phases = told(times).phases_s
    assert (phases[StartPhase.KERNELS], phases[StartPhase.MODEL]) == (2.0, 1.5)
    assert StartPhase.REHEARSAL not in phases


@pytest.mark.parametrize(
    ("heard_at_s", "process_age_s", "placed_s", "process_s"),
    [
        (1003.0, 60.0, 0.0, 3.0),  # it stood ready before it was wanted
        (990.0, 1.0, 0.0, 0.0),  # the coordinator's clock was set back meanwhile
    ],
)
def test_a_process_counts_from_when_it_was_asked_for(
    heard_at_s: float, process_age_s: float, placed_s: float, process_s: float
):
    times, _ = begin(process_age_s)
    times.finish(StartPhase.MODEL, kernels_s=0.0)
    phases = told(times).place(heard_at_s).phases_s
    assert (phases[StartPhase.PLACED], phases[StartPhase.PROCESS]) == (placed_s, process_s)


def test_a_phase_of_a_run_is_that_of_its_slowest_worker():
    assert share_out_run(MOMENTS, {"slot0-1.0": QUICK, "slot1-1.1": LATE}) == [
        Share("room", 1.0),
        Share("process", 0.5, "slot0-1.0"),
        Share("imports", 4.5, "slot1-1.1"),
        Share("warm", 4.75, "slot1-1.1"),
        Share("forming", 0.25),
        Share("first_step", 0.5),
    ]


def test_what_ray_takes_to_answer_is_not_counted_twice():
    asked_before = PlacedStart(105.75, {StartPhase.PLACED: 0.5, StartPhase.IMPORTS: 4.5})
    shares = {s.phase: s.took_s for s in share_out_run(MOMENTS, {"slot0-1.0": asked_before})}
    assert (shares["room"], shares["warm"]) == (0.75, 5.0)
    whole_s = sum(shares[phase] for phase in ("room", "warm", "forming", "first_step"))
    assert whole_s == MOMENTS.committed_at_s - MOMENTS.submitted_at_s


def test_a_run_of_whose_workers_nothing_is_known_still_has_its_own_phases():
    shares = {share.phase: share.took_s for share in share_out_run(MOMENTS, {})}
    assert shares == {"room": 1.0, "forming": 5.0, "first_step": 0.5}


def test_a_clock_that_was_set_back_makes_no_phase_negative():
    ahead = PlacedStart(200.0, {StartPhase.IMPORTS: 1.0})
    shares = share_out_run(MOMENTS, {"slot0-1.0": ahead})
    assert min(share.took_s for share in shares) == 0.0


def test_a_workers_phases_come_in_their_order():
    start = PlacedStart(0.0, {StartPhase.MODEL: 1.0, StartPhase.PLACED: 2.0})
    assert [share.phase for share in share_out_worker(start)] == ["placed", "model"]


def test_the_longest_three_are_named_and_not_the_whole():
    text = name_longest(share_out_run(MOMENTS, {"slot1-1.1": LATE}))
    assert text == "imports 4.50 s (slot1-1.1), room 1.00 s, first_step 0.50 s"
