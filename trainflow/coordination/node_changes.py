"""Nodes that are to go, that fail again and again, that can't be reached, or that have room.

Process: coordinator.  Thread: its event loop; what takes time is a task.
"""

from trainflow.clock import SYSTEM_CLOCK
from trainflow.config.job import JobConfig
from trainflow.coordination.cut_watch import CutWatch
from trainflow.coordination.detector_guard import DetectorGuard
from trainflow.coordination.drain_watch import DrainWatch
from trainflow.coordination.epoch_control import EpochControl
from trainflow.coordination.expansion import Expansion
from trainflow.coordination.isolation_watch import IsolationWatch
from trainflow.coordination.keeper import Heartbeat
from trainflow.coordination.lease_ends import LeaseEnds
from trainflow.coordination.node_watch import NodeWatch
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.staffing import Staffing
from trainflow.coordination.worker_pool import WorkerPool
from trainflow.monitoring.detectors import Detector


class NodeChanges:
    """Who looks after them.

    Attributes:
        staffing: where workers may be started.
    """

    def __init__(
        self,
        job: JobConfig,
        pool: WorkerPool,
        control: EpochControl,
        nodes: NodeWatch,
        record: RunRecord,
        guard: DetectorGuard,
    ):
        clock = SYSTEM_CLOCK
        control.candidacy.unfit = nodes.unfit
        self._control = control
        self._guard = guard
        self._isolation = IsolationWatch(job, pool, nodes, record, clock)
        self.staffing = Staffing(job, pool, nodes, self._isolation, record, guard)
        self._drains = DrainWatch(job, pool, nodes, control, record, clock)
        self._cuts = CutWatch(job, pool, nodes, control, record, clock)
        self._lease_ends = LeaseEnds(nodes, record, job.failures.lease_s)
        self._expansion = Expansion(job, pool, nodes, control, self.staffing, clock)

    async def begin(self) -> None:
        """Learn which nodes there are, and take no ranks, before anything depends on it."""
        await self._guard.attend(Detector.DRAINS, self._drains.tick)
        self._guard.look(Detector.ISOLATION, self._isolation.tick)

    def hear(self, beat: Heartbeat) -> None:
        """A Keeper tells of its node."""
        if beat.knows_notice:
            self._guard.look(Detector.DRAINS, lambda: self._drains.hear(beat.node_id, beat.notice))
        self._drains.note_trouble(beat.node_id, beat.notice_trouble)
        if beat.lease_ends:
            self._guard.look(Detector.SILENCE, lambda: self._lease_ends.hear(beat))

    def tick(self, *, may_start: bool) -> None:
        """Look after all of them; called about twice a second.

        Args:
            may_start: whether workers may still be started, where there is room.
        """
        self._guard.start(Detector.DRAINS, self._drains.tick)
        self._guard.start(Detector.CUTS, self._cuts.tick)
        if may_start:
            self._guard.start(Detector.ROOM, self._expansion.tick)
        self._guard.look(Detector.ISOLATION, self._take_back)

    def _take_back(self) -> None:
        if self._isolation.tick():
            self._control.advance()
