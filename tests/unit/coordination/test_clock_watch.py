"""A wall clock that jumps is told of, one that is merely kept right is not."""

from pathlib import Path

from tests.unit.coordination.fakes import FakeClock
from trainflow.coordination.clock_watch import ClockWatch
from trainflow.coordination.run_record import RunRecord


class SetClock(FakeClock):
    """Its wall clock is ahead of the other by something."""

    ahead_s = 1e9

    def unix_s(self) -> float:
        return self.now_s + self.ahead_s


def test_a_jump_is_told_once_and_so_is_the_way_back(tmp_path: Path):
    record, clock = RunRecord(tmp_path, FakeClock()), SetClock()
    watch = ClockWatch(record, clock)
    for by_s in (0.0, 5000.0, 0.0, 1.9, -5000.0, 0.5):
        clock.ahead_s += by_s
        clock.now_s += 60.0
        watch.tick()
    told = record.events_since(0)
    assert [(each["kind"], each["data"]["by_s"]) for each in told] == [
        ("clock_jumped", 5000.0),
        ("clock_jumped", -5000.0),
    ]
    assert "jumped by +5000.0 s" in told[0]["text"]
