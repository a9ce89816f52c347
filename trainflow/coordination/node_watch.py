"""The Keepers of a run, as the coordinator sees them.

Process: coordinator.  Thread: its event loop; Keepers are made in another (`ray_question`).
"""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from trainflow.checkpointing.link_speed import LinkSpeed
from trainflow.clock import Clock
from trainflow.config.job import JobConfig
from trainflow.coordination import names
from trainflow.coordination.copy_targets import CopyTargets
from trainflow.coordination.hang_detection import Progress
from trainflow.coordination.keeper import KeeperActor
from trainflow.coordination.keeper_cleaning import clean_up
from trainflow.coordination.keeper_deaths import KeeperDeaths
from trainflow.coordination.keeper_settings import KeeperSettings
from trainflow.coordination.messages import Holding
from trainflow.coordination.ray_drains import LivingNode
from trainflow.coordination.ray_question import ask_patiently, take_answers
from trainflow.coordination.stack_dumps import StackDump
from trainflow.coordination.timeout_budget import START_LIMIT_S
from trainflow.coordination.unfit_nodes import UnfitNodes
from trainflow.coordination.wakefulness import BEAT_EVERY_S, Wakefulness
from trainflow.coordination.worker_answers import WorkerAnswers
from trainflow.epochs import PeerAddress

_BACK_WITHIN_S = 0.5
_QUIET_AFTER_S = 3.0


