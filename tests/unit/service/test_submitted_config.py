"""What is no configuration, though it is YAML or JSON, is told as such."""

from typing import Any

import pytest

from tests.unit.config.odd_yaml import NO_VALUES
from tests.unit.service.conftest import OpenClient
from tests.unit.service.fakes import FakeCluster

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("config", "said"),
    [(text, f"{said}; expected valid YAML") for text, said in NO_VALUES.items()],
)
async def test_what_no_job_file_can_hold_is_refused(
    config: str, said: str, open_client: OpenClient, cluster: FakeCluster
):
    async with open_client() as client:
        answer = await client.post("/v1/jobs", json={"config": config})
    assert answer.status_code == 422, answer.text
    assert answer.json()["type"] == "urn:trainflow:problem:invalid-configuration"
    assert said in answer.json()["detail"]
    assert cluster.drivers == {}


async def test_a_job_that_is_nested_too_deeply_to_be_kept_is_refused(
    open_client: OpenClient, cluster: FakeCluster, job_config: dict[str, Any]
):
    deep: Any = []
    for _ in range(300):
        deep = [deep]
    async with open_client() as client:
        answer = await client.post("/v1/jobs", json={"config": job_config | {"args": {"a": deep}}})
    assert answer.status_code == 422, answer.text
    assert "nested too deeply" in answer.json()["detail"]
    assert cluster.drivers == {}
