"""Erasing jobs over HTTP: what ran, what was submitted, and what an earlier request has left."""

import os
import shutil
from pathlib import Path

import pytest

from tests.unit.service.conftest import OpenClient
from tests.unit.service.fakes import FakeClock, FakeCluster
from tests.unit.service.test_jobs import Config, fail, submit
from trainflow.clock import SYSTEM_CLOCK
from trainflow.coordination.endings import record_ending
from trainflow.coordination.names import Attempt, run_directory
from trainflow.coordination.run_state import STOPPED
from trainflow.service.erasing import erase_job
from trainflow.service.history.history import History

pytestmark = pytest.mark.anyio


async def test_a_finished_job_is_erased_with_its_record_and_what_was_submitted(
    open_client: OpenClient, history: History, job_config: Config, home: Path
):
    async with open_client() as client:
        job_id = await fail(client, history, job_config)
        record_ending(Attempt(job_id), STOPPED)
        assert (await client.delete(f"/v1/jobs/{job_id}")).status_code == 204
        assert (await client.get(f"/v1/jobs/{job_id}")).status_code == 404
        assert (await client.delete(f"/v1/jobs/{job_id}")).status_code == 404
    assert not run_directory(job_id).exists()
    assert not (home / "submissions" / job_id).exists()


async def test_what_a_request_that_died_has_left_of_an_erased_job_is_erased_by_the_next(
    open_client: OpenClient,
    history: History,
    clock: FakeClock,
    job_config: Config,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    def die(*_given: object, **_how: object) -> None:
        raise KeyboardInterrupt

    clock.now_s = SYSTEM_CLOCK.unix_s()  # as of the files
    async with open_client() as client:
        job_id = await fail(client, history, job_config)
        record_ending(Attempt(job_id), STOPPED)
        with monkeypatch.context() as patch:
            patch.setattr(shutil, "rmtree", die)
            with pytest.raises(KeyboardInterrupt):
                erase_job(history, job_id)
        folders = (run_directory(job_id), home / "submissions" / job_id)
        assert all(folder.exists() for folder in folders)
        assert (await client.get(f"/v1/jobs/{job_id}")).status_code == 404
        assert (await client.get(f"/v1/jobs/{job_id}/logs")).status_code == 404
        assert (await client.delete(f"/v1/jobs/{job_id}")).status_code == 204
        assert not any(folder.exists() for folder in folders)
        assert (await client.delete(f"/v1/jobs/{job_id}")).status_code == 404


async def test_what_is_run_again_under_an_erased_id_is_not_erased(
    open_client: OpenClient, history: History, clock: FakeClock, job_config: Config
):
    clock.now_s = SYSTEM_CLOCK.unix_s() - 3600.0
    async with open_client() as client:
        job_id = await fail(client, history, job_config)
        history.jobs.erase(job_id)
        record_ending(Attempt(job_id), STOPPED)
        assert (await client.delete(f"/v1/jobs/{job_id}")).status_code == 404
    assert run_directory(job_id).exists()


async def test_nobody_is_left_who_could_begin_an_erased_job_anew(
    open_client: OpenClient, history: History, job_config: Config, cluster: FakeCluster, home: Path
):
    del home  # what ran is under it
    async with open_client() as client:
        job_id = await fail(client, history, job_config)
        cluster.coordinators.add(job_id)
        cluster.unclosed.add(job_id)
        assert (await client.delete(f"/v1/jobs/{job_id}")).status_code == 409
        assert (await client.get(f"/v1/jobs/{job_id}")).status_code == 200
        cluster.unclosed.clear()
        assert (await client.delete(f"/v1/jobs/{job_id}")).status_code == 204
    assert cluster.coordinators == set()


async def test_an_unfinished_job_is_not_erased(
    open_client: OpenClient, job_config: Config, home: Path
):
    async with open_client() as client:
        job_id = await submit(client, job_config)
        answer = await client.delete(f"/v1/jobs/{job_id}")
        assert answer.status_code == 409
        assert (await client.get(f"/v1/jobs/{job_id}")).status_code == 200
    assert (home / "submissions" / job_id).exists()


async def test_files_that_can_not_be_removed_are_told_of_and_removed_by_a_repeat(
    open_client: OpenClient,
    history: History,
    clock: FakeClock,
    job_config: Config,
    monkeypatch: pytest.MonkeyPatch,
):
    def refuse(name: str, **_how: object) -> None:
        raise PermissionError(1, "Operation not permitted", name)

    clock.now_s = SYSTEM_CLOCK.unix_s()
    async with open_client() as client:
        job_id = await fail(client, history, job_config)
        record_ending(Attempt(job_id), STOPPED)
        with monkeypatch.context() as patch:
            patch.setattr(os, "unlink", refuse)
            answer = await client.delete(f"/v1/jobs/{job_id}")
        assert answer.status_code == 503
        assert answer.json()["type"].endswith(":disk-unavailable")
        assert "Operation not permitted" in answer.json()["detail"]
        assert (await client.get(f"/v1/jobs/{job_id}")).status_code == 404
        assert (await client.delete(f"/v1/jobs/{job_id}")).status_code == 204
    assert not run_directory(job_id).exists()
