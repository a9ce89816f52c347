"""A run's coordinator and its workers get the job's args as they are."""

import asyncio
import math
from typing import Any

import pytest

from tests.distributed.jobs import make_job
from trainflow.config.job import JobConfig
from trainflow.coordination import driver, worker_pool
from trainflow.coordination.worker_pool import WorkerPool

ARGS = {"best": math.inf, "bounds": [-math.inf, {"upper": math.inf}], "hidden": 8}


class Actor:
    """Stands for an actor's class, its options and its handle; keeps what it is made with."""

    def __init__(self) -> None:
        self.given: tuple[Any, ...] = ()

    def options(self, **_: object) -> "Actor":
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

    async def spawn() -> None:
        pool = WorkerPool("job-1", job, (), on_gone=ignore, on_stillborn=ignore)
        monkeypatch.setattr(pool.bundles, "place", ignore)
        monkeypatch.setattr(pool, "adopt", ignore)
        pool.spawn(0, "a", rehearse=False)

    asyncio.run(spawn())
    assert JobConfig.model_validate_json(actor.given[0].job_json) == job


def ignore(*_: object) -> None:
    pass
