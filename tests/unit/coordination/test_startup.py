"""Where the time of a start went, from what is known of it."""

import subprocess
import sys

import pytest

from trainflow.clock import SYSTEM_CLOCK
from trainflow.coordination.start_times import StartTimes, read_process_age_s
from trainflow.coordination.startup import (
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
QUICK = WorkerStart(103.0, {StartPhase.PROCESS: 0.5, StartPhase.IMPORTS: 1.5})
LATE = WorkerStart(105.75, {StartPhase.PROCESS: 0.25, StartPhase.IMPORTS: 4.5})


class Clock:
    """Time that a test sets; the two clocks differ."""

    def __init__(self) -> None:
        self.now_s = 50.0

    def monotonic_s(self) -> float:
        return self.now_s

    def unix_s(self) -> float:
        return 1000.0 + self.now_s

    def sleep(self, duration_s: float) -> None:
        raise AssertionError("a stopwatch doesn't sleep")


def begin(asked_at_s: float, process_age_s: float) -> tuple[StartTimes, Clock]:
    clock = Clock()
    return StartTimes(asked_at_s, process_age_s, clock), clock


def phases_of(times: StartTimes) -> dict[StartPhase, float]:
    assert times.result is not None
    return dict(times.result.phases_s)


def test_each_phase_is_what_passed_since_the_one_before():
    times, clock = begin(asked_at_s=1047.0, process_age_s=2.0)
    for phase, now_s in ((StartPhase.IMPORTS, 54.0), (StartPhase.MODEL, 55.0)):
        clock.now_s = now_s
        times.end(phase)
    assert times.result is None, "it isn't warm yet"
    clock.now_s = 55.5
    times.finish(StartPhase.REHEARSAL, kernels_s=0.0)
    assert phases_of(times) == {
        StartPhase.PLACED: 1.0,
        StartPhase.PROCESS: 2.0,
        StartPhase.IMPORTS: 4.0,
        StartPhase.MODEL: 1.0,
        StartPhase.REHEARSAL: 0.5,
    }
    assert times.result is not None
    assert times.result.warm_at_s == 1055.5
    assert times.result.took_s == 8.5


def test_a_process_has_lived_since_it_was_started():
    before_s = SYSTEM_CLOCK.monotonic_s()
    source = f"from {read_process_age_s.__module__} import read_process_age_s as age; print(age())"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, check=True)
    in_all_s = SYSTEM_CLOCK.monotonic_s() - before_s
    assert 0.0 < float(done.stdout) < in_all_s + 0.02, "it is told in hundredths of a second"
    assert read_process_age_s() > in_all_s


def test_kernels_are_taken_out_of_the_model_that_they_were_loaded_for():
    times, clock = begin(asked_at_s=1050.0, process_age_s=0.0)
    clock.now_s = 53.0
    times.end(StartPhase.MODEL)
    clock.now_s = 53.5
    times.finish(StartPhase.MODEL, kernels_s=2.0)
    phases = phases_of(times)
    assert (phases[StartPhase.KERNELS], phases[StartPhase.MODEL]) == (2.0, 1.5)
    assert StartPhase.REHEARSAL not in phases


@pytest.mark.parametrize(
    ("asked_at_s", "process_age_s", "placed_s", "process_s"),
    [
        (1047.0, 60.0, 0.0, 3.0),  # it stood ready before it was wanted
        (1060.0, 1.0, 0.0, 0.0),  # the coordinator's clock is ahead
    ],
)
def test_a_process_counts_from_when_it_was_asked_for(
    asked_at_s: float, process_age_s: float, placed_s: float, process_s: float
):
    times, _ = begin(asked_at_s, process_age_s)
    times.finish(StartPhase.MODEL, kernels_s=0.0)
    phases = phases_of(times)
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


def test_a_run_of_whose_workers_nothing_is_known_still_has_its_own_phases():
    shares = {share.phase: share.took_s for share in share_out_run(MOMENTS, {})}
    assert shares == {"room": 1.0, "forming": 5.0, "first_step": 0.5}


def test_clocks_that_disagree_make_no_phase_negative():
    ahead = WorkerStart(200.0, {StartPhase.IMPORTS: 1.0})
    shares = share_out_run(MOMENTS, {"slot0-1.0": ahead})
    assert min(share.took_s for share in shares) == 0.0


def test_a_workers_phases_come_in_their_order():
    start = WorkerStart(0.0, {StartPhase.MODEL: 1.0, StartPhase.PLACED: 2.0})
    assert [share.phase for share in share_out_worker(start)] == ["placed", "model"]


def test_the_longest_three_are_named_and_not_the_whole():
    text = name_longest(share_out_run(MOMENTS, {"slot1-1.1": LATE}))
    assert text == "imports 4.50 s (slot1-1.1), room 1.00 s, first_step 0.50 s"