class NodeWatch:
    """Keepers by node, what they last said, and when.

    Attributes:
        is_closing: no Keeper is started any more.
        unfit: nodes that are to take no more ranks, workers or copies.
        alive: addresses of the nodes of the cluster that live, as of when it was last looked; none
            before that.
        labels: of all nodes that were ever seen.
        awake: when this coordinator could have heard anybody.
        answers: of workers on nodes whose Keepers aren't heard.
    """

    def __init__(
        self,
        job_id: str,
        job: JobConfig,
        clock: Clock,
        directory: str | None = None,
        import_paths: tuple[str, ...] = (),
    ):
        self.unfit = UnfitNodes()
        self.alive: dict[str, str] = {}
        self.labels: dict[str, Mapping[str, str]] = {}
        self.awake = Wakefulness(clock.monotonic_s())
        self.answers = WorkerAnswers(clock, self.awake)
        self._hosts: dict[str, str] = {}
        self._job_id = job_id
        self._settings = KeeperSettings.of(job, directory, import_paths)
        self._clock = clock
        self._keepers: dict[str, Any] = {}
        self._deaths = KeeperDeaths(clock)
        self._everybody: Any = None  # an object of all of them, until they change
        self._heard_at_s: dict[str, float] = {}
        self._starting: set[str] = set()  # nodes whose Keepers have never been heard
        self._heard = asyncio.Event()
        self._progress: dict[str, dict[str, Progress]] = {}
        self._dismissed: dict[str, Any] = {}
        self._making = asyncio.Lock()
        self.is_closing = False

    async def ensure(self, node_ids: Collection[str], there: Collection[str] = ()) -> None:
        """Have a Keeper on each of these nodes, and let them know each other; not after `close`.

        Ray is waited for, however long it takes. Those that it makes are known also if whoever
        waits is cancelled.

        Args:
            node_ids: the nodes.
            there: those of them that have one, made by an earlier coordinator.
        """
        if not self._keepers.keys() >= {*node_ids}:
            await asyncio.shield(self._ensure({*node_ids}, there))

    async def _ensure(self, node_ids: set[str], there: Collection[str]) -> None:
        async with self._making:
            fresh = node_ids - self._keepers.keys()
            if self.is_closing or not fresh:  # what would begin now would leave one behind
                return
            unknown = fresh - self._dismissed.keys()
            made: dict[str, Any] = {}
            if unknown:
                made = await ask_patiently(
                    lambda: {node: self._make_keeper(node) for node in unknown}
                )
            self._starting |= unknown.difference(there)
            for node_id in fresh:
                keeper = made[node_id] if node_id in made else self._dismissed.pop(node_id)
                self._keepers[node_id] = keeper
                self._heard_at_s[node_id] = self._clock.monotonic_s()
                self._deaths.follow(node_id, keeper)
            self._everybody = None
            self._introduce(self._keepers)

    def _make_keeper(self, node_id: str) -> Any:  # noqa: ANN401  an actor handle
        return KeeperActor.options(
            name=names.keeper_name(self._job_id, node_id),
            namespace=names.NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
        ).remote(self._job_id, self._settings)

    def forget(self, node_id: str) -> None:
        """A node is gone: the others no longer count it.

        Should it only have been cut off, its Keeper cleans up when it is back, and may be needed
        again.
        """
        is_alive = node_id in (self.alive or self._keepers)
        keeper = self._keepers.pop(node_id, None)
        self._starting.discard(node_id)
        self._progress.pop(node_id, None)
        self._deaths.forget(node_id)
        self.answers.forget(node_id)
        if keeper is not None:
            self._dismissed[node_id] = keeper
            self._everybody = None
            self._introduce(self._keepers)
            if is_alive:
                self.unfit.unheard |= {node_id}
            else:
                for other in self._keepers.values():
                    other.forget_node.remote(node_id)

    def forget_dead(self) -> None:
        """Forget the nodes that Ray has given up, as of when it was last looked."""
        for node_id in self._keepers.keys() - (self.alive or self._keepers).keys():
            self.forget(node_id)

    def hear(self, node_id: str, progress: dict[str, Progress], *, knows_peers: bool) -> None:
        """Take a heartbeat."""
        if not knows_peers and node_id in self._keepers:
            self._introduce({node_id})
        self._deaths.note_heard(node_id, is_new=not knows_peers)
        self.answers.forget(node_id)
        self._starting.discard(node_id)
        self._heard_at_s[node_id] = self._clock.monotonic_s()
        self._heard.set()
        self._progress[node_id] = progress

    def progress_of(self, worker_ids: set[str]) -> dict[str, Progress]:
        """Return the newest progress of these workers, as far as it is known."""
        return {
            worker_id: progress
            for node in self._progress.values()
            for worker_id, progress in node.items()
            if worker_id in worker_ids
        }

    def note_alive(self, alive: Mapping[str, LivingNode]) -> None:
        """Take the nodes that live."""
        self.alive = {node_id: node.host for node_id, node in alive.items()}
        self.labels |= {node_id: node.labels for node_id, node in alive.items()}
        self._hosts |= self.alive
        self.unfit.unheard = self.unfit.unheard.intersection(alive)

    def host_of(self, node_id: str) -> str | None:
        """Return a node's address, also of one that is gone; None if it was never seen."""
        return self._hosts.get(node_id)

    def counts(self, node_id: str) -> bool:
        """Whether a node is not given up; one that has yet to be found is not, either."""
        return node_id not in self._dismissed

    def restart_keeper(self, node_id: str) -> None:
        """End a Keeper that stands still, so that Ray starts it again."""
        self._deaths.end(node_id, self._keepers[node_id])

    def quiet_nodes(self) -> list[str]:
        """Return the nodes that may be found silent soon."""
        return self._find_unheard(self._silent_after_s - _QUIET_AFTER_S)

    def silent_nodes(self) -> list[str]:
        """Return the nodes whose lease has run out: their Keepers have killed their workers."""
        unattended = self.unattended_nodes()
        return [node for node in self._find_unheard() if node not in unattended]

    def unattended_nodes(self) -> list[str]:
        """Return those that would be silent, but that their Keepers are being started again.

        Their workers go on, and nobody looks after them until then. Where there are workers that
        could say so, and don't, the node is cut off whatever has become of its Keeper.
        """
        living = self.alive or self._keepers
        return [
            node
            for node in self._find_unheard()
            if node in living
            and self._deaths.is_coming_back(node)
            and (self.is_answering(node) or not self.answers.were_asked(node))
        ]

    def is_answering(self, node_id: str) -> bool:
        """Whether a worker of a node has answered within the lease, while its Keeper was silent."""
        return self.answers.have_come(node_id, self._silent_after_s)

    def _find_unheard(self, before_s: float = 0.0) -> list[str]:
        """Return the nodes that have not been heard within their lease.

        A Keeper that has never been heard may still be starting, as its workers are. While this
        coordinator stood still itself it heard nobody.

        Args:
            before_s: so many seconds earlier.
        """
        now_s, limit_s = self._clock.monotonic_s(), self._silent_after_s
        limits_s = dict.fromkeys(self._keepers, limit_s)
        limits_s |= dict.fromkeys(self._starting, max(limit_s, START_LIMIT_S))
        return [
            node
            for node, at_most_s in limits_s.items()
            if self._is_older(self._heard_at_s[node], now_s, at_most_s - before_s)
        ]

    def _is_older(self, since_s: float, now_s: float, age_s: float) -> bool:
        """Whether this coordinator has run for longer than that since a moment."""
        return now_s - since_s > age_s and self.awake.age_s(since_s, now_s) > age_s

    async def keep_awake(self) -> None:
        """Beat as long as the event loop runs, which takes what Keepers say."""
        while not self.is_closing:
            self.awake.beat(self._clock.monotonic_s())
            await asyncio.sleep(BEAT_EVERY_S)

    @property
    def _silent_after_s(self) -> float:
        return self._settings.lease_s + 1.0

    async def wait_heard(self) -> None:
        """Wait for two more heartbeats of every living Keeper: one may be on its way already."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._silent_after_s):
                for _ in range(2):
                    await self._wait_next()

    async def _wait_next(self) -> None:
        asked_at_s = self._clock.monotonic_s()
        while any(self._heard_at_s[node_id] <= asked_at_s for node_id in self._keepers):
            self._heard.clear()
            await self._heard.wait()

    async def promise(self, incarnation: int, timeout_s: float) -> list[int]:
        """Ask the Keepers to obey this incarnation.

        Returns:
            What each had promised before, of those that answered until more than half had: the rest
            may be on a node that is gone.
        """
        asked = {
            asyncio.ensure_future(k.promise.remote(incarnation)) for k in self._keepers.values()
        }
        answers: list[int] = []
        deadline_s = self._clock.monotonic_s() + timeout_s
        while asked and 2 * len(answers) <= self.num_keepers:
            left_s = deadline_s - self._clock.monotonic_s()
            done, asked = await asyncio.wait(
                asked, timeout=left_s, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                break
            answers += [task.result() for task in done if task.exception() is None]
        return answers

    async def ask_holdings(
        self, timeout_s: float, *, also_dismissed: bool = False
    ) -> list[Holding]:
        """Ask every Keeper what it has in memory; returns what those say that answer in time.

        Args:
            timeout_s: how long to wait for the slowest.
            also_dismissed: ask those too that were not heard of for long: they may be back.
        """
        keepers = [*self._keepers.values(), *(self._dismissed.values() if also_dismissed else ())]
        asked = {asyncio.ensure_future(each.held.remote()): n for n, each in enumerate(keepers)}
        return list((await take_answers(asked, timeout_s)).values())

    async def ask_stacks(
        self, worker_ids: Collection[str], timeout_s: float
    ) -> dict[str, StackDump]:
        """Have these workers write their stacks; returns what their Keepers tell in time."""
        asked: dict[asyncio.Future[dict[str, StackDump]], str] = {}
        for node_id, keeper in self._keepers.items():
            here = tuple(each for each in self._progress.get(node_id, ()) if each in worker_ids)
            if here:
                asked[asyncio.ensure_future(keeper.dump_stacks.remote(here))] = node_id
        answers = await take_answers(asked, timeout_s)
        return {worker_id: dump for each in answers.values() for worker_id, dump in each.items()}

    async def probe_links(
        self, targets: Mapping[str, PeerAddress], timeout_s: float
    ) -> dict[str, LinkSpeed]:
        """Have nodes measure a link each, all at once; returns what comes in time."""
        asked = {
            asyncio.ensure_future(self._keepers[node_id].probe.remote(target)): node_id
            for node_id, target in targets.items()
            if node_id in self._keepers
        }
        return await take_answers(asked, timeout_s)

    async def ask_unreachable(
        self, addresses: Mapping[str, PeerAddress], timeout_s: float
    ) -> dict[str, list[str]]:
        """Ask nodes which others they can't reach; returns what those say that answer in time.

        Args:
            addresses: by node id, of all of them.
            timeout_s: how long to wait for the slowest.
        """
        node_at = {address: node_id for node_id, address in addresses.items()}
        asked = {
            asyncio.ensure_future(
                self._keepers[node_id].find_unreachable.remote(
                    [each for other, each in addresses.items() if other != node_id]
                )
            ): node_id
            for node_id in addresses
            if node_id in self._keepers
        }
        answers = await take_answers(asked, timeout_s)
        return {node_id: [node_at[each] for each in found] for node_id, found in answers.items()}

    def send_copies(self, copies: Mapping[str, CopyTargets]) -> None:
        """From now on these nodes' snapshots are copied to these Keepers, and no other node's."""
        for node_id, keeper in self._keepers.items():
            keeper.send_copies.remote(copies.get(node_id, CopyTargets()))

    @property
    def node_ids(self) -> set[str]:
        """The nodes with a Keeper."""
        return set(self._keepers)

    def keeper_of(self, node_id: str) -> Any:  # noqa: ANN401  an actor handle
        """Return the Keeper of a node; None if it has none."""
        return self._keepers.get(node_id)

    @property
    def num_keepers(self) -> int:
        """Number of Keepers that count for a majority."""
        return len(self._keepers)

    def fence(self, incarnation: int, node_id: str, worker_id: str) -> None:
        """Have a worker killed from its own node, also where that is given up and may be back."""
        keeper = self._keepers.get(node_id) or self._dismissed.get(node_id)
        if keeper is not None:
            keeper.fence.remote(incarnation, worker_id)

    async def close(self, timeout_s: float) -> None:
        """Clean every node up and end the Keepers; one that was lost just before is waited for."""
        self.is_closing = True
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s), self._making:
                pass  # what is being made is there by now
        for node_id in self._keepers:
            self._deaths.forget(node_id)
            self.answers.forget(node_id)
        await clean_up(self._keepers.values(), timeout_s)
        await clean_up(self._dismissed.values(), _BACK_WITHIN_S)
        for keeper in [*self._keepers.values(), *self._dismissed.values()]:
            ray.kill(keeper, no_restart=True)
        self._keepers.clear()
        self._dismissed.clear()

    def _introduce(self, node_ids: Iterable[str]) -> None:
        """Tell the Keepers of these nodes who all are.

        All are named in one object, which each node fetches: of a thousand Keepers a thousand
        handles are written, and not a million.
        """
        if self._everybody is None:
            self._everybody = ray.put(dict(self._keepers))
        for node_id in node_ids:
            self._keepers[node_id].introduce.remote(self._everybody)
