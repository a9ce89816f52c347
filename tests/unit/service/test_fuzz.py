"""Whatever is sent that the description allows, or forbids, nothing fails inside."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import Case, GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from starlette.types import Receive, Scope, Send

from tests.testbed.postgres_server import PostgresServer
from tests.unit.service.fakes import FakeCluster
from tests.unit.service.history.conftest import empty
from tests.unit.service.runs import RecordedRun
from tests.unit.service.test_openapi import SNAPSHOT
from trainflow.service.app import create_app
from trainflow.service.history.history import open_history
from trainflow.service.history.ingest import Ingester
from trainflow.service.settings import ServiceSettings

HEADERS = {"Host": "localhost"}
CHECKS = [
    schemathesis.checks.not_a_server_error,
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
]
OPERATIONS = [
    pytest.param(path, method, mode, id=f"{mode.value} {method} {path}")
    for path, operations in json.loads(SNAPSHOT.read_text())["paths"].items()
    for method, operation in operations.items()
    for mode in GenerationMode
    if mode.is_positive or "security" in operation  # of others nothing can be wrong
]


@pytest.fixture(scope="session")
def postgres_url(postgres: PostgresServer) -> str:
    return postgres.make_database("fuzz")


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.storage)])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A database; of PostgreSQL the same one is emptied for each test."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'history.db'}"
    return request.getfixturevalue("postgres_url")


@pytest.fixture
def api(database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    monkeypatch.setenv("TRAINFLOW_HOME", str(tmp_path))
    run = RecordedRun("pretrain-lm-k3v7qz")  # the description's own example
    run.train(range(1, 4))
    run.end()
    limits = {"requests_per_s": 1e6, "burst": 10**6}
    given = ServiceSettings.model_validate({"authentication": "off", "limits": limits})
    with open_history(database_url) as history:
        empty(history)
        Ingester(history.database).catch_up()
        app = create_app(given, history, FakeCluster())

        async def asked_from_here(scope: Scope, receive: Receive, send: Send) -> None:
            await app({**scope, "client": ("127.0.0.1", 4000)}, receive, send)

        yield schemathesis.openapi.from_asgi("/openapi.json", asked_from_here, headers=HEADERS)


@pytest.mark.parametrize(("path", "method", "mode"), OPERATIONS)
def test_no_request_fails_inside(path: str, method: str, mode: GenerationMode, api: Any):
    cases = api[path][method].as_strategy(generation_mode=mode)

    @given(cases)
    @settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
    def ask(case: Case) -> None:
        case.validate_response(case.call(headers=HEADERS), checks=CHECKS)

    ask()
