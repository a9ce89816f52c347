"""Empty nodes that are to go: hear of it, have their ranks leave, and tell how far that comes.

Where those have nowhere to go, the state goes to storage.

Process: coordinator.  Thread: its event loop; Ray is asked in another.  Fails: as it may; see
`detector_guard`. A notice that isn't heard leaves a node that dies.
"""

import logging
import math
from collections.abc import Awaitable, Iterable
from typing import Any, TypeVar

from trainflow.clock import Clock
from trainflow.config.job import JobConfig
from trainflow.coordination.boundary_request import BoundaryRequest
from trainflow.coordination.draining import (
    STRANDED,
    Drain,
    Notice,
    Stage,
    find_stranded,
    find_told,
    merge_notices,
)
from trainflow.coordination.epoch_control import EpochControl
from trainflow.coordination.last_checkpoints import LastCheckpoints
from trainflow.coordination.node_watch import NodeWatch
from trainflow.coordination.preemption_notice import PreemptionNotice
from trainflow.coordination.ray_drains import LivingNode, find_alive_nodes, find_draining_nodes
from trainflow.coordination.ray_question import RayQuestion
from trainflow.coordination.run_record import RunRecord
from trainflow.coordination.worker_pool import WorkerPool
from trainflow.epochs import Flag
from trainflow.errors import CoordinationError

logger = logging.getLogger(__name__)

_RAY = "Ray drains it"
_PROVIDER = "its machine is to be taken back"
_STEPS = 10
_Told = TypeVar("_Told")
_HEARD_AGAIN_WITHIN_S = 10.0  # by a Keeper, which tells it with each heartbeat


