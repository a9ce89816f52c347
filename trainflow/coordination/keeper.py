"""The background actor of a node: watches its workers, speaks for them, kills them when it must.

Process: keeper, one a node and job, without a share of CPU or GPU.
Threads: one loop reads stamps and sends heartbeats; calls come in beside it; one tells for how long
this process has run (`wakefulness`); one copies what workers print (`worker_output`); one removes,
at first, what dead nodes have left in this machine's memory (`abandoned_memory`).
"""

import logging
import math
import os
import shutil
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util import get_node_ip_address

from trainflow.checkpointing.link_probe import probe_link
from trainflow.checkpointing.link_speed import LinkSpeed
from trainflow.checkpointing.reachability import find_unreachable
from trainflow.clock import SYSTEM_CLOCK
from trainflow.computation.campaign_marks import join_campaign
from trainflow.computation.stamps import remove_empty_folders
from trainflow.coordination import names
from trainflow.coordination.abandoned_memory import mark_used, remove_abandoned
from trainflow.coordination.copy_targets import CopyTargets
from trainflow.coordination.forkserver.keeping import open_fork_server
from trainflow.coordination.hang_detection import Progress
from trainflow.coordination.keeper_settings import KeeperSettings
from trainflow.coordination.lease import Lease, LeaseEnd
from trainflow.coordination.messages import Holding
from trainflow.coordination.node_memory import NodeMemory
from trainflow.coordination.notice_plugin import watch_plugin
from trainflow.coordination.peer_ping import Greetings, PeerPing
from trainflow.coordination.preemption_notice import NoticePoll, PreemptionNotice, watch_file
from trainflow.coordination.stack_dumps import StackDump, dump_stacks
from trainflow.coordination.timeout_budget import HEARTBEAT_S
from trainflow.coordination.wakefulness import Wakefulness, keep_awake
from trainflow.coordination.worker_output import OutputKeeping
from trainflow.coordination.worker_stamps import WorkerStamps
from trainflow.epochs import EpochId, PeerAddress, ShardId, Version

logger = logging.getLogger(__name__)

_LOOK_EVERY_S = 0.1
_ANSWER_WITHIN_S = 1.0
_GIVEN_UP_AFTER_S = 3600.0
_STACKS_WITHIN_S = 0.7


@dataclass(frozen=True)
class Heartbeat:
    """What a Keeper tells the coordinator about once a second.

    Attributes:
        node_id: of its node.
        progress: of the workers there, by worker id.
        knows_peers: false if it was restarted, and must be told of its peers again.
        held: the newest state that is there whole; None if none is.
        all_held: every state that is, and which shards of it.
        ready: states of which this node has yet to bring a share to storage.
        trouble: why another node takes no copy of its state; None if all that are asked do.
        address: where it serves what is in its memory.
        notice: what its machine's provider says; None: that it stays, or nothing.
        knows_notice: false if the provider hasn't answered yet, as after the Keeper was restarted:
            what it said before holds.
        notice_trouble: why the provider can't be asked at the moment; None: it can, or none is.
        lease_ends: whom it has ended by itself; told until that is answered, so maybe twice.
        is_counted: what the coordinator has answered last, see `HeartbeatReply`.
    """

    node_id: str
    progress: dict[str, Progress]
    knows_peers: bool
    held: Version | None
    ready: tuple[Version, ...] = ()
    trouble: str | None = None
    address: PeerAddress | None = None
    all_held: tuple[tuple[Version, ShardId], ...] = ()
    notice: PreemptionNotice | None = None
    knows_notice: bool = True
    notice_trouble: str | None = None
    lease_ends: tuple[LeaseEnd, ...] = ()
    is_counted: bool = True


