"""Whatever is sent that the description allows, or forbids, nothing fails inside."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import Case
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

from tests.unit.service.fakes import FakeCluster
from tests.unit.service.runs import RecordedRun
from trainflow.service.app import create_app
from trainflow.service.history.history import open_history
from trainflow.service.history.ingest import Ingester
from trainflow.service.settings import ServiceSettings

HEADERS = {"Host": "localhost"}


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[object]:
    monkeypatch.setenv("TRAINFLOW_HOME", str(tmp_path))
    run = RecordedRun("pretrain-lm-k3v7qz")  # the description's own example
    run.train(range(1, 4))
    run.end()
    limits = {"requests_per_s": 1e6, "burst": 10**6}
    given = ServiceSettings.model_validate({"authentication": "off", "limits": limits})
    with open_history() as history:
        Ingester(history.database).catch_up()
        app = create_app(given, history, FakeCluster())
        yield schemathesis.openapi.from_asgi("/openapi.json", app)


schema = schemathesis.pytest.from_fixture("api")


@schema.parametrize()
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
def test_no_request_fails_inside(case: Case):
    response = case.call(headers=HEADERS)
    case.validate_response(
        response,
        checks=[
            schemathesis.checks.not_a_server_error,
            content_type_conformance,
            negative_data_rejection,
            response_schema_conformance,
            status_code_conformance,
        ],
    )