class DrainWatch:
    """Follows nodes that are to be emptied; what an earlier coordinator told isn't told again."""

    def __init__(
        self,
        job: JobConfig,
        pool: WorkerPool,
        nodes: NodeWatch,
        control: EpochControl,
        record: RunRecord,
        clock: Clock,
    ):
        self._job = job
        self._pool = pool
        self._nodes = nodes
        self._control = control
        self._record = record
        self._clock = clock
        self._by_ray: dict[str, Notice] = {}
        self._by_provider: dict[str, Notice] = {}
        self._drains: dict[str, Drain] = {}
        self._told = find_told(record.lasting_events)
        self._began_at_s = clock.monotonic_s()
        self._draining = RayQuestion[dict[str, float | None]]()
        self._living = RayQuestion[dict[str, LivingNode]]()
        self._is_asking = False
        self._failing: dict[str, str] = {}  # what Ray doesn't tell, and why
        self._deaf: dict[str, str] = {}  # nodes whose provider can't be asked, and why
        self._request = BoundaryRequest(pool)
        self._last_checkpoints = LastCheckpoints()
        self._stranded = find_stranded(record.lasting_events)
        # What goes with them before they are heard of again was to go.
        nodes.unfit.draining |= dict.fromkeys(self._told, math.inf)

    def hear(self, node_id: str, said: PreemptionNotice | None) -> None:
        """A Keeper tells what its machine's provider says."""
        known = self._by_provider.get(node_id)
        if said is None:
            self._by_provider.pop(node_id, None)
        else:
            notice = Notice(self._clock.unix_s() + said.left_s, _PROVIDER, said.trouble)
            if known is not None and known.is_like(notice):
                return
            self._by_provider[node_id] = notice
        if said is not None or known is not None:
            self.look()

    def note_trouble(self, node_id: str, trouble: str | None) -> None:
        """A Keeper can't ask its machine's provider, and why; None: it can."""
        if trouble is None:
            self._deaf.pop(node_id, None)
        else:
            self._deaf[node_id] = trouble

    async def tick(self) -> None:
        """Ask Ray, and see how far the nodes are; called about twice a second.

        Raises:
            CoordinationError: Ray, or a machine's provider, doesn't tell all of it; the rest was
                looked after.
        """
        if self._is_asking:
            return
        self._is_asking = True
        try:
            # In this order: a node that goes meanwhile is not one that is no longer drained.
            deadlines = await self._ask(
                self._draining.ask(find_draining_nodes), "which nodes it drains"
            )
            alive = await self._ask(self._living.ask(find_alive_nodes), "which nodes live")
        finally:
            self._is_asking = False
        if alive is not None:
            self._nodes.note_alive(alive)
            self._deaf = {node: why for node, why in self._deaf.items() if node in alive}
        if alive is not None and deadlines is not None:
            self._by_ray = {node: Notice(at_s, _RAY) for node, at_s in deadlines.items()}
        self.look()
        untold = [f"Ray does not tell {what} ({why})" for what, why in self._failing.items()]
        untold += [
            f"node {self._host_of(node)} can't ask whether it stays ({why})"
            for node, why in self._deaf.items()
        ]
        if untold:
            raise CoordinationError("; ".join(untold))

    async def _ask(self, asking: Awaitable[dict[str, _Told]], what: str) -> dict[str, _Told] | None:
        """Ask Ray; None if it doesn't tell, which keeps nobody from asking the next thing."""
        try:
            told = await asking
        except Exception as error:  # private calls of Ray's may fail in whatever way
            if what not in self._failing:
                logger.exception("Ray does not tell %s", what)
            self._failing[what] = f"{type(error).__name__}: {error}"
            return None
        self._failing.pop(what, None)
        return told

    def look(self) -> None:
        """Do what follows from the notices; while there are none, nothing."""
        notices = merge_notices((self._by_ray, self._by_provider))
        for node_id in list(self._nodes.unfit.draining.keys() - notices.keys()):
            if node_id in self._nodes.alive and not self._may_come(node_id):
                self._withdraw(node_id)
        self._nodes.unfit.draining |= {node: each.ends_at_s for node, each in notices.items()}
        for node_id, notice in notices.items():
            self._heed(node_id, notice)
        if not self._drains:
            self._save_no_more()
            return
        self._control.empty_nodes()
        if self._control.epoch is None or not self._control.is_open:
            return  # not taken over yet, none has begun, or the run is over: nobody leaves a node
        now_s = self._clock.unix_s()
        for node_id, drain in self._drains.items():
            lost = [each for each in drain.ranks if self._record.losses.is_told(each)]
            stage = drain.observe(self._ranks_on(node_id), lost, now_s)
            if stage is not None:
                self._tell_stage(node_id, drain, stage)
        self._save(now_s)

    def _save(self, now_s: float) -> None:
        """Where members have nowhere to go, say so, and have the state go to storage in time."""
        if not self._control.may_pause:
            return
        nodes = self._find_stranded()
        if not nodes:
            self._stranded = nodes
            self._save_no_more()
            return
        ends_at_s = min(self._nodes.unfit.draining[node] for node in nodes)
        has_store = self._job.checkpoint.url is not None
        if not nodes <= self._stranded:
            self._tell_stranded(nodes, ends_at_s, has_store=has_store)
        self._stranded = nodes
        stored_step = max(self._record.steps_of("checkpoint"), default=0)
        is_due = has_store and self._last_checkpoints.take_due(
            ends_at_s - now_s,
            self._clock.monotonic_s(),
            self._record.last_step,
            stored_step,
            failed_step=max(self._record.steps_of("checkpoint_failed"), default=0),
            epoch=self._control.epoch,
        )
        if is_due:
            self._request.begin(Flag.CHECKPOINT, self._control.members)

    def _save_no_more(self) -> None:
        self._last_checkpoints = LastCheckpoints()
        self._request.end()

    def _find_stranded(self) -> frozenset[str]:
        """Return the nodes with members, if all are to go and no others can take the ranks."""
        members = self._control.members
        lineup = self._control.candidacy.next_at_boundary(members)
        nodes = frozenset(
            self._pool.nodes_of(each for each in lineup if each in self._pool.entries).values()
        )
        return nodes if nodes <= self._nodes.unfit.draining.keys() else frozenset()

    def _tell_stranded(self, nodes: frozenset[str], ends_at_s: float, *, has_store: bool) -> None:
        hosts = sorted(self._host_of(node) for node in nodes)
        left_s = ends_at_s - self._clock.unix_s()
        until = "" if math.isinf(left_s) else f", for {max(0.0, left_s):.1f} s"
        fate = "the state goes to storage meanwhile"
        if not has_store:
            fate = "as checkpoint.url is null, the state is lost unless others are warm before"
        text = (
            f"all ranks are on nodes that are to go ({', '.join(hosts)}), and no worker is warm "
            f"elsewhere: they stay{until}, and {fate}"
        )
        data = {"nodes": sorted(nodes), "hosts": hosts, "has_store": has_store}
        self._record.add_event(STRANDED, text, **data, deadline_at_s=_finite(ends_at_s))

    def _heed(self, node_id: str, notice: Notice) -> None:
        """Note a node that is to be emptied; what the run uses of nodes is told."""
        known = self._drains.get(node_id)
        if known is not None:
            if not known.notice.is_like(notice):
                known.is_short = self._is_short(notice)
            known.notice = notice
            return
        if node_id not in self._nodes.node_ids:
            return
        is_short = self._is_short(notice)
        told = self._told.pop(node_id, None)
        if told is not None:
            ranks, stage = dict(told.ranks), told.stage
            self._drains[node_id] = Drain(notice, told.world_size, ranks, stage, is_short)
            return
        ranks = self._ranks_on(node_id)
        left_s = notice.left_s(self._clock.unix_s())
        stage = Stage.OPEN if ranks else Stage.EMPTY
        drain = Drain(notice, len(self._control.members), stage=stage, is_short=is_short)
        self._drains[node_id] = drain
        short = ", which is less than a step takes" if drain.is_short else ""
        left = "" if notice.deadline_at_s is None else f" within {max(0.0, left_s):.1f} s{short}"
        trouble = "" if notice.trouble is None else f" ({notice.trouble})"
        self._record.add_event(
            "drain",
            f"node {self._host_of(node_id)} is to be emptied{left}: {notice.source}{trouble}; "
            f"{self._intend(ranks)}",
            node=node_id,
            host=self._host_of(node_id),
            deadline_at_s=notice.deadline_at_s,
            ranks=sorted(ranks.values()),
            workers=ranks,
            world_size=drain.world_size,
            is_short=drain.is_short,
        )

    def _intend(self, ranks: dict[str, int]) -> str:
        """Say what is done about a node's ranks."""
        if not ranks:
            return "no rank is there"
        staying = self._staying(ranks)
        if staying:
            return f"{_say(staying, 'stays', 'stay')}: {self._why_staying}"
        return f"{_say(ranks.values(), 'leaves', 'leave')} it at the end of the step under way"

    def _staying(self, ranks: dict[str, int]) -> list[int]:
        """Return those ranks of a node for which there is no other place now."""
        lineup = self._control.candidacy.next_at_boundary(self._control.members)
        return [rank for worker_id, rank in ranks.items() if worker_id in lineup]

    def _tell_stage(self, node_id: str, drain: Drain, stage: Stage) -> None:
        now_s = self._clock.unix_s()
        left_s = drain.notice.left_s(now_s)
        host, ranks = self._host_of(node_id), sorted(drain.ranks.values())
        data: dict[str, Any] = {"node": node_id, "host": host, "ranks": ranks}
        data |= {"workers": drain.ranks, "world_size": drain.world_size, "left_s": _finite(left_s)}
        if stage is Stage.EMPTY:
            side = "before" if left_s >= 0 else "after"
            when = "" if left_s == math.inf else f", {abs(left_s):.1f} s {side} its deadline"
            text = f"node {host} is empty{when}: {self._where(drain)}"
            self._record.add_event("drained", text, **data, members=list(self._control.members))
        elif stage is Stage.LOST:
            text = f"node {host} was not emptied in time: workers there were lost with their ranks"
            self._record.add_event("drain_late", text, **data, lost=True)
        else:
            staying = self._staying(drain.ranks)
            why = self._why_staying if staying else "no step has ended since"
            text = f"node {host} is not empty at its deadline: {why}"
            self._record.add_event("drain_late", text, **data, lost=False)

    def _where(self, drain: Drain) -> str:
        """Say where ranks have gone."""
        members = self._control.members
        if not drain.ranks:
            return "no rank is there"
        if len(members) != drain.world_size:
            return f"no rank is there; the world had {drain.world_size} and has {len(members)}"
        return ", ".join(f"rank {each} is on {members[each]}" for each in drain.ranks.values())

    def _may_come(self, node_id: str) -> bool:
        """Whether a new coordinator may just not have heard again what an earlier one had."""
        is_new = self._clock.monotonic_s() < self._began_at_s + _HEARD_AGAIN_WITHIN_S
        return is_new and node_id not in self._drains

    def _withdraw(self, node_id: str) -> None:
        """The node stays after all, and is as good as any other."""
        del self._nodes.unfit.draining[node_id]
        self._stranded -= {node_id}
        was_told = self._told.pop(node_id, None) is not None
        if self._drains.pop(node_id, None) is not None or was_told:
            text = f"node {self._host_of(node_id)} is no longer to be emptied"
            self._record.add_event("drain_over", text, node=node_id)
            self._control.advance()

    @property
    def _why_staying(self) -> str:
        if self._find_stranded():
            return "no worker is warm on a node that stays"
        limit = f"workers.minimum = {self._job.workers.minimum}"
        return f"no other worker is warm, and the world may not be below {limit}"

    def _ranks_on(self, node_id: str) -> dict[str, int]:
        """Return the ranks of a node's workers."""
        members = self._control.members
        nodes = self._pool.nodes_of(each for each in members if each in self._pool.entries)
        return {each: members.index(each) for each, node in nodes.items() if node == node_id}

    def _is_short(self, notice: Notice) -> bool:
        """Whether less time is left than a step takes."""
        slowest_s = max(self._record.step_times_s(_STEPS), default=0.0)
        return notice.left_s(self._clock.unix_s()) < slowest_s

    def _host_of(self, node_id: str) -> str:
        described = (entry.description for entry in self._pool.entries.values())
        hosts = {each.node_id: each.host for each in described if each is not None}
        return self._nodes.host_of(node_id) or hosts.get(node_id, node_id)


def _say(ranks: Iterable[int], one: str, several: str) -> str:
    """Name ranks, and what they do."""
    names = [str(rank) for rank in sorted(ranks)]
    return f"rank {names[0]} {one}" if len(names) == 1 else f"ranks {', '.join(names)} {several}"


def _finite(left_s: float) -> float | None:
    return left_s if math.isfinite(left_s) else None
