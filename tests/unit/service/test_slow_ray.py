"""Who waits for Ray, and who waits for the database, are in nobody else's way."""

import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import pytest
from anyio import to_thread

from tests.unit.service.conftest import Client, OpenClient
from tests.unit.service.fakes import FakeCluster
from trainflow.service.history.history import History

pytestmark = pytest.mark.anyio

WITHIN_S = 20.0
NUM_WAITING = 60  # more than anyio has threads for


class Gate:
    """Keeps whoever comes, until it is opened."""

    def __init__(self) -> None:
        self._num_waiting = 0
        self._come = threading.Condition()
        self._opened = threading.Event()

    def pass_through(self) -> None:
        with self._come:
            self._num_waiting += 1
            self._come.notify_all()
        self._opened.wait()

    def wait_for(self, count: int) -> bool:
        with self._come:
            return self._come.wait_for(lambda: self._num_waiting >= count, WITHIN_S)

    def open(self) -> None:
        self._opened.set()


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open()


@pytest.fixture
def cluster(gate: Gate) -> FakeCluster:
    class SlowCluster(FakeCluster):
        def stop_job(self, job_id: str) -> int:
            gate.pass_through()
            return super().stop_job(job_id)

    return SlowCluster()


async def submit(client: Client, config: dict[str, Any]) -> str:
    answer = await client.post("/v1/jobs", json={"config": config})
    assert answer.status_code == 201, answer.text
    return answer.json()["job_id"]


@asynccontextmanager
async def all_threads_kept(gate: Gate, ask: Callable[[], Awaitable[Any]]) -> AsyncIterator[None]:
    """Have as many ask at once as keep every thread of a pool, while the context lasts."""
    most = int(to_thread.current_default_thread_limiter().total_tokens)
    assert most < NUM_WAITING
    async with anyio.create_task_group() as group:
        for _ in range(NUM_WAITING):
            group.start_soon(ask)
        try:
            assert await to_thread.run_sync(gate.wait_for, most, limiter=anyio.CapacityLimiter(1))
            yield
        finally:
            gate.open()


async def test_who_reads_does_not_wait_for_those_who_stop_jobs(
    open_client: OpenClient, cluster: FakeCluster, gate: Gate, job_config: dict[str, Any]
):
    async with open_client() as client:
        job_id = await submit(client, job_config)
        cluster.coordinators.add(job_id)
        job = f"/v1/jobs/{job_id}"
        async with all_threads_kept(gate, partial(client.post, f"{job}/stop")):
            for path in ("/v1/jobs", job, f"{job}/events", "/v1/token"):
                assert (await client.get(path)).status_code == 200
        assert cluster.stopped == [job_id] * NUM_WAITING


async def test_who_submits_does_not_wait_for_those_who_read(
    open_client: OpenClient,
    history: History,
    gate: Gate,
    job_config: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
):
    list_jobs = history.jobs.list

    def list_slowly(*given: Any, **more: Any) -> Any:
        gate.pass_through()
        return list_jobs(*given, **more)

    monkeypatch.setattr(history.jobs, "list", list_slowly)
    async with open_client() as client, all_threads_kept(gate, partial(client.get, "/v1/jobs")):
        await submit(client, job_config)
        assert (await client.get("/v1/cluster")).status_code == 200
