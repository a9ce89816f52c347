"""A disk that takes nothing of what must be kept: that is told, and made good when repeated."""

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.unit.service.conftest import OpenClient
from tests.unit.service.fakes import FakeCluster
from trainflow.coordination.names import run_directory
from trainflow.service.history.history import History

pytestmark = pytest.mark.anyio

Config = dict[str, Any]


@contextmanager
def barred(folder: Path) -> Generator[None]:
    """Have nothing be written under a folder, whoever runs the tests: a file is in its place."""
    aside = folder.with_name("aside")
    if folder.exists():
        folder.rename(aside)
    folder.touch()
    yield
    folder.unlink()
    if aside.exists():
        aside.rename(folder)


def assert_told(answer: httpx.Response, home: Path) -> None:
    problem = answer.json()
    assert (answer.status_code, problem["type"]) == (503, "urn:trainflow:problem:disk-unavailable")
    assert int(answer.headers["retry-after"]) > 0
    assert "File exists" in problem["detail"] or "Not a directory" in problem["detail"]
    assert f"in {home}; make room there" in problem["detail"]


async def test_a_job_is_submitted_once_there_is_room(
    open_client: OpenClient, cluster: FakeCluster, job_config: Config, home: Path
):
    headers, body = {"Idempotency-Key": "k"}, {"config": job_config}
    async with open_client() as client:
        with barred(home / "submissions"):
            assert_told(await client.post("/v1/jobs", json=body, headers=headers), home)
        assert (await client.get("/v1/jobs")).json()["jobs"] == []
        assert cluster.drivers == {}
        again = await client.post("/v1/jobs", json=body, headers=headers)
        assert again.status_code == 200, again.text
        assert list(cluster.drivers) == [f"{again.json()['job_id']}-a1"]


async def test_a_job_that_nobody_sees_to_is_stopped_once_there_is_room(
    open_client: OpenClient, cluster: FakeCluster, job_config: Config, home: Path
):
    async with open_client() as client:
        job_id = (await client.post("/v1/jobs", json={"config": job_config})).json()["job_id"]
        cluster.drivers.clear()  # the head was restarted
        with barred(home / "runs"):
            assert_told(await client.post(f"/v1/jobs/{job_id}/stop"), home)
        assert (await client.post(f"/v1/jobs/{job_id}/stop")).status_code == 202
    assert (run_directory(job_id) / "result.json").exists()


async def test_a_job_is_resumed_once_there_is_room(
    open_client: OpenClient,
    cluster: FakeCluster,
    history: History,
    job_config: Config,
    home: Path,
):
    async with open_client() as client:
        job_id = (await client.post("/v1/jobs", json={"config": job_config})).json()["job_id"]
        history.submissions.fail(job_id, 1, "lost")
        with barred(home / "runs"):
            assert_told(await client.post(f"/v1/jobs/{job_id}/resume"), home)
        assert len(cluster.drivers) == 1
        assert (await client.post(f"/v1/jobs/{job_id}/resume")).json()["attempt"] == 2
