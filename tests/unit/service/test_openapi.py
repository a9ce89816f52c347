"""The service's description of itself.

After a change that is meant, renew the snapshot and read what has changed:

    python -m tests.unit.service.test_openapi
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from pydantic import TypeAdapter

from tests.unit.service.fakes import FakeCluster
from trainflow.service import (
    documents,
    problems,
    profile_documents,
    record_documents,
    service_documents,
)
from trainflow.service.app import create_app
from trainflow.service.history.history import open_history
from trainflow.service.settings import ServiceSettings

SNAPSHOT = Path(__file__).parent / "openapi.json"
OPEN = {"/healthz", "/readyz"}


def describe(folder: Path) -> dict[str, Any]:
    with open_history(f"sqlite:///{folder}/history.db") as history:
        return create_app(ServiceSettings(), history, FakeCluster()).openapi()


@pytest.fixture
def document(tmp_path: Path) -> dict[str, Any]:
    return describe(tmp_path)


def test_it_is_as_it_was(document: dict[str, Any]):
    assert document == json.loads(SNAPSHOT.read_text()), "see this file's first lines"


def test_every_address_tells_its_problems_and_whether_it_needs_a_token(document: dict[str, Any]):
    for path, operations in document["paths"].items():
        for operation in operations.values():
            assert ("security" in operation) == (path not in OPEN), path
            assert operation["description"], path
            for status, response in operation["responses"].items():
                content = response.get("content", {})
                assert ("application/problem+json" in content) == (status >= "400"), (path, status)


def test_every_reference_leads_somewhere(document: dict[str, Any]):
    def references(value: object) -> set[str]:
        if isinstance(value, dict):
            own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set[str]()
            return own.union(*map(references, value.values()))
        if isinstance(value, list):
            return set[str]().union(*map(references, value))
        return set()

    known = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert references(document) <= known


def test_examples_are_valid(document: dict[str, Any]):
    rooms = (documents, problems, profile_documents, record_documents, service_documents)
    num_examples = 0
    for name, schema in document["components"]["schemas"].items():
        model = next(getattr(room, name) for room in rooms if hasattr(room, name))
        for example in schema.get("examples", []):
            TypeAdapter(model).validate_json(json.dumps(example))
            num_examples += 1
    assert num_examples >= 5


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        text = json.dumps(describe(Path(folder)), indent=1, sort_keys=True)
    SNAPSHOT.write_text(f"{text}\n")
