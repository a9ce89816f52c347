"""Who may be a member: every warm worker, but some only where nobody else can.

Those are workers that have straggled, and workers on nodes that are to be emptied or have failed
too often.

Process: coordinator.  Thread: its event loop.  Blocks: never.
"""

from collections.abc import Collection, Sequence

from trainflow.config.job import JobConfig
from trainflow.coordination.draining import group_by_deadline
from trainflow.coordination.membership import Candidate, next_members
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.unfit_nodes import UnfitNodes
from trainflow.coordination.worker_pool import WorkerPool


class Candidacy:
    """The workers of a run, as candidates.

    Attributes:
        designated: workers that are to form the first epoch, chosen by node.
        unfit: nodes whose workers take no rank.
    """

    def __init__(self, job: JobConfig, pool: WorkerPool, record: RunRecord):
        self.designated: frozenset[str] = frozenset()
        self.unfit = UnfitNodes()
        self._job = job
        self._pool = pool
        self._record = record
        self._leaving: str | None = None

    def at_most(self, members: Sequence[str]) -> int:
        """Return how many members there may be.

        Beyond the target the world grows by what is warm beyond the spares, and doesn't shrink for
        want of spares.

        Args:
            members: of the newest epoch; none before the first, which begins with the target.
        """
        workers = self._job.workers
        most = workers.target
        if members and workers.most > most:
            num_beyond = len(self._find_fit(self._warm(), members)) - workers.spares
            most = min(workers.most, max(most, len(members), num_beyond))
        return min(most, self._pool.num_bundles())

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
            each
            for each in self._warm()
            if not wait_for or not choosy or each.worker_id in wait_for
        )
        fit = self._find_fit(warm, members)
        num_needed = self.at_most(members) if is_first else self._job.workers.minimum
        candidates = fit if len(fit) >= num_needed else warm
        relieved = self._record.reliefs.relieved.difference(members)
        return self._prefer(candidates, relieved, members)

    def next_at_boundary(self, members: Sequence[str]) -> tuple[str, ...]:
        """Return who is to be a member once all have stopped between two steps.

        All hold the same state there, or have left their part of it in memory, so that some may
        leave: who straggles, if there is another, and who is on a node that is to be emptied, as
        far as the world stays large enough. Of nodes that go at the same time all are emptied, or
        none: with some of its ranks gone and none elsewhere a world is smaller, and ends with them
        all the same. Those that have most time left are the last to go.
        """
        candidates = self.available(members)
        for last in self._find_last(members):
            candidates = self._prefer(candidates, last, members)
        lineup = self._leave_nodes(candidates, members)
        return self._keep_state(lineup, candidates, members)

    def are_to_go(self, members: Collection[str]) -> bool:
        """Whether some members are on nodes that are to be emptied, whatever that costs."""
        warm = {each.worker_id: each.node_id for each in self._warm()}
        return any(warm.get(each) in self.unfit.draining for each in members)

    def _leave_nodes(
        self, candidates: Sequence[Candidate], members: Sequence[str]
    ) -> tuple[str, ...]:
        deadlines = self.unfit.draining
        remaining = [each for each in candidates if each.node_id not in deadlines]
        going = [each for each in candidates if each.node_id in deadlines]
        going.sort(key=lambda each: _rank_in(members, each.worker_id))
        groups = group_by_deadline({each.node_id: deadlines[each.node_id] for each in going})
        lineup = self._fill(members, remaining)
        for nodes in groups:
            if len(lineup) >= self._job.workers.minimum:
                return lineup
            remaining += [each for each in going if each.node_id in nodes]
            # A rank that a worker elsewhere can have goes there.
            lineup = self._fill(members, remaining[: self.at_most(members)])
        return lineup

    def _keep_state(
        self, lineup: tuple[str, ...], candidates: Sequence[Candidate], members: Sequence[str]
    ) -> tuple[str, ...]:
        """Return it with a member, where nodes don't hold each state: that one leaves later."""
        there = [each for each in candidates if each.worker_id in members]
        if self._job.snapshot.every_steps == 1 or not set(members).isdisjoint(lineup) or not there:
            return lineup
        first = min(there, key=lambda each: members.index(each.worker_id))
        others = [each for each in candidates if each.worker_id in lineup]
        return self._fill(members, [first, *others[: self.at_most(members) - 1]])

    def _find_last(self, members: Sequence[str]) -> list[set[str]]:
        """Return whom to do without: who is relieved; spares on its node, which may be to blame."""
        if self._leaving is None:
            return []
        warm = {each.worker_id: each.node_id for each in self._warm()}
        node_id = warm.get(self._leaving)
        beside = {each for each, node in warm.items() if node == node_id}
        return [{self._leaving}, beside.difference(members)]

    def relieve(self, worker_id: str, members: Sequence[str]) -> bool:
        """Have a member leave at the next boundary; False if there is nobody to take its rank."""
        others = [each for each in self.available(members) if each.worker_id != worker_id]
        if len(others) < self.at_most(members):
            return False
        self._leaving = worker_id
        return True

    def on_formed(self) -> None:
        """An epoch has begun: who was to leave has left, or stays after all."""
        self._leaving = None

    def _fill(self, members: Sequence[str], candidates: Sequence[Candidate]) -> tuple[str, ...]:
        return next_members(members, candidates, self.at_most(members), self._job.group_size)

    def _warm(self) -> tuple[Candidate, ...]:
        return tuple(
            Candidate(entry.worker_id, entry.description.node_id)
            for entry in self._pool.entries.values()
            if entry.description is not None and entry.worker_id not in self._pool.left
        )

    def _find_fit(
        self, warm: tuple[Candidate, ...], members: Sequence[str]
    ) -> tuple[Candidate, ...]:
        """Leave out those on nodes that are to take no ranks, unless they have one."""
        return tuple(c for c in warm if c.node_id not in self.unfit or c.worker_id in members)

    def _prefer(
        self, candidates: tuple[Candidate, ...], last: set[str], members: Sequence[str]
    ) -> tuple[Candidate, ...]:
        """Leave out who comes last, where the others are enough."""
        others = tuple(each for each in candidates if each.worker_id not in last)
        return others if len(others) >= self.at_most(members) else candidates


def _rank_in(members: Sequence[str], worker_id: str) -> int:
    """Return a worker's rank; one beyond all others if it has none."""
    return members.index(worker_id) if worker_id in members else len(members)
