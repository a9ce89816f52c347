"""When bytes of a copy may go to another node: while no rank waits for the link, but in time.

Process: keeper.  Thread: the one that copies.  Blocks: while training waits for the link.
"""

import math
from collections.abc import Callable

from trainflow.clock import Clock

_LOOK_EVERY_S = 0.002
_ARRIVES_AFTER_S = 0.0005
_FREE_FOR_S = 0.002
_BURST_S = 0.003
_BURST_BYTES_AT_LEAST = 64 * 1024
_GROWTH = 2
_SCARCE_FROM = 0.5  # part of the time in which training wants the link
_SCARCE_SHARE = 0.02
_REMEMBERED_S = 5.0
_LOOK_COUNTS_S = 0.05  # at most; between two copies nobody looks
_SHORTEST_S = 1e-6
_SILENT_AT_MOST_S = 20.0


class CopyPace:
    """Lets bytes go while no rank of this node waits for others: the link is theirs till then.

    A rank waits when it exchanges with others and does nothing else, and while it heals or is
    healed from. What travels while it computes doesn't count: gradients during backward, and
    parameters of a sharded model as they are gathered. A copy goes on beside them, and shares the
    link with them.

    What has been sent can't be held back any more, and is in training's way once that wants the
    link. So no more goes at once than the link carries in some milliseconds, as measured, and the
    next once that has arrived. Where training waits for the link most of the time nothing is free:
    what others send, or this node still has to, uses it while a rank computes. So there a copy
    takes a small share of the time alone. It has a time to arrive in, and one that is behind goes
    on beside training.
    """

    def __init__(
        self,
        within_s: float,
        max_bytes_per_s: int | None,
        is_link_wanted: Callable[[], bool],
        clock: Clock,
    ):
        """Make a pace for one copy after the other.

        Args:
            within_s: seconds in which all copies of one state are to have gone.
            max_bytes_per_s: that are sent in any case; None for no such limit.
            is_link_wanted: whether training waits for what others send.
            clock: waits.
        """
        self._within_s = within_s
        self._max_bytes_per_s = max_bytes_per_s
        self._is_link_wanted = is_link_wanted
        self._clock = clock
        self._next_at_s = clock.monotonic_s()
        self._began_at_s = self._next_at_s
        self._bytes_per_s = 0.0
        self._num_sent = 0
        self._free_until_s = self._next_at_s
        self._burst_bytes = _BURST_BYTES_AT_LEAST
        self._burst_began_s = self._next_at_s
        self._in_burst = 0
        self._next_burst_at_s = self._next_at_s
        self._wanted_share = 0.0
        self._looked_at_s = self._next_at_s

    def begin(self, num_bytes: int, *, one_of: int = 1) -> None:
        """Begin a copy of ``num_bytes``, one of several of the same state."""
        self._began_at_s = self._clock.monotonic_s()
        self._bytes_per_s = num_bytes * one_of / self._within_s
        self._num_sent = self._in_burst = 0

    def before(self, num_bytes: int, num_under_way: Callable[[], int]) -> None:
        """Wait until the copy's next ``num_bytes`` may go.

        Args:
            num_bytes: at most that many.
            num_under_way: returns how many bytes haven't arrived yet.
        """
        now_s = self._clock.monotonic_s()
        if self._next_at_s > now_s:
            self._clock.sleep(self._next_at_s - now_s)
        self._num_sent += num_bytes
        # The other node takes a longer silence for the end of the connection.
        until_s = self._clock.monotonic_s() + _SILENT_AT_MOST_S
        while self._clock.monotonic_s() < until_s and not self._is_due():
            if self._has_arrived(num_bytes, num_under_way) and self._is_link_free():
                break
            self._clock.sleep(_ARRIVES_AFTER_S if self._in_burst else _LOOK_EVERY_S)
        if not self._in_burst:
            self._burst_began_s = self._clock.monotonic_s()
        self._in_burst += num_bytes
        if self._max_bytes_per_s is not None:
            spent_s = num_bytes / self._max_bytes_per_s
            self._next_at_s = max(self._next_at_s, self._clock.monotonic_s()) + spent_s

    def _has_arrived(self, num_bytes: int, num_under_way: Callable[[], int]) -> bool:
        """Whether there is room in the burst, or it has arrived and there may be another."""
        if not self._in_burst or self._in_burst + num_bytes <= self._burst_bytes:
            return True
        if num_under_way():
            return False
        took_s = max(self._clock.monotonic_s() - self._burst_began_s, _SHORTEST_S)
        fits = int(self._in_burst * _BURST_S / took_s)
        self._burst_bytes = max(_BURST_BYTES_AT_LEAST, min(fits, _GROWTH * self._burst_bytes))
        self._in_burst = 0
        if self._wanted_share > _SCARCE_FROM:
            self._next_burst_at_s = self._burst_began_s + took_s / _SCARCE_SHARE
            self._free_until_s = self._burst_began_s
        return True

    def _is_link_free(self) -> bool:
        """Whether a burst may go; a moment ago will do, since asking takes time."""
        now_s = self._clock.monotonic_s()
        if now_s < self._free_until_s:
            return True
        if self._look(now_s) or now_s < self._next_burst_at_s:
            return False
        self._free_until_s = now_s + _FREE_FOR_S
        return True

    def _look(self, now_s: float) -> bool:
        """Ask whether training wants the link, and learn for what part of the time it does."""
        is_wanted = self._is_link_wanted()
        passed_s = min(now_s - self._looked_at_s, _LOOK_COUNTS_S)
        kept = math.exp(-passed_s / _REMEMBERED_S)
        self._wanted_share = kept * self._wanted_share + (1.0 - kept) * is_wanted
        self._looked_at_s = now_s
        return is_wanted

    def _is_due(self) -> bool:
        """Whether the copy is behind unless what is to go next does now."""
        passed_s = self._clock.monotonic_s() - self._began_at_s
        return self._num_sent <= passed_s * self._bytes_per_s
