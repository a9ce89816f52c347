"""A service that really listens, for clients to ask."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.unit.service.fakes import FakeCluster
from tests.unit.service.runs import RecordedRun, listening
from trainflow.clock import SYSTEM_CLOCK
from trainflow.service.app import create_app
from trainflow.service.history.history import History, open_history
from trainflow.service.history.ingest import Ingester
from trainflow.service.history.records import Scope
from trainflow.service.settings import ServiceSettings

JOB: dict[str, Any] = {
    "name": "tiny",
    "entrypoint": "tiny_job:train",
    "training": {"max_steps": 10, "global_batch_size": 8, "microbatch_size": 2},
    "data": {"dataset": "tiny_job:make_points"},
    "workers": {"minimum": 1, "target": 2},
    "checkpoint": {"url": "/checkpoints"},
}


@dataclass
class Service:
    """Where it listens, and what is behind it."""

    url: str
    token: str
    history: History
    cluster: FakeCluster
    ingester: Ingester

    def record(self, job_id: str) -> RecordedRun:
        return RecordedRun(job_id)


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    monkeypatch.setenv("TRAINFLOW_HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    limits = {"stream_bytes": 64 * 1024, "heartbeat_s": 0.02}  # so that streams end often
    settings = ServiceSettings.model_validate({"history": {"poll_every_s": 0.01}, "limits": limits})
    with open_history() as history:
        token = history.tokens.create("test", frozenset(Scope)).secret
        cluster = FakeCluster()
        with listening(create_app(settings, history, cluster, SYSTEM_CLOCK)) as url:
            yield Service(url, token, history, cluster, Ingester(history.database))


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
