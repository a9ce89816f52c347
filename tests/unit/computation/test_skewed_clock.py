"""A clock is wrong for as long as a campaign says so, and in no process but the one it means."""

import os
from pathlib import Path

from trainflow.clock import SYSTEM_CLOCK, SystemClock
from trainflow.computation.skewed_clock import follow_skew, read_followed, skew_clock

DEADLINE_S = 20.0


def wait_for(clock: SystemClock, skew_s: float) -> None:
    deadline_s = SYSTEM_CLOCK.monotonic_s() + DEADLINE_S
    while clock.skew_s != skew_s:
        assert SYSTEM_CLOCK.monotonic_s() < deadline_s, clock.skew_s
        SYSTEM_CLOCK.sleep(0.01)


def test_a_clock_is_wrong_until_it_is_right_again(tmp_path: Path):
    clock, other = SystemClock(), SystemClock()
    follow_skew(tmp_path / "run", os.getpid(), clock)
    follow_skew(tmp_path / "run", os.getpid() + 1, other)
    skew_clock(tmp_path / "run", os.getpid(), -3600.0)
    wait_for(clock, -3600.0)
    assert abs(clock.unix_s() + 3600.0 - SYSTEM_CLOCK.unix_s()) < DEADLINE_S
    assert abs(clock.monotonic_s() - SYSTEM_CLOCK.monotonic_s()) < DEADLINE_S
    skew_clock(tmp_path / "run", os.getpid(), 0.0)
    wait_for(clock, 0.0)
    assert read_followed(tmp_path / "run", os.getpid()) == [-3600.0, 0.0]
    assert read_followed(tmp_path / "run", os.getpid() + 1) == []
    assert other.skew_s == 0.0


def test_outside_a_campaign_nobody_looks(tmp_path: Path):
    clock = SystemClock()
    skew_clock(tmp_path, os.getpid(), 5.0)
    follow_skew(None, os.getpid(), clock)
    assert clock.skew_s == 0.0
