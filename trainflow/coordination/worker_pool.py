"""The worker actors of a run: creating them, having them watched, getting rid of them.

Process: coordinator.  Thread: its event loop.  Blocks: never; what takes time is a task.
"""

import asyncio
import contextlib
import logging
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import ray
from ray.actor import ActorHandle
from ray.exceptions import ActorUnavailableError, RayActorError, RayError
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from trainflow.clock import SYSTEM_CLOCK
from trainflow.config.job import JobConfig
from trainflow.coordination import names
from trainflow.coordination.bundles import Bundles
from trainflow.coordination.launchers import Launchers
from trainflow.coordination.messages import WorkerDescription, WorkerSpec
from trainflow.coordination.ray_question import RayQuestion, ask_patiently
from trainflow.coordination.worker import WorkerActor
from trainflow.coordination.worker_watch import WorkerWatch

logger = logging.getLogger(__name__)

_ASK_AGAIN_AFTER_S = 0.2


@dataclass
class WorkerEntry:
    """A worker as the coordinator knows it.

    Attributes:
        worker_id: ``slot<bundle>-<serial>``.
        actor: handle.
        description: what it said when it became ready; None before.
        described_at_s: CLOCK_REALTIME when it said that.
        compute_s: that it computes in a step, over the newest ones; None before any as a member.
    """

    worker_id: str
    actor: Any
    description: WorkerDescription | None = None
    described_at_s: float = 0.0
    compute_s: float | None = None

    @property
    def bundle(self) -> int:
        """Number of its bundle."""
        return int(self.worker_id.removeprefix("slot").split("-")[0])

    def is_on(self, node_id: str) -> bool:
        """Whether it is known to run on that node."""
        return self.description is not None and self.description.node_id == node_id


