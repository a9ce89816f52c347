"""When bytes of a copy may go to another node: on what training leaves of the link, but in time.

Process: keeper.  Thread: the one that copies.  Blocks: while training wants the link.
"""

from collections.abc import Callable

from trainflow.clock import Clock

_LOOK_EVERY_S = 0.005
_FREE_FOR_S = 0.002
_SILENT_AT_MOST_S = 20.0


class CopyPace:
    """Lets bytes go while no rank of this node waits for others: the link is theirs till then.

    Where training communicates most of the time that may be never. So a copy has a time to arrive
    in, and one that is behind goes on beside training.
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

    def begin(self, num_bytes: int, *, one_of: int = 1) -> None:
        """Begin a copy of ``num_bytes``, one of several of the same state."""
        self._began_at_s = self._clock.monotonic_s()
        self._bytes_per_s = num_bytes * one_of / self._within_s
        self._num_sent = 0

    def before(self, num_bytes: int) -> None:
        """Wait until the copy's next ``num_bytes`` may go."""
        now_s = self._clock.monotonic_s()
        if self._next_at_s > now_s:
            self._clock.sleep(self._next_at_s - now_s)
        self._num_sent += num_bytes
        # The other node takes a longer silence for the end of the connection.
        until_s = self._clock.monotonic_s() + _SILENT_AT_MOST_S
        while self._clock.monotonic_s() < until_s and not self._is_due():
            if self._is_link_free():
                break
            self._clock.sleep(_LOOK_EVERY_S)
        if self._max_bytes_per_s is not None:
            spent_s = num_bytes / self._max_bytes_per_s
            self._next_at_s = max(self._next_at_s, self._clock.monotonic_s()) + spent_s

    def _is_link_free(self) -> bool:
        """Whether nobody wants the link; a moment ago will do, since asking takes time."""
        now_s = self._clock.monotonic_s()
        if now_s < self._free_until_s:
            return True
        if self._is_link_wanted():
            return False
        self._free_until_s = now_s + _FREE_FOR_S
        return True

    def _is_due(self) -> bool:
        """Whether the copy is behind unless what is to go next does now."""
        passed_s = self._clock.monotonic_s() - self._began_at_s
        return self._num_sent <= passed_s * self._bytes_per_s
