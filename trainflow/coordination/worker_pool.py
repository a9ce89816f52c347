"""The worker actors of a run: creating them, telling when one is gone, getting rid of them.

Process: coordinator.  Thread: its event loop.  Blocks: never; what takes time is a task.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError
from ray.util.placement_group import (
    PlacementGroup,
    get_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from trainflow.config.job import JobConfig
from trainflow.coordination import names
from trainflow.coordination.messages import WorkerDescription, WorkerSpec
from trainflow.coordination.presence import wait_gone
from trainflow.coordination.worker import WorkerActor

logger = logging.getLogger(__name__)

OnGone = Callable[[str, str], None]


@dataclass
class WorkerEntry:
    """A worker as the coordinator knows it.

    Attributes:
        worker_id: ``slot<bundle>-<serial>``.
        actor: handle.
        description: what it said when it became ready; None before.
    """

    worker_id: str
    actor: Any
    description: WorkerDescription | None = None

    @property
    def bundle(self) -> int:
        """Index of its bundle in the placement group."""
        return int(self.worker_id.removeprefix("slot").split("-")[0])

    def is_on(self, node_id: str) -> bool:
        """Whether it is known to run on that node."""
        return self.description is not None and self.description.node_id == node_id


class WorkerPool:
    """All workers of one run that aren't known to be gone, oldest first."""

    def __init__(
        self,
        job_id: str,
        job: JobConfig,
        import_paths: tuple[str, ...],
        *,
        on_gone: OnGone,
        on_stillborn: OnGone,
    ):
        """Make an empty pool.

        Args:
            job_id: names the run.
            job: what the workers run.
            import_paths: where they find its modules.
            on_gone: called with a worker's id and the cause when its process is gone.
            on_stillborn: called when its constructor raised: another one would do the same.
        """
        self.entries: dict[str, WorkerEntry] = {}
        self._job_id = job_id
        self._job = job
        self._import_paths = import_paths
        self._on_gone = on_gone
        self._on_stillborn = on_stillborn
        self._group: PlacementGroup | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def reserve(self, num_bundles: int) -> None:
        """Create the placement group, unless one was found, and wait until it is placed."""
        if self._group is None:
            self._create_group(num_bundles)
        await self._require_group().ready()

    def _create_group(self, num_bundles: int) -> None:
        resources = self._job.workers.resources.model_dump()
        bundle = {kind: amount for kind, amount in resources.items() if amount}
        self._group = placement_group(
            [bundle or {"CPU": 0.001}] * num_bundles,
            strategy="SPREAD",
            name=names.placement_group_name(self._job_id),
            lifetime="detached",
        )

    def find_group(self) -> bool:
        """Take over the placement group of an earlier coordinator; False if there is none."""
        try:
            self._group = get_placement_group(names.placement_group_name(self._job_id))
        except ValueError:
            return False
        return True

    def bundle_nodes(self) -> dict[int, str]:
        """Return the node of each bundle that is placed."""
        table = placement_group_table(self._require_group())
        placed: dict[int, str] = table["bundles_to_node_id"]
        return {bundle: node for bundle, node in placed.items() if node}

    def num_bundles(self) -> int:
        """Number of worker slots, placed or not; none once they have been given back."""
        return 0 if self._group is None else len(self._group.bundle_specs)

    def spawn(self, bundle: int, serial: str, *, rehearse: bool) -> WorkerEntry:
        """Create a worker in a bundle; it starts once the bundle is placed."""
        worker_id = f"slot{bundle}-{serial}"
        spec = WorkerSpec(
            job_id=self._job_id,
            worker_id=worker_id,
            job_json=self._job.model_dump_json(),
            import_paths=self._import_paths,
            rehearse=rehearse,
        )
        resources = self._job.workers.resources
        strategy = PlacementGroupSchedulingStrategy(self._require_group(), bundle)
        options: dict[str, Any] = (
            {"runtime_env": self._job.runtime_env} if self._job.runtime_env else {}
        )
        actor = WorkerActor.options(
            name=names.worker_name(self._job_id, worker_id),
            namespace=names.NAMESPACE,
            lifetime="detached",
            num_cpus=resources.CPU,
            num_gpus=resources.GPU,
            scheduling_strategy=strategy,
            **options,
        ).remote(spec)
        actor.run.remote()
        return self.adopt(worker_id, actor)

    def adopt(self, worker_id: str, actor: Any) -> WorkerEntry:  # noqa: ANN401  an actor handle
        """Start to watch a worker."""
        entry = WorkerEntry(worker_id, actor)
        self.entries[worker_id] = entry
        self._start(self._watch_actor(entry))
        return entry

    def describe(self, description: WorkerDescription) -> None:
        """Note what a worker said of itself."""
        entry = self.entries.get(description.worker_id)
        if entry is None:
            return
        if entry.description is None:
            self._start(self._watch_presence(description))
        entry.description = description

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

    async def close(self, timeout_s: float) -> None:
        """End every worker, gently within ``timeout_s``, and give the placement group back."""
        for task in self._tasks:
            task.cancel()
        closing = [
            asyncio.ensure_future(entry.actor.close.remote()) for entry in self.entries.values()
        ]
        if closing:
            await asyncio.wait(closing, timeout=timeout_s)
        for worker_id in list(self.entries):
            self.drop(worker_id)
        if self._group is not None:
            remove_placement_group(self._group)

    def _require_group(self) -> PlacementGroup:
        assert self._group is not None, "reserve() or find_group() comes first"
        return self._group

    def _start(self, coroutine: Any) -> None:  # noqa: ANN401  a coroutine
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _watch_actor(self, entry: WorkerEntry) -> None:
        """Hear of a worker's death from Ray."""
        cause = "its actor exited"
        try:
            await entry.actor.wait_exit.remote()
        except RayActorError as error:
            if error.actor_init_failed:
                self._on_stillborn(entry.worker_id, str(error))
                return
            cause = str(error).splitlines()[0]
        except RayError as error:
            cause = f"{type(error).__name__}: {error}"
        self._on_gone(entry.worker_id, cause)

    async def _watch_presence(self, description: WorkerDescription) -> None:
        """Hear of a worker's death from its machine, which is faster when its node dies too."""
        cause = await wait_gone(description.host, description.presence_port)
        self._on_gone(description.worker_id, cause)


async def ask_description(
    actor: Any,  # noqa: ANN401  an actor handle
    timeout_s: float | None,
) -> WorkerDescription | None:
    """Ask a worker for its description; None if it is gone or doesn't answer in time."""
    with contextlib.suppress(RayError, TimeoutError):
        return await asyncio.wait_for(asyncio.ensure_future(actor.describe.remote()), timeout_s)
    return None
