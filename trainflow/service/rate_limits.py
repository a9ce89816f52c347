"""How many requests a client may make: a bucket of permits each, refilled as time passes. Pure."""

from collections import OrderedDict
from dataclasses import dataclass

_MOST_CLIENTS = 10_000


@dataclass
class _Bucket:
    permits: float
    at_s: float


class RateLimit:
    """A limit that holds for each client by itself.

    The clients that were longest silent are forgotten where there are very many: they begin anew,
    with a full bucket.
    """

    def __init__(self, per_s: float, burst: int):
        """Allow ``burst`` requests at once, and ``per_s`` a second after that."""
        self._per_s = per_s
        self._burst = burst
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def take(self, client: str, now_s: float) -> float:
        """Take a permit; returns 0, or in how many seconds there will be one, and takes none."""
        bucket = self._refill(client, now_s)
        if bucket.permits < 1:
            return (1 - bucket.permits) / self._per_s
        bucket.permits -= 1
        return 0.0

    def wait_s(self, client: str, now_s: float) -> float:
        """Return in how many seconds there will be a permit; 0 if there is one."""
        return max(0.0, (1 - self._refill(client, now_s).permits) / self._per_s)

    def _refill(self, client: str, now_s: float) -> _Bucket:
        bucket = self._buckets.setdefault(client, _Bucket(float(self._burst), now_s))
        self._buckets.move_to_end(client)
        if len(self._buckets) > _MOST_CLIENTS:
            self._buckets.popitem(last=False)
        gained = max(0.0, now_s - bucket.at_s) * self._per_s
        bucket.permits = min(float(self._burst), bucket.permits + gained)
        bucket.at_s = now_s
        return bucket
