"""What a run's events tell of its losses, and whose loss they don't tell yet. Pure.

A coordinator that dies may take with it what it has heard, and hears nothing while it is away. So
the next one compares who should be there with who is.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from typing import Any


class LossHistory:
    """Failures so far, and the members of the newest epoch that an event tells of.

    Attributes:
        failed_at_s: CLOCK_REALTIME of each failure, oldest first. One of an epoch, which the loss
            of a member explains that was heard of later, is none.
        preempted_at_s: of each loss with a node of which there was notice, which is no failure.
        spares_lost_at_s: of each loss of a worker without a rank while members lived: training
            doesn't notice, so it is no failure either.
        starts_in_vain: by bundle, how many workers in a row were lost before they were of use.
        failed_on: of failures, by address of the node, as far as that is known.
        last: the newest one in words; empty before the first.
    """

    def __init__(self) -> None:
        self.failed_at_s: list[float] = []
        self.preempted_at_s: list[float] = []
        self.spares_lost_at_s: list[float] = []
        self.starts_in_vain = Counter[int]()
        self.failed_on: defaultdict[str, list[float]] = defaultdict(list)
        self.last = ""
        self._unexplained_at_s: float | None = None
        self._members: tuple[str, ...] = ()
        self._told: dict[str, int | None] = {}  # ranks by worker

    def take(self, event: Mapping[str, Any]) -> None:
        """Take the next event."""
        kind, data = event["kind"], event["data"]
        if kind == "submitted":
            # Workers are launched from nothing, under names that may have been lost before.
            self._members, self._told, self.starts_in_vain = (), {}, Counter()
        elif kind == "epoch":
            self._members = tuple(data.get("members", ()))
            self._unexplained_at_s = None  # all of its members were there
        elif kind == "failure":
            self._take_failure(event["at_s"], data)
            self.last = event["text"]

    def _take_failure(self, at_s: float, data: Mapping[str, Any]) -> None:
        if "worker" not in data:
            self._unexplained_at_s = at_s
        elif data.get("rank") is not None and self._unexplained_at_s is not None:
            self.failed_at_s.remove(self._unexplained_at_s)
            self._unexplained_at_s = None
        is_preempted = data.get("preempted", False)
        self._find_times(data).append(at_s)
        if "starts_in_vain" in data:
            self.starts_in_vain[data["bundle"]] = data["starts_in_vain"]
        if data.get("host") is not None and not is_preempted:
            self.failed_on[data["host"]].append(at_s)
        if "worker" in data:
            self._told[data["worker"]] = data.get("rank")

    def _find_times(self, data: Mapping[str, Any]) -> list[float]:
        """Return what a failure counts among."""
        if data.get("preempted", False):
            return self.preempted_at_s
        return self.spares_lost_at_s if data.get("spare", False) else self.failed_at_s

    @property
    def members(self) -> tuple[str, ...]:
        """Those of the newest epoch told of, by rank; none before the first."""
        return self._members

    @property
    def world_size(self) -> int:
        """Number of members of the newest epoch told of."""
        return len(self._members)

    def is_told(self, worker_id: str) -> bool:
        """Whether a failure names this worker."""
        return worker_id in self._told

    def rank_of(self, worker_id: str) -> int | None:
        """Return a worker's rank in the newest epoch told of; None if it had none."""
        return self._members.index(worker_id) if worker_id in self._members else None

    def last_rank_of(self, worker_id: str) -> int | None:
        """Return the rank that a worker has, or was lost with; None if it had none."""
        return self._told.get(worker_id, self.rank_of(worker_id))

    def find_untold(self, present: Collection[str], lineup: Sequence[str] = ()) -> dict[str, int]:
        """Return the members that are gone though no failure names them, with their ranks.

        Args:
            present: workers that are there.
            lineup: members by rank of an epoch that was asked for, and that no event may tell of.
        """
        ranks = {
            worker_id: rank
            for members in (self._members, lineup)
            for rank, worker_id in enumerate(members)
        }
        return {
            worker_id: rank
            for worker_id, rank in ranks.items()
            if worker_id not in present and worker_id not in self._told
        }
