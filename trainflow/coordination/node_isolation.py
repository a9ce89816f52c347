"""Which nodes have failed too often to be given ranks, and when one of them is tried again. Pure.

Nodes go by their addresses: one that dies and comes back is another to Ray, and the same machine.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

_MOST_DOUBLINGS = 6


@dataclass(frozen=True)
class Isolated:
    """A node that takes no ranks.

    Attributes:
        probe_at_s: CLOCK_REALTIME from which on it may be tried.
        num_times: how often it was isolated, or failed again while it was, in a row.
        is_probed: a worker has been started there to see whether it is well.
    """

    probe_at_s: float
    num_times: int = 1
    is_probed: bool = False


class NodeIsolation:
    """Isolates a node at its ``after``-th failure within ``window_s``; none if that is None.

    Attributes:
        isolated: by address.
    """

    def __init__(self, after: int | None, window_s: float, pause_s: float):
        self.isolated: dict[str, Isolated] = {}
        self._after = after
        self._window_s = window_s
        self._pause_s = pause_s
        self._counts_from_s: dict[str, float] = {}
        self._num_times: dict[str, int] = {}

    def judge(
        self, failed_at_s: Mapping[str, Sequence[float]], hosts: Collection[str], now_s: float
    ) -> list[str]:
        """Isolate what has failed too often, worst first; returns what is new.

        Args:
            failed_at_s: CLOCK_REALTIME of the failures of each node, also of those that are gone.
            hosts: nodes that could take ranks but for this; the last of them is never isolated.
            now_s: CLOCK_REALTIME.
        """
        if self._after is None:
            return []
        counts = {each: self._count(each, times, now_s) for each, times in failed_at_s.items()}
        left = [host for host in hosts if host not in self.isolated]
        failing = [host for host in counts if counts[host] >= self._after]
        chosen: list[str] = []
        for host in sorted(failing, key=lambda each: -counts[each]):
            others = [each for each in left if each != host]
            if host not in self.isolated and others:
                self._isolate(host, now_s)
                chosen.append(host)
                left = others
        return chosen

    def may_probe(self, host: str, now_s: float) -> bool:
        """Whether the pause of an isolated node is over, and nothing is tried there yet."""
        found = self.isolated.get(host)
        return found is not None and not found.is_probed and now_s >= found.probe_at_s

    def begin_probe(self, host: str) -> None:
        """A worker is started on an isolated node to see whether it is well."""
        found = self.isolated[host]
        self.isolated[host] = Isolated(found.probe_at_s, found.num_times, is_probed=True)

    def end_probe(self, host: str) -> None:
        """The worker that was tried is gone, and has shown nothing."""
        found = self.isolated[host]
        self.isolated[host] = Isolated(found.probe_at_s, found.num_times)

    def fail(self, host: str, now_s: float) -> bool:
        """Something has failed there; if it was its probe, a longer pause begins.

        Once the pause is over it counts as that: an earlier coordinator may have begun the probe.
        """
        found = self.isolated.get(host)
        if found is None or (now_s < found.probe_at_s and not found.is_probed):
            return False
        self._isolate(host, now_s)
        return True

    def readmit(self, host: str, now_s: float) -> None:
        """It is well: what it did before counts no more, but for how long the next pause is."""
        self.isolated.pop(host, None)
        self._counts_from_s[host] = now_s

    def restore(self, host: str, isolated: Isolated) -> None:
        """Take over what an earlier coordinator has decided."""
        self.isolated[host] = isolated
        self._num_times[host] = isolated.num_times

    def _count(self, host: str, failed_at_s: Sequence[float], now_s: float) -> int:
        since_s = max(now_s - self._window_s, self._counts_from_s.get(host, 0.0))
        return sum(at_s >= since_s for at_s in failed_at_s)

    def _isolate(self, host: str, now_s: float) -> None:
        number = self._num_times.get(host, 0) + 1
        self._num_times[host] = number
        pause_s = self._pause_s * 2 ** min(number - 1, _MOST_DOUBLINGS)
        self.isolated[host] = Isolated(now_s + pause_s, number)