class WorkerPool:
    """All workers of one run that aren't known to be gone, oldest first.

    Attributes:
        entries: by worker id.
        bundles: where they are.
        left: ids of those that have left their steps, as they were asked to stop.
    """

    def __init__(
        self,
        job_id: str,
        job: JobConfig,
        import_paths: tuple[str, ...],
        watch: WorkerWatch,
        launchers: Launchers,
    ):
        """Make an empty pool.

        Args:
            job_id: names the run.
            job: what the workers run.
            import_paths: where they find its modules.
            watch: tells of those that die.
            launchers: how they are started.
        """
        self.entries: dict[str, WorkerEntry] = {}
        self.left: set[str] = set()
        self._job_id = job_id
        self._job = job
        self._import_paths = import_paths
        self._watch = watch
        self._launchers = launchers
        self.bundles = Bundles(job_id, job.workers.resources)
        self._where = RayQuestion[dict[int, str]]()
        self._placed: dict[int, str] = {}
        self._making = asyncio.Lock()
        self._is_closed = False

    def bundle_nodes(self) -> dict[int, str]:
        """Return the node of each bundle that is placed, as of when it was last looked."""
        return dict(self._placed)

    async def look_at_bundles(self) -> dict[int, str]:
        """Ask Ray for the node of each bundle that is placed.

        Raises:
            TimeoutError: it doesn't answer.
        """
        self._placed = await self._where.ask(self.bundles.nodes)
        return dict(self._placed)

    def num_bundles(self) -> int:
        """Number of worker slots, placed or not; none once they have been given back."""
        return len(self.bundles.numbers())

    async def meet_keepers(self, node_ids: Collection[str]) -> None:
        """Wait, within bounds, until the Keepers of some nodes answer: all may be starting."""
        await asyncio.gather(*map(self._launchers.find_environment, node_ids))

    async def spawn(self, bundle: int, serial: str, *, rehearse: bool) -> WorkerEntry | None:
        """Create a worker in a bundle; it starts once the bundle is placed.

        Ray is waited for, however long it takes, also if whoever waits is cancelled. Returns None
        if the bundle, or the run, is gone by then.
        """
        return await asyncio.shield(self._spawn(bundle, serial, rehearse=rehearse))

    async def _spawn(self, bundle: int, serial: str, *, rehearse: bool) -> WorkerEntry | None:
        worker_id = f"slot{bundle}-{serial}"
        environment = await self._find_environment(bundle)
        async with self._making:
            if not self._is_wanted(bundle):
                return None
            placing = self.bundles.place(bundle)
            create = partial(self._create, worker_id, placing, environment, rehearse=rehearse)
            actor = await ask_patiently(create)
            if not self._is_wanted(bundle):
                ray.kill(actor, no_restart=True)
                return None
            return self.adopt(worker_id, actor)

    async def _find_environment(self, bundle: int) -> dict[str, Any]:
        """Return the runtime environment of a worker, which depends on where its bundle is."""
        if bundle not in self._placed and self._is_wanted(bundle):
            try:
                await self.look_at_bundles()
            except Exception:  # how it is started isn't worth more
                logger.exception("Ray doesn't say where bundle %d is", bundle)
        return await self._launchers.find_environment(self._placed.get(bundle))

    def _is_wanted(self, bundle: int) -> bool:
        return not self._is_closed and bundle in self.bundles.numbers()

    def _create(
        self,
        worker_id: str,
        placing: PlacementGroupSchedulingStrategy,
        environment: dict[str, Any],
        *,
        rehearse: bool,
    ) -> ActorHandle[Any]:
        """Have Ray create a worker; blocks until its head has noted that."""
        spec = WorkerSpec(
            job_id=self._job_id,
            worker_id=worker_id,
            job_json=self._job.as_sent(),
            import_paths=self._import_paths,
            rehearse=rehearse,
            asked_at_s=SYSTEM_CLOCK.unix_s(),
        )
        resources = self._job.workers.resources
        options: dict[str, Any] = {"runtime_env": environment} if environment else {}
        actor = WorkerActor.options(
            name=names.worker_name(self._job_id, worker_id),
            namespace=names.NAMESPACE,
            lifetime="detached",
            num_cpus=resources.CPU,
            num_gpus=resources.GPU,
            scheduling_strategy=placing,
            **options,
        ).remote(spec)
        actor.run.remote()
        return actor

    def adopt(self, worker_id: str, actor: Any) -> WorkerEntry:  # noqa: ANN401  an actor handle
        """Start to watch a worker."""
        entry = WorkerEntry(worker_id, actor)
        self.entries[worker_id] = entry
        self._watch.begin(worker_id, actor, lambda: self.entries.get(worker_id) is entry)
        return entry

    def describe(self, description: WorkerDescription) -> None:
        """Note what a worker said of itself."""
        entry = self.entries.get(description.worker_id)
        if entry is None:
            return
        if entry.description is None:
            self._watch.begin_presence(description)
        entry.description, entry.described_at_s = description, SYSTEM_CLOCK.unix_s()

    async def wait_description(self, worker_id: str) -> WorkerDescription | None:
        """Wait until a worker says what it is, however long that takes; None once it is gone."""
        while (entry := self.entries.get(worker_id)) is not None:
            try:
                return await entry.actor.describe.remote()
            except ActorUnavailableError as error:
                logger.info("%s is not reached: %s", worker_id, error)
            except RayError:
                return None
            await asyncio.sleep(_ASK_AGAIN_AFTER_S)
        return None

    def nodes_of(self, worker_ids: Iterable[str]) -> dict[str, str]:
        """Return on which node each of these workers is, as far as that is known."""
        entries = [self.entries.get(worker_id) for worker_id in worker_ids]
        described = [entry.description for entry in entries if entry is not None]
        return {each.worker_id: each.node_id for each in described if each is not None}

    def drop(self, worker_id: str) -> None:
        """Forget a worker and make sure that its actor is dead."""
        entry = self.entries.pop(worker_id, None)
        if entry is not None:
            ray.kill(entry.actor, no_restart=True)

    async def wait_left(self, worker_id: str) -> None:
        """Wait until a worker has left its training function, and note it, or until it is gone.

        What it has told of its last step is heard by then.
        """
        while (entry := self.entries.get(worker_id)) is not None:
            try:
                await entry.actor.wait_trained.remote()
            except ActorUnavailableError as error:
                logger.info("%s is not reached: %s", worker_id, error)
            except RayActorError:
                return
            except RayError:
                logger.exception("%s can't say whether its training is over", worker_id)
            else:
                self.left.add(worker_id)
                return
            await asyncio.sleep(_ASK_AGAIN_AFTER_S)

    def have_stopped(self, members: Iterable[str]) -> bool:
        """Whether members of an epoch have stopped: one leaves only once all may."""
        return not self.left.isdisjoint(members)

    async def close(self, timeout_s: float) -> None:
        """End every worker, gently within ``timeout_s``, and give the bundles back.

        One that is still starting holds nothing, and would answer only once it has imported
        everything: it is ended at once.
        """
        self._is_closed = True
        self._watch.end()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s), self._making:
                pass  # what was being created is known by now, or ended
        closing = [
            asyncio.ensure_future(entry.actor.close.remote())
            for entry in self.entries.values()
            if entry.description is not None
        ]
        if closing:
            await asyncio.wait(closing, timeout=timeout_s)
        for worker_id in list(self.entries):
            self.drop(worker_id)
        await self.bundles.give_back()


async def ask_description(
    actor: Any,  # noqa: ANN401  an actor handle
    timeout_s: float | None,
) -> WorkerDescription | None:
    """Ask a worker for its description; None if it is gone or doesn't answer in time."""
    with contextlib.suppress(RayError, TimeoutError):
        async with asyncio.timeout(timeout_s):  # `wait_for` may swallow that it is cancelled
            return await asyncio.ensure_future(actor.describe.remote())
    return None
