"""Tell that the wall clock of the coordinator's machine was set, or that the machine was suspended.

What outlives a coordinator goes by CLOCK_REALTIME, and so do figures of a whole run: the ledger,
the times of events. Where that jumps, those that span the jump are wrong, and nothing else says so.

Process: coordinator.  Thread: its event loop.  Blocks: never.
"""

from trainflow.clock import Clock
from trainflow.coordination.run_record import RunRecord

CLOCK_JUMPED = "clock_jumped"
_AT_LEAST_S = 2.0  # clocks that are kept right are moved by less, little by little


class ClockWatch:
    """Compares the wall clock with one that can't be set."""

    def __init__(self, record: RunRecord, clock: Clock):
        self._record = record
        self._clock = clock
        self._ahead_s = clock.unix_s() - clock.monotonic_s()

    def tick(self) -> None:
        """Look whether it has jumped since the last time."""
        ahead_s = self._clock.unix_s() - self._clock.monotonic_s()
        by_s, self._ahead_s = ahead_s - self._ahead_s, ahead_s
        if abs(by_s) < _AT_LEAST_S:
            return
        text = (
            f"the clock of the coordinator's machine (CLOCK_REALTIME) jumped by {by_s:+.1f} s: "
            "times of events and figures that span it, the goodput above all, are wrong by as much"
        )
        self._record.add_event(CLOCK_JUMPED, text, by_s=by_s)
