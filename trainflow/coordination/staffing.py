"""Workers that are lost are ended for good, and others take their bundles.

Process: coordinator.  Thread: its event loop.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from trainflow.config.job import JobConfig
from trainflow.coordination.detector_guard import DetectorGuard
from trainflow.coordination.failure_budget import FailureBudget
from trainflow.coordination.isolation_watch import IsolationWatch
from trainflow.coordination.node_watch import NodeWatch
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.startup_log import StartupLog
from trainflow.coordination.worker_pool import WorkerEntry, WorkerPool
from trainflow.monitoring.detectors import Detector

_RESPAWN_AFTER_S = 1.5
_RESPAWN_AT_MOST_AFTER_S = 300.0
_LASTING_S = 60.0


class Staffing:
    """Who has been lost, where, and when and where another may be tried.

    Whoever is lost is replaced, also where Ray doesn't tell which bundle is where, or the isolation
    of nodes fails.

    Attributes:
        starts: where the time of starts goes.
    """

    def __init__(
        self,
        job: JobConfig,
        pool: WorkerPool,
        nodes: NodeWatch,
        isolation: IsolationWatch,
        record: RunRecord,
        guard: DetectorGuard,
    ):
        limits = job.failures
        self.starts = StartupLog(pool, record)
        self._failures = FailureBudget(limits.max_failures, limits.window_s)
        self._preemptions = FailureBudget(limits.max_preemptions, limits.window_s)
        self._max_hangs = limits.max_hangs
        self._pool = pool
        self._nodes = nodes
        self._isolation = isolation
        self._record = record
        self._guard = guard
        self._clock = guard.clock
        self._minimum = job.workers.minimum
        self._num_wanted = job.workers.most + job.workers.spares
        self._num_spawned = 0
        self._warm_since_s: dict[int, float] = {}  # by bundle, as far as this coordinator knows

    def on_ready(self, entry: WorkerEntry, node_id: str) -> None:
        """A worker is warm: its node may be in order."""
        self._warm_since_s[entry.bundle] = self._clock.monotonic_s()
        self._guard.look(Detector.ISOLATION, lambda: self._isolation.on_ready(node_id))

    def drop(
        self,
        entry: WorkerEntry,
        cause: str,
        rank: int | None,
        incarnation: int,
        *,
        members_live: bool = False,
    ) -> str:
        """Make sure that a worker is dead.

        Args:
            entry: the worker.
            cause: why it is lost, in one line.
            rank: that it had; None for a spare.
            incarnation: of this coordinator.
            members_live: others train, or wait with the state: a spare's loss is no failure then.

        Returns:
            What happened, in words.
        """
        worker_id, description = entry.worker_id, entry.description
        node_id = self._node_of(entry)
        text = self._tell(
            worker_id,
            cause,
            rank,
            pid=None if description is None else description.pid,
            node_id=node_id,
            host=None if node_id is None else self._nodes.host_of(node_id),
            spare=rank is None and members_live,
            bundle=entry.bundle,
            starts_in_vain=self._count_in_vain(entry, rank),
        )
        self._pool.drop(worker_id)
        if description is not None:
            self._nodes.fence(incarnation, description.node_id, worker_id)
        self._count_against(node_id)
        return text

    def _is_to_go(self, node_id: str | None) -> bool:
        """Whether what is lost on a node is no failure: it was to be emptied."""
        return node_id is not None and node_id in self._nodes.unfit.draining

    def _count_against(self, node_id: str | None) -> None:
        """A loss on a node is told of: it may have been one too many."""
        look = self._isolation.on_taken if self._is_to_go(node_id) else self._isolation.on_failure
        self._guard.look(Detector.ISOLATION, lambda: look(node_id))

    def _count_in_vain(self, entry: WorkerEntry, rank: int | None) -> int:
        """Return how many starts in a row were in vain with that of one that is lost.

        It was, if it had no rank and didn't stand by. If another coordinator has seen it become
        warm, that isn't known, and it is neither.
        """
        since_s = self._warm_since_s.pop(entry.bundle, None)
        before = self._record.losses.starts_in_vain[entry.bundle]
        if entry.description is None:
            return before + 1
        if rank is not None:
            return 0
        if since_s is None:
            return before
        return 0 if self._clock.monotonic_s() - since_s >= _LASTING_S else before + 1

    def end_strangers(self, node_id: str, worker_ids: Collection[str], incarnation: int) -> None:
        """End the workers of a node that are none of the run's any more.

        They are lost already. The order to end them may have been lost too, where only the head
        could not reach their node, or they may have been started right before a coordinator died.
        """
        for worker_id in worker_ids:
            if worker_id not in self._pool.entries:
                self._nodes.fence(incarnation, node_id, worker_id)

    def withdraw(self, entry: WorkerEntry) -> None:
        """Give up a worker that has yet to begin, and that nothing is lost by."""
        self._pool.drop(entry.worker_id)
        text = f"{entry.worker_id} is given up before it began: its node is gone"
        self._record.add_event("withdrawn", text, worker=entry.worker_id)

    def tell_missing(self, lineup: Sequence[str]) -> None:
        """Tell of members that went while no coordinator was there to hear of it.

        Where they were they had said while they lived.

        Args:
            lineup: members by rank of the newest epoch that the workers know of.
        """
        missing = self._record.losses.find_untold(self._pool.entries, lineup)
        for worker_id, rank in missing.items():
            cause = "it was gone when a new coordinator looked for it"
            contact = self._record.contacts.find(worker_id)
            node_id = None if contact is None else contact.node_id
            host = None if contact is None else contact.host
            self._tell(worker_id, cause, rank, pid=None, node_id=node_id, host=host)
            self._count_against(node_id)

    def _node_of(self, entry: WorkerEntry) -> str | None:
        """Return where a worker is, or, as long as it hasn't said so, where its bundle is."""
        if entry.description is not None:
            return entry.description.node_id
        return self.find_placed().get(entry.bundle)

    async def look_at_bundles(self) -> None:
        """Learn which bundle is where; if Ray doesn't tell, it is known as of before."""

        async def look() -> None:
            await self._pool.look_at_bundles()

        await self._guard.attend(Detector.ISOLATION, look)

    def find_placed(self) -> Mapping[int, str]:
        """Return the node of each bundle that is placed, as far as it is known."""
        unknown: Mapping[int, str] = {}
        return self._guard.ask(Detector.ISOLATION, self._pool.bundle_nodes, unknown)

    def _tell(
        self,
        worker_id: str,
        cause: str,
        rank: int | None,
        *,
        node_id: str | None,
        **more: Any,  # noqa: ANN401  JSON
    ) -> str:
        """Record a worker's loss, once: an earlier coordinator may have died right after that."""
        text = f"lost {worker_id} ({'spare' if rank is None else f'rank {rank}'}): {cause}"
        in_vain = more.get("starts_in_vain", 0)
        if in_vain > 1:
            pause_s = decide_pause_s(in_vain)
            text += f"; {in_vain} starts in a row were in vain: the next one waits {pause_s:.0f} s"
        if not self._record.losses.is_told(worker_id):
            data = {"worker": worker_id, "rank": rank, "cause": cause, "node": node_id}
            data["preempted"] = self._is_to_go(node_id)
            self._record.add_event("failure", text, **data, **more)
        return text

    def find_overspent(self) -> str | None:
        """Return which limit on what may be lost is exceeded; None if none is."""
        losses, now_s = self._record.losses, self._clock.unix_s()
        if self._failures.is_overspent(losses.failed_at_s, now_s, self._record.moved_on_at_s):
            return f"failures.max_failures = {self._failures.limit} failures"
        if self._max_hangs is not None and self._record.hangs.num_stuck > self._max_hangs:
            after = f"after step {self._record.hangs.after_step}"
            return f"failures.max_hangs = {self._max_hangs} epochs in a row with a hang {after}"
        if self._preemptions.is_overspent(losses.preempted_at_s, now_s):
            return f"failures.max_preemptions = {self._preemptions.limit} preemptions"
        return None

    def may_start(self, bundle: int) -> bool:
        """Whether another worker of a bundle may be started now: on a node that may take ranks.

        Or, on an isolated node, as its probe. A bundle whose node is lost has to be placed first.
        Where no bundle is on a better node, any will do; where fewer are than the world must have,
        so will one that is to go or is isolated: else the run would stand still. If the run has
        enough workers elsewhere by now, none is; nor on a node of which nothing was heard for some
        seconds: it may be gone, which Ray finds much later. If that can't be told, it may be
        started.
        """
        unfit = self._nodes.unfit
        descriptions = (entry.description for entry in self._pool.entries.values())
        num_fit = sum(each is None or each.node_id not in unfit for each in descriptions)
        if num_fit >= self._num_wanted:
            return False
        if self.find_placed().get(bundle) in self._nodes.quiet_nodes():
            return False
        if not unfit.all() and not self._isolation.isolates:
            return True
        return self._guard.ask(Detector.ISOLATION, lambda: self._is_fit(bundle), otherwise=True)

    def takes_more(self, node_id: str) -> bool:
        """Whether a node may be given more workers than it has bundles for."""
        if node_id in self._nodes.unfit:
            return False
        return not self._guard.ask(
            Detector.ISOLATION, lambda: self._isolation.keeps_out(node_id), otherwise=False
        )

    def _is_fit(self, bundle: int) -> bool:
        """Whether a bundle is where a worker may be started, while there are nodes that are not."""
        unfit = self._nodes.unfit
        placed = self._pool.bundle_nodes()
        node_id = placed.get(bundle)
        if all(node in unfit for node in placed.values()):
            return True
        if node_id is None or node_id in unfit.cut_off.union(unfit.unheard):
            return False
        if sum(node not in unfit for node in placed.values()) < self._minimum:
            return True
        if node_id in unfit.draining:
            return False
        return not self._isolation.isolates or self._isolation.may_start(node_id)

    async def pause(self, bundle: int) -> None:
        """Wait before a bundle gets another worker: the longer, the more have failed there."""
        await asyncio.sleep(decide_pause_s(self._record.losses.starts_in_vain[bundle]))

    async def respawn(self, bundle: int, incarnation: int) -> None:
        """Start another worker in a bundle.

        While no step is committed any worker may begin the training: none is rehearsed, which would
        cost it its fresh state.
        """
        self._num_spawned += 1
        serial = f"{incarnation}.r{self._num_spawned}"
        entry = await self._pool.spawn(bundle, serial, rehearse=self._record.last_step > 0)
        if entry is None:
            return
        text = f"started {entry.worker_id} as a spare"
        self._record.add_event("respawned", text, worker=entry.worker_id)


def decide_pause_s(num_in_vain: int) -> float:
    """Return how long a bundle waits for its next worker after so many starts in vain in a row."""
    return min(_RESPAWN_AFTER_S * 2 ** min(num_in_vain, 10), _RESPAWN_AT_MOST_AFTER_S)