@dataclass(frozen=True)
class HeartbeatReply:
    """What the coordinator answers a heartbeat.

    Attributes:
        incarnation: of the coordinator; a Keeper obeys none that is older.
        hang_timeout_s: a worker that hasn't moved for this long is reported at once.
        recoverable: snapshots of dead workers that are older than this are not needed.
        committed_in: the newest epoch that has committed a step; residuals that dead workers have
            left in those before are not needed.
        is_counted: the node is not given up, nor are its workers.
    """

    incarnation: int
    hang_timeout_s: float
    recoverable: Version | None = None
    committed_in: EpochId | None = None
    is_counted: bool = True


class Keeper:
    """Watch and fence of one node, and memory of its state."""

    def __init__(self, job_id: str, settings: KeeperSettings):
        self._job_id = job_id
        self._node_id = ray.get_runtime_context().get_node_id()
        self._stamps = names.stamp_directory(job_id, self._node_id)
        self._lock = threading.Lock()
        self._dumping = threading.Lock()
        self._promised = 0
        self._hang_timeout_s = float("inf")
        self._is_counted = True
        self._peers: list[Any] | None = None  # None: restarted, and not told yet who counts
        self._greetings = Greetings()
        self._is_cut_off = False  # when the newest heartbeat was sent, as far as it could tell
        self._lease = Lease(settings.lease_s, SYSTEM_CLOCK.monotonic_s())
        self._awake = Wakefulness(SYSTEM_CLOCK.monotonic_s())
        self._workers = WorkerStamps(self._stamps, self._awake, SYSTEM_CLOCK)
        self._next_beat_s = 0.0
        self._had_stale = False
        self._heard_at_s = SYSTEM_CLOCK.monotonic_s()
        self._memory = NodeMemory(job_id, self._node_id, settings.checkpoint_url, settings.snapshot)
        self._forks = open_fork_server(settings.forks, SYSTEM_CLOCK)
        if self._forks is not None and self._workers.read():
            self._forks.prepare()  # the Keeper before has died, and its server: one is lost, say
        self._notices = _watch_provider(settings)
        self._is_notice_told = False
        directory = settings.directory
        self._output = None if directory is None else OutputKeeping(self._stamps, Path(directory))
        if self._output is not None:
            self._output.start()
        join_campaign(job_id, "keeper", self._node_id, get_node_ip_address())
        keep_awake(self._awake, SYSTEM_CLOCK)
        threading.Thread(target=remove_abandoned, name="abandoned", daemon=True).start()
        threading.Thread(target=self._loop, name="keeper", daemon=True).start()

    @ray.method(concurrency_group="control")
    def held(self) -> Holding:
        """Tell what this node has in memory, and where it can be had."""
        return self._memory.holding()

    @ray.method(concurrency_group="control")
    def send_copies(self, targets: CopyTargets) -> None:
        """Send copies of what is newest here to these Keepers, and no others."""
        self._memory.replicator.send_to(targets)

    @ray.method(concurrency_group="control")
    def promise(self, incarnation: int) -> int:
        """Promise to obey no coordinator older than ``incarnation``.

        Returns:
            What was promised before; the promise is new, and exclusive, only if that is less.
        """
        with self._lock:
            before, self._promised = self._promised, max(self._promised, incarnation)
            return before

    @ray.method(concurrency_group="control")
    def introduce(self, keepers: dict[str, Any]) -> None:
        """Name the Keepers of all nodes, by node id."""
        peers = {node_id: each for node_id, each in keepers.items() if node_id != self._node_id}
        self._greetings.meet(peers)
        with self._lock:
            self._peers = list(peers.values())

    @ray.method(concurrency_group="control")
    def ping(self) -> None:
        """Answer, which is all that a peer wants to know."""

    @ray.method(concurrency_group="watch")
    def wait_exit(self) -> None:
        """Never return: the call fails when the process dies."""
        threading.Event().wait()

    @ray.method(concurrency_group="control")
    def pid(self) -> int:
        """Return this process's id."""
        return os.getpid()

    @ray.method(concurrency_group="control")
    def fork_command(self) -> str | None:
        """Return what Ray is to start a worker by on this node; None: by Python."""
        return None if self._forks is None else self._forks.command()

    @ray.method(concurrency_group="control")
    def dump_stacks(self, worker_ids: tuple[str, ...]) -> dict[str, StackDump]:
        """Have workers of this node show where they stand."""
        with self._dumping:
            return dump_stacks(self._stamps, worker_ids, SYSTEM_CLOCK, _STACKS_WITHIN_S)

    @ray.method(concurrency_group="control")
    def probe(self, target: PeerAddress) -> LinkSpeed:
        """Measure the link to another node's Keeper. Raises OSError or StateError."""
        return probe_link(target, SYSTEM_CLOCK)

    @ray.method(concurrency_group="control")
    def find_unreachable(self, targets: list[PeerAddress]) -> list[PeerAddress]:
        """Return those of some other nodes' Keepers that this node can't reach."""
        return find_unreachable(targets)

    @ray.method(concurrency_group="control")
    def fence(self, incarnation: int, worker_id: str) -> bool:
        """Kill a worker of this node; False if the order is outdated or there is no such worker."""
        with self._lock:
            if incarnation < self._promised:
                return False
        return self._workers.kill(worker_id)

    @ray.method(concurrency_group="control")
    def clean_up(self) -> None:
        """The job is over: kill its workers, and remove what it has in this machine's memory."""
        if self._forks is not None:
            self._forks.close()
        if self._output is not None:
            self._output.look()  # once more before the stamps of those that are killed are gone
        self._workers.kill_all()
        if self._output is not None:
            self._output.finish()
        self._memory.close()
        shutil.rmtree(self._stamps.parent, ignore_errors=True)

    @ray.method(concurrency_group="control")
    def forget_node(self, node_id: str) -> None:
        """Ray has given a node up: if it was on this machine, remove what it has left in memory."""
        self._forget(names.stamp_directory(self._job_id, node_id))

    def _forget(self, folder: Path) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        remove_empty_folders(folder)

    def _loop(self) -> None:
        """Look after the node for ever; what fails once is tried again, the lease above all."""
        while True:
            try:
                self._look()
            except Exception:
                logger.exception("%s: the Keeper could not look after its node", self._node_id)
            SYSTEM_CLOCK.sleep(_LOOK_EVERY_S)

    def _look(self) -> None:
        now_s = SYSTEM_CLOCK.monotonic_s()
        progress = self._workers.read()
        unheard_s = now_s - self._lease.renewed_at_s
        if self._lease.is_expired(now_s) and not self._is_spared(progress, now_s):
            if progress:
                logger.warning("%s is cut off: it ends its workers", self._node_id)
            self._lease.note_end(self._workers.kill_all(), unheard_s, now_s, SYSTEM_CLOCK.unix_s())
            if now_s - self._heard_at_s > _GIVEN_UP_AFTER_S:
                self._forget(self._stamps)
        has_news = self._notice is not None and not self._is_notice_told
        # That somebody goes on is news, too: whoever stands still is about to be killed.
        had_stale, self._had_stale = self._had_stale, self._has_stale(progress)
        if now_s >= self._next_beat_s or had_stale or self._had_stale or has_news:
            mark_used(self._stamps)
            self._beat(progress)
            self._next_beat_s = now_s + HEARTBEAT_S

    def _has_stale(self, progress: dict[str, Progress]) -> bool:
        limit_s = self._hang_timeout_s
        ages_s = (
            max(p.progress_age_s * p.phase.is_judged, p.pulse_age_s) for p in progress.values()
        )
        return any(age_s > limit_s for age_s in ages_s)

    @property
    def _notice(self) -> PreemptionNotice | None:
        return None if self._notices is None else self._notices.newest

    def _is_spared(self, progress: dict[str, Progress], now_s: float) -> bool:
        """Whether the lease has run out only as this process stood still, and cost nobody its rank.

        Nobody but the coordinator knows that.
        """
        ran_s = self._awake.age_s(self._lease.renewed_at_s, now_s)
        if self._lease.is_expired(self._lease.renewed_at_s + ran_s):
            return False  # it has asked in vain all the time
        try:
            reply = self._tell(progress)
        except Exception:
            logger.exception("%s: the coordinator could not be asked", self._node_id)
            return False
        return reply is not None and reply.is_counted

    def _beat(self, progress: dict[str, Progress]) -> None:
        """Send one heartbeat; renew the lease if the coordinator, or else most peers, answered.

        No answer is waited for beyond the lease's end, at which the workers must die. Once neither
        has answered both are asked at once, so that each has all of that time.
        """
        until_s = self._lease.wait_until_s(SYSTEM_CLOCK.monotonic_s())
        ping = self._ping() if self._is_cut_off else None
        if self._tell(progress, until_s) is not None:
            self._is_cut_off = False
            self._greetings.greet()
            return
        ping = ping or self._ping()
        self._is_cut_off = ping is None or not ping.is_heard(_left_s(ping.sent_at_s, until_s))
        if ping is not None and not self._is_cut_off:
            self._lease.renew(ping.sent_at_s)

    def _ping(self) -> PeerPing | None:
        with self._lock:
            peers = self._peers
        return None if peers is None else PeerPing.send(peers, SYSTEM_CLOCK.monotonic_s())

    def _tell(
        self, progress: dict[str, Progress], until_s: float = math.inf
    ) -> HeartbeatReply | None:
        """Tell the coordinator, and take its answer, which renews the lease; None: no answer."""
        sent_at_s = SYSTEM_CLOCK.monotonic_s()
        notice, ends = self._notice, self._lease.untold
        self._is_notice_told = notice is not None
        try:
            coordinator = ray.get_actor(names.coordinator_name(self._job_id), names.NAMESPACE)
            beat = Heartbeat(
                self._node_id,
                progress,
                knows_peers=self._peers is not None,
                held=self._memory.held.newest(),
                ready=self._memory.ready(),
                trouble=self._memory.replicator.trouble,
                address=self._memory.address,
                all_held=self._memory.held.all_held(),
                notice=notice,
                knows_notice=self._notices is None or self._notices.has_answered,
                notice_trouble=None if self._notices is None else self._notices.trouble,
                lease_ends=ends,
                is_counted=self._is_counted,
            )
            # What a coordinator that is away misses must not come to the next one as new.
            answer = coordinator.heartbeat.options(max_task_retries=0).remote(beat)
            reply = cast("HeartbeatReply", ray.get(answer, timeout=_left_s(sent_at_s, until_s)))
        except (RayError, GetTimeoutError, ValueError):  # ValueError: no such actor at the moment
            return None
        with self._lock:
            self._promised = max(self._promised, reply.incarnation)
            self._hang_timeout_s = reply.hang_timeout_s
        self._is_counted = reply.is_counted
        self._heard_at_s = SYSTEM_CLOCK.monotonic_s()
        self._lease.renew(sent_at_s)
        self._lease.note_told(ends)
        self._memory.tidy(reply.recoverable, reply.committed_in)
        return reply


def _watch_provider(settings: KeeperSettings) -> NoticePoll | None:
    """Begin to ask whether the machine stays; None: there is no way to."""
    if settings.notice_file is not None:
        return watch_file(settings.notice_file, get_node_ip_address(), SYSTEM_CLOCK)
    if settings.notice_source is not None:
        return watch_plugin(settings.notice_source, settings.import_paths, SYSTEM_CLOCK)
    return None


def _left_s(sent_at_s: float, until_s: float) -> float:
    """Return how long an answer may still take to what was sent then."""
    return max(0.0, min(sent_at_s + _ANSWER_WITHIN_S, until_s) - SYSTEM_CLOCK.monotonic_s())


# Ray's annotation of `remote` leaves concurrency_groups out.
KeeperActor = cast("Any", ray.remote)(
    max_restarts=-1, num_cpus=0, concurrency_groups={"control": 8, "watch": 1}
)(Keeper)
