"""Workers and Keepers that are objects of this process, for a coordinator that is a real one.

What goes over Ray is a call here: nothing is measured but what the coordinator itself does. The
seams are where it touches Ray: the pool that makes workers and the bundles they are in, the actors
of Keepers, and what it asks of nodes.

Process: the benchmark.  Thread: its event loop.
"""

import asyncio
import os
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from trainflow.computation.reports import Joined, StepReport
from trainflow.config.job import JobConfig
from trainflow.coordination import (
    coordinator,
    drain_watch,
    expansion,
    launch,
    node_watch,
    run_monitor,
    worker_pool,
)
from trainflow.coordination.bundles import Bundles
from trainflow.coordination.coordinator import Coordinator
from trainflow.coordination.hang_detection import Progress
from trainflow.coordination.keeper import Heartbeat
from trainflow.coordination.messages import Holding, Ready, WorkerDescription, WorkerMessage
from trainflow.coordination.metric_export import MetricExport
from trainflow.coordination.worker_pool import WorkerEntry, WorkerPool
from trainflow.coordination.worker_watch import WorkerWatch
from trainflow.epochs import (
    INITIAL_EPOCH,
    INITIAL_VERSION,
    EpochId,
    EpochSpec,
    MemberReport,
    PeerAddress,
    Phase,
    RecoveryPlan,
    Version,
)
from trainflow.monitoring.usage import Usage

_HOST = "127.0.0.1"
_JOB_ID = "bench-coordinator"
_STEP_S = 0.2
_USAGE = Usage(memory_bytes=2**32, device_bytes=2**36, device_busy_ratio=0.9)

Answer = Callable[..., Awaitable[Any]]


class _Method:
    """An actor's method: a call returns a future, as Ray's do."""

    def __init__(self, answer: Answer):
        self._answer = answer

    def remote(self, *args: object, **kwargs: object) -> "asyncio.Task[Any]":
        return asyncio.ensure_future(self._answer(*args, **kwargs))


class Worker:
    """One that is warm at once, connects at once, and commits a step in each epoch."""

    def __init__(self, cluster: "SimulatedCluster", worker_id: str, node_id: str):
        self.worker_id = worker_id
        self.node_id = node_id
        self.version: Version | None = None
        self.epoch = INITIAL_EPOCH
        self.gone = asyncio.Event()
        self._cluster = cluster
        self.form = _Method(self._form)
        self.begin = _Method(self._begin)
        self.request = self.close = _Method(self._ignore)
        self.steps_up_to = _Method(self._tell_nothing)

    def describe(self) -> WorkerDescription:
        """Return what it says of itself."""
        return WorkerDescription(
            self.worker_id, self.node_id, {}, os.getpid(), _HOST, 1, 1, ready=True
        )

    async def _ignore(self, *_: object) -> None:
        pass

    async def _tell_nothing(self, *_: object) -> tuple[StepReport, ...]:
        return ()

    async def _form(self, _spec: EpochSpec, **_: object) -> MemberReport:
        version = self.version or (INITIAL_VERSION if self._cluster.is_fresh else None)
        return MemberReport(self.worker_id, version, tail_done=True)

    async def _begin(self, plan: RecoveryPlan) -> None:
        self.epoch, now_s = plan.spec.epoch, time.time()
        self.version = Version(plan.base.step + 1, self.epoch)
        self._cluster.on_begun(plan.spec)
        values = dict.fromkeys(("loss", "grad_norm", "lr", "weight", "wait_s"), 1.0)
        report = StepReport(
            step=self.version.step,
            epoch=self.epoch,
            rank=plan.spec.members.index(self.worker_id),
            world_size=plan.spec.world_size,
            committed_at_s=now_s,
            applied=True,
            compute_s=0.5,
            wire_bytes=0,
            joined=Joined(now_s, now_s, healed=False),
            compute_by_rank=(0.5,) * plan.spec.world_size,
            **values,
        )
        self._cluster.send_later(self.worker_id, report)


