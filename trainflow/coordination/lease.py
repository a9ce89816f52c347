"""For how long a node may go on without hearing from anyone. Pure but for the time it is given.

A Keeper that hears neither the coordinator nor a majority of the Keepers is cut off: the others may
already have replaced its workers. It kills them before a replacement can be in place. While only
the coordinator is down the Keepers still hear each other, and training goes on.
"""


class Lease:
    """Right to keep workers alive, renewed by being heard.

    Attributes:
        renewed_at_s: when it was last.
    """

    def __init__(self, duration_s: float, now_s: float):
        self._duration_s = duration_s
        self.renewed_at_s = now_s

    def renew(self, now_s: float) -> None:
        """Somebody who may decide was heard."""
        self.renewed_at_s = now_s

    def is_expired(self, now_s: float) -> bool:
        """Whether the workers must die now."""
        return now_s - self.renewed_at_s > self._duration_s


def is_majority(num_heard: int, num_peers: int) -> bool:
    """Whether this Keeper and the peers it heard are more than half of all Keepers."""
    return 2 * (num_heard + 1) > num_peers + 1
