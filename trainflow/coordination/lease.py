"""For how long a node may go on without hearing from anyone. Pure but for the time it is given.

A Keeper that hears neither the coordinator nor a majority of the Keepers is cut off: the others may
already have replaced its workers. It kills them before a replacement can be in place. While only
the coordinator is down the Keepers still hear each other, and training goes on.

What is answered renews a lease from when it was asked. The coordinator counts from when it heard
that, which is never earlier, and gives the node up a second later than the lease ends.
"""

import math


class Lease:
    """Right to keep workers alive, renewed by being heard.

    Attributes:
        renewed_at_s: from when on it counts: when what was answered last had been asked.
    """

    def __init__(self, duration_s: float, now_s: float):
        self._duration_s = duration_s
        self.renewed_at_s = now_s

    def renew(self, asked_at_s: float) -> None:
        """Somebody who may decide has answered what was asked then."""
        self.renewed_at_s = max(self.renewed_at_s, asked_at_s)

    def is_expired(self, now_s: float) -> bool:
        """Whether the workers must die now."""
        return now_s - self.renewed_at_s > self._duration_s

    def wait_until_s(self, now_s: float) -> float:
        """Return until when an answer may be waited for: its end; for ever, once that is past."""
        return math.inf if self.is_expired(now_s) else self.renewed_at_s + self._duration_s


def is_majority(num_heard: int, num_peers: int) -> bool:
    """Whether this Keeper and the peers it heard are more than half of all Keepers."""
    return 2 * (num_heard + 1) > num_peers + 1
