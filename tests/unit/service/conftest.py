"""What tests of the service share: a home, a history, a cluster that isn't there, and the app."""

import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.testbed import postgres_server
from tests.testbed.postgres_server import PostgresServer
from tests.unit.service.fakes import FakeClock, FakeCluster
from trainflow.service.app import create_app
from trainflow.service.history.history import History, open_history
from trainflow.service.settings import ServiceSettings

Client = httpx.AsyncClient
OpenClient = Callable[..., AbstractAsyncContextManager[Client]]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty TRAINFLOW_HOME."""
    monkeypatch.setenv("TRAINFLOW_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("TRAINFLOW_DATABASE_URL", raising=False)
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def history(home: Path, clock: FakeClock) -> Iterator[History]:
    with open_history(clock=clock) as history:
        yield history


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder in which jobs may work."""
    (tmp_path / "root" / "project").mkdir(parents=True)
    return tmp_path / "root"


@pytest.fixture
def open_client(history: History, cluster: FakeCluster, clock: FakeClock, root: Path) -> OpenClient:
    """Open a client of an app with some settings; without tokens, unless they are asked for."""

    @asynccontextmanager
    async def open_client(**changes: Any) -> AsyncIterator[Client]:
        given = {"authentication": "off", "roots": [str(root)]} | changes
        app = create_app(ServiceSettings.model_validate(given), history, cluster, clock)
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            yield client

    return open_client


@pytest.fixture
def job_config() -> dict[str, Any]:
    """A valid job."""
    return {
        "name": "tiny",
        "entrypoint": "tiny_job:train",
        "training": {"max_steps": 10, "global_batch_size": 8, "microbatch_size": 2},
        "data": {"dataset": "tiny_job:make_points"},
        "workers": {"minimum": 1, "target": 2},
        "checkpoint": {"url": "/checkpoints"},
    }


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A real PostgreSQL server; a test that kills it starts it again."""
    programs = postgres_server.find_programs()
    if programs is None:
        pytest.skip(f"needs PostgreSQL (apt-get install {postgres_server.PACKAGES})")
    with tempfile.TemporaryDirectory(prefix="trainflow-pg-") as folder:
        server = PostgresServer(Path(folder), programs)
        try:
            server.make()
            yield server
        finally:
            server.stop()