class SimulatedCluster:
    """Nodes with equally many workers, and the coordinator of their one job.

    Args:
        job: says how many workers there are.
        workers_a_node: how many are on each.
        directory: for the run's record.

    Attributes:
        is_fresh: no epoch has begun.
        num_bundles: how many workers there may be.
        epoch: the newest that all its members have begun; None before.
        members: of that one, by rank.
        coordinator: of its job.
    """

    def __init__(self, job: JobConfig, workers_a_node: int, directory: str):
        self.is_fresh = True
        self.epoch: EpochId | None = None
        self.members: tuple[str, ...] = ()
        self._num_begun: Counter[EpochId] = Counter()
        self._has_begun = asyncio.Event()
        self._job = job
        self._workers_a_node = workers_a_node
        self.num_bundles = job.workers.target + job.workers.spares
        self._workers: dict[str, Worker] = {}
        self._tasks: set[asyncio.Future[Any]] = set()
        self.coordinator = Coordinator(_JOB_ID, job.model_dump_json(), (), directory)

    @property
    def node_ids(self) -> list[str]:
        """Return the nodes."""
        return [f"node{k}" for k in range(-(-self.num_bundles // self._workers_a_node))]

    def node_of(self, bundle: int) -> str:
        """Return where a bundle is."""
        return self.node_ids[bundle // self._workers_a_node]

    def spawn(self, worker_id: str, bundle: int) -> Worker:
        """Start a worker, which tells that it is warm."""
        worker = Worker(self, worker_id, self.node_of(bundle))
        self._workers[worker_id] = worker
        self.send(worker_id, Ready(worker.describe()))
        return worker

    def send(self, worker_id: str, message: WorkerMessage) -> None:
        """Have a worker tell the coordinator something."""
        task = asyncio.ensure_future(self.coordinator.report(worker_id, [message]))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def send_later(self, worker_id: str, message: WorkerMessage) -> None:
        """Have a worker tell it once it has done a step."""
        asyncio.get_running_loop().call_later(_STEP_S, self.send, worker_id, message)

    def drop(self, worker_id: str) -> None:
        """Forget a worker."""
        self._workers.pop(worker_id, None)

    def on_begun(self, spec: EpochSpec) -> None:
        """A member has begun an epoch."""
        self.is_fresh = False
        self._num_begun[spec.epoch] += 1
        if self._num_begun[spec.epoch] == spec.world_size:
            self.epoch, self.members = spec.epoch, spec.members
            self._has_begun.set()

    async def wait_epoch_after(self, before: EpochId | None) -> None:
        """Wait until all members of another epoch have begun it."""
        while self.epoch == before:
            self._has_begun.clear()
            await self._has_begun.wait()

    def kill(self, worker_id: str) -> None:
        """Have a worker die."""
        self._workers[worker_id].gone.set()

    async def beat(self) -> None:
        """Let every Keeper send its heartbeat."""
        on_node: dict[str, dict[str, Progress]] = {node_id: {} for node_id in self.node_ids}
        newest: dict[str, Version] = {}
        for worker in self._workers.values():
            step = 0 if worker.version is None else worker.version.step
            on_node[worker.node_id][worker.worker_id] = Progress(
                os.getpid(), step, worker.epoch, Phase.COMPUTE, 0.1, 0.0, _USAGE
            )
            if worker.version is not None:
                newest[worker.node_id] = worker.version
        for node_id, progress in on_node.items():
            address = PeerAddress(_HOST, 1, node_id)
            held = newest.get(node_id)
            await self.coordinator.heartbeat(
                Heartbeat(node_id, progress, knows_peers=True, held=held, address=address)
            )


class _Keeper:
    """A Keeper that does as it is told, which is nothing that can be seen."""

    def __init__(self, node_id: str):
        self._node_id = node_id

    def __getattr__(self, name: str) -> _Method:
        answers = {"held": self._held, "wait_exit": self._wait_exit}
        return _Method(answers.get(name, self._answer))

    async def _answer(self, *_: object) -> int:
        return 0

    async def _wait_exit(self) -> None:
        await asyncio.Event().wait()

    async def _held(self) -> Holding:
        return Holding(self._node_id, PeerAddress(_HOST, 1, self._node_id), None, ())


class _Bundles(Bundles):
    """Those of a cluster that is simulated, which are there from the start."""

    cluster: SimulatedCluster

    async def reserve(self, count: int) -> None:
        pass

    async def find(self) -> bool:
        return False

    def numbers(self) -> set[int]:
        return set(range(self.cluster.num_bundles))

    def nodes(self) -> dict[int, str]:
        return {number: self.cluster.node_of(number) for number in self.numbers()}


class _Pool(WorkerPool):
    """The pool of workers, with the workers of a cluster in it that is simulated."""

    cluster: SimulatedCluster

    async def spawn(self, bundle: int, serial: str, **_: object) -> WorkerEntry:
        worker_id = f"slot{bundle}-{serial}"
        return self.adopt(worker_id, self.cluster.spawn(worker_id, bundle))

    def drop(self, worker_id: str) -> None:
        self.entries.pop(worker_id, None)
        self.cluster.drop(worker_id)


class _Watch(WorkerWatch):
    """The watch on workers that say themselves that they are gone."""

    async def _watch_actor(
        self,
        worker_id: str,
        actor: Any,  # noqa: ANN401  as that class has it
        is_there: Callable[[], bool],
    ) -> None:
        await actor.gone.wait()
        if is_there():
            self._on_gone(worker_id, "killed by the benchmark")

    async def _watch_presence(self, description: WorkerDescription) -> None:
        pass


@contextmanager
def simulated(
    job: JobConfig,
    workers_a_node: int,
    directory: str,
    make_export: Callable[[str], MetricExport] | None = None,
) -> Generator[SimulatedCluster]:
    """Make a cluster in this event loop, whose coordinator begins at once.

    Args:
        job: that it runs.
        workers_a_node: how many are on each.
        directory: for the run's record.
        make_export: makes what takes the values of metrics; None: nothing does.
    """
    nodes: list[dict[str, Any]] = []
    make_keeper = mock.Mock()
    make_keeper.options.side_effect = lambda *, name, **_: mock.Mock(
        remote=lambda *_: _Keeper(name.rpartition("-")[2])
    )
    with (
        mock.patch.object(coordinator, "WorkerPool", _Pool),
        mock.patch.object(coordinator, "WorkerWatch", _Watch),
        mock.patch.object(run_monitor, "RayExport", make_export or mock.Mock()),
        mock.patch.object(node_watch, "KeeperActor", make_keeper),
        mock.patch.object(node_watch, "NodeAffinitySchedulingStrategy", mock.Mock()),
        mock.patch.object(launch.ray, "nodes", return_value=nodes),
        mock.patch.object(launch, "find_draining_nodes", return_value={}),
        mock.patch.object(drain_watch, "find_draining_nodes", return_value={}),
        mock.patch.object(expansion, "find_room", return_value={}),
        mock.patch.object(worker_pool, "Bundles", _Bundles),
        mock.patch.object(worker_pool.ray, "kill", mock.Mock()),
        mock.patch.object(node_watch.ray, "put", lambda value: value),
    ):
        cluster = SimulatedCluster(job, workers_a_node, directory)
        _Pool.cluster = _Bundles.cluster = cluster
        nodes += [
            {
                "NodeID": node_id,
                "NodeManagerAddress": _HOST,
                "Alive": True,
                "Labels": {},
                "Resources": {"CPU": float(workers_a_node)},
            }
            for node_id in cluster.node_ids
        ]
        yield cluster
