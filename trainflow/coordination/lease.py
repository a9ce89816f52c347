"""For how long a node may go on without hearing from anyone. Pure but for the time it is given.

A Keeper that hears neither the coordinator nor a majority of the Keepers is cut off: the others may
already have replaced its workers. It kills them before a replacement can be in place. While only
the coordinator is down the Keepers still hear each other, and training goes on.

What is answered renews a lease from when it was asked. The coordinator counts from when it heard
that, which is never earlier, and gives the node up a second later than the lease ends.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class LeaseEnd:
    """Workers that a Keeper has ended by itself, as its lease was over.

    Attributes:
        worker_ids: of those.
        at_s: CLOCK_REALTIME of its machine; with the node this names the end.
        unheard_s: for how long nobody had answered it who may decide.
        is_given_up: it had stood still itself, and heard then that its node is given up; else it
            has asked in vain.
    """

    worker_ids: tuple[str, ...]
    at_s: float
    unheard_s: float
    is_given_up: bool = False


class Lease:
    """Right to keep workers alive, renewed by being heard.

    Attributes:
        renewed_at_s: from when on it counts: when what was answered last had been asked.
        untold: its ends that the coordinator may not have heard of yet, oldest first.
    """

    def __init__(self, duration_s: float, now_s: float):
        self._duration_s = duration_s
        self.renewed_at_s = now_s
        self.untold: tuple[LeaseEnd, ...] = ()

    def renew(self, asked_at_s: float) -> None:
        """Somebody who may decide has answered what was asked then."""
        self.renewed_at_s = max(self.renewed_at_s, asked_at_s)

    def is_expired(self, now_s: float) -> bool:
        """Whether the workers must die now."""
        return now_s - self.renewed_at_s > self._duration_s

    def wait_until_s(self, now_s: float) -> float:
        """Return until when an answer may be waited for: its end; for ever, once that is past."""
        return math.inf if self.is_expired(now_s) else self.renewed_at_s + self._duration_s

    def note_end(
        self, worker_ids: tuple[str, ...], unheard_s: float, now_s: float, unix_s: float
    ) -> None:
        """It was over, and cost these workers their lives, if any.

        Args:
            worker_ids: of those.
            unheard_s: for how long nobody had answered.
            now_s: CLOCK_MONOTONIC when that was; what has been answered since spared nobody.
            unix_s: CLOCK_REALTIME.
        """
        if worker_ids:
            is_given_up = not self.is_expired(now_s)
            self.untold += (LeaseEnd(worker_ids, unix_s, unheard_s, is_given_up),)

    def note_told(self, told: Sequence[LeaseEnd]) -> None:
        """The coordinator has heard of these."""
        self.untold = tuple(end for end in self.untold if end not in told)


def is_majority(num_heard: int, num_peers: int) -> bool:
    """Whether this Keeper and the peers it heard are more than half of all Keepers."""
    return 2 * (num_heard + 1) > num_peers + 1
