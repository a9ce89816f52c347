"""A request that is repeated when what it names is no longer allowed."""

from pathlib import Path
from typing import Any

import pytest

from tests.unit.service.conftest import Client, OpenClient
from tests.unit.service.fakes import FakeCluster

pytestmark = pytest.mark.anyio


async def test_a_job_is_found_by_its_key_though_its_folder_is_no_longer_allowed(
    open_client: OpenClient, cluster: FakeCluster, job_config: dict[str, Any], root: Path
):
    body = {"config": job_config, "working_directory": str(root / "project")}

    async def send(client: Client, key: str, **changes: Any) -> Any:
        headers = {"Idempotency-Key": key}
        return await client.post("/v1/jobs", json=body | changes, headers=headers)

    async with open_client() as client:
        made = await send(client, "k1")
        assert made.status_code == 201
    async with open_client(roots=["/elsewhere"]) as client:
        again = await send(client, "k1")
        assert (again.status_code, again.json()) == (200, made.json())
        for key, name in (("k2", "tiny"), ("k1", "other")):
            refused = await send(client, key, config=job_config | {"name": name})
            assert refused.status_code == 403
            assert refused.json()["type"] == "urn:trainflow:problem:directory-refused"
    (root / "project").rmdir()
    async with open_client() as client:
        again = await send(client, "k1")
        assert (again.status_code, again.json()) == (200, made.json())
    assert len(cluster.drivers) == 1
