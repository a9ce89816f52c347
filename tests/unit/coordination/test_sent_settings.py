"""A run's coordinator, its workers and its Keepers get the job's settings as they are."""

import asyncio
import math
from types import SimpleNamespace
from typing import Any

import pytest

from tests.distributed.jobs import make_job
from trainflow.clock import SYSTEM_CLOCK
from trainflow.config.job import JobConfig
from trainflow.coordination import driver, node_watch, worker_pool
from trainflow.coordination.forkserver.settings import ForkServerSettings
from trainflow.coordination.keeper_settings import KeeperSettings
from trainflow.coordination.worker_pool import WorkerPool

ARGS = {"best": math.inf, "bounds": [-math.inf, {"upper": math.inf}], "hidden": 8}


class Actor:
    """Stands for an actor's class, its options and its handle; keeps what it is made with."""

    def __init__(self) -> None:
        self.given: tuple[Any, ...] = ()
        self.chosen: dict[str, object] = {}

    def options(self, **chosen: object) -> "Actor":
        self.chosen = chosen
        return self

    def remote(self, *given: object) -> "Actor":
        self.given = self.given or given
        return self

    @property
    def run(self) -> "Actor":
        return self


@pytest.fixture
def job() -> JobConfig:
    return make_job().model_copy(update={"args": ARGS})


def test_the_coordinator(job: JobConfig, monkeypatch: pytest.MonkeyPatch):
    actor = Actor()
    monkeypatch.setattr(driver, "CoordinatorActor", actor)
    driver.start_run(job)
    assert JobConfig.model_validate_json(actor.given[1]) == job


def test_workers(job: JobConfig, monkeypatch: pytest.MonkeyPatch):
    actor = Actor()
    monkeypatch.setattr(worker_pool, "WorkerActor", actor)

    async def find_environment(node_id: str | None) -> dict[str, Any]:
        return {"py_executable": f"fork on {node_id}"}

    async def spawn() -> None:
        watch: Any = None
        launchers: Any = SimpleNamespace(find_environment=find_environment)
        pool = WorkerPool("job-1", job, (), watch, launchers)
        monkeypatch.setattr(pool.bundles, "numbers", lambda: {0})
        monkeypatch.setattr(pool.bundles, "place", ignore)
        monkeypatch.setattr(pool, "adopt", ignore)
        monkeypatch.setattr(pool, "_placed", {0: "a"})
        await pool.spawn(0, "a", rehearse=False)

    asyncio.run(spawn())
    assert JobConfig.model_validate_json(actor.given[0].job_json) == job
    assert actor.chosen["runtime_env"] == {"py_executable": "fork on a"}


def test_keepers(job: JobConfig, monkeypatch: pytest.MonkeyPatch):
    actor = Actor()
    monkeypatch.setattr(node_watch, "KeeperActor", actor)
    monkeypatch.setattr(node_watch, "NodeAffinitySchedulingStrategy", ignore)
    source = job.failures.model_copy(update={"preemption_source": "notices:Spot"})
    job = job.model_copy(update={"failures": source})
    nodes = node_watch.NodeWatch("job-1", job, SYSTEM_CLOCK, "/runs/job-1", ("/jobs",))
    nodes._make_keeper("a")
    assert actor.given[1] == KeeperSettings(
        lease_s=job.failures.lease_s,
        checkpoint_url=job.checkpoint.url,
        snapshot=job.snapshot,
        notice_source="notices:Spot",
        import_paths=("/jobs",),
        directory="/runs/job-1",
        forks=ForkServerSettings(("/jobs",), 1.0),
    )


def ignore(*_: object, **__: object) -> None:
    pass
