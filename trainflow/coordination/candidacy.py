"""Who may be a member: every warm worker, and one that has straggled only where nobody else can.

Process: coordinator.  Thread: its event loop.  Blocks: never.
"""

from collections.abc import Collection, Sequence

from trainflow.config.job import JobConfig
from trainflow.coordination.membership import Candidate, next_members
from trainflow.coordination.worker_pool import WorkerPool


class Candidacy:
    """The workers of a run, as candidates.

    Attributes:
        designated: workers that are to form the first epoch, chosen by node.
    """

    def __init__(self, job: JobConfig, pool: WorkerPool):
        self.designated: frozenset[str] = frozenset()
        self._job = job
        self._pool = pool
        self._leaving: str | None = None
        self._relieved: set[str] = set()

    @property
    def at_most(self) -> int:
        """How many members there may be."""
        return min(self._job.workers.target, self._pool.num_bundles())

    def num_needed(self, members: Sequence[str], finished: Collection[str]) -> int:
        """Return how few members may go on: once one has left the last step, none may be missing.

        A lost rank's code after the last step would otherwise run nowhere.
        """
        is_ending = any(each in finished for each in members)
        return len(members) if is_ending else self._job.workers.minimum

    def available(self, members: Sequence[str], *, is_first: bool = False) -> tuple[Candidate, ...]:
        """Return the warm workers; before the first epoch the designated, unless one was lost.

        Args:
            members: of the newest epoch; they may hold the newest state, and are never left out.
            is_first: there was none.
        """
        wait_for = self.designated if is_first else frozenset[str]()
        choosy = wait_for <= self._pool.entries.keys()
        warm = tuple(
            Candidate(entry.worker_id, entry.description.node_id)
            for entry in self._pool.entries.values()
            if entry.description is not None
            and (not wait_for or not choosy or entry.worker_id in wait_for)
        )
        return self._prefer(warm, self._relieved.difference(members))

    def next_at_boundary(self, members: Sequence[str]) -> tuple[str, ...]:
        """Return who is to be a member once all have stopped between two steps.

        All hold the same state there, so that one may leave.
        """
        leaving = set[str]() if self._leaving is None else {self._leaving}
        candidates = self._prefer(self.available(members), leaving)
        return next_members(members, candidates, self.at_most, self._job.group_size)

    def relieve(self, worker_id: str, members: Sequence[str]) -> bool:
        """Have a member leave at the next boundary; False if there is nobody to take its rank."""
        others = [each for each in self.available(members) if each.worker_id != worker_id]
        if len(others) < self.at_most:
            return False
        self._leaving = worker_id
        return True

    def on_formed(self, members: Sequence[str]) -> None:
        """An epoch of these has begun; nobody has left if one was lost before the boundary."""
        if self._leaving is not None and self._leaving not in members:
            self._relieved.add(self._leaving)
        self._leaving = None

    def _prefer(self, candidates: tuple[Candidate, ...], last: set[str]) -> tuple[Candidate, ...]:
        """Leave out who comes last, where the others are enough."""
        others = tuple(each for each in candidates if each.worker_id not in last)
        return others if len(others) >= self.at_most else candidates
