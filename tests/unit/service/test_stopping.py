"""Jobs that are stopped before they have a coordinator, or by one that is about to leave."""

import json

import pytest

from tests.unit.service.conftest import OpenClient
from tests.unit.service.fakes import FakeCluster
from tests.unit.service.history.records import RecordedRun
from tests.unit.service.test_jobs import Config, fail, submit
from trainflow.coordination.endings import record_ending
from trainflow.coordination.names import Attempt, run_directory
from trainflow.coordination.run_state import STOPPED
from trainflow.service.cluster import DriverState
from trainflow.service.history.history import History
from trainflow.service.history.ingest import Ingester

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("ends", [True, False])
async def test_a_job_without_a_coordinator_yet_is_stopped_at_its_driver(
    open_client: OpenClient, cluster: FakeCluster, job_config: Config, *, ends: bool
):
    cluster.drivers_end = ends
    async with open_client() as client:
        job_id = await submit(client, job_config)
        answer = await client.post(f"/v1/jobs/{job_id}/stop")
    job = answer.json()
    assert (answer.status_code, job["state"]) == (202, "stopped" if ends else "pending")
    assert job["stale_s"] == (0.0 if ends else None)
    assert cluster.stopped == [f"{job_id}-a1"]
    result = run_directory(job_id) / "result.json"
    assert result.exists() == ends  # else it has started a coordinator, or will tell itself
    assert not ends or json.loads(result.read_text())["state"] == "stopped"


async def test_a_coordinator_that_was_just_being_started_is_stopped_too(
    open_client: OpenClient,
    cluster: FakeCluster,
    job_config: Config,
    monkeypatch: pytest.MonkeyPatch,
):
    def stop_driver(submission_id: str) -> bool:
        cluster.states[submission_id] = DriverState.ENDED
        cluster.coordinators.add(submission_id.removesuffix("-a1"))
        return True

    monkeypatch.setattr(cluster, "stop_driver", stop_driver)
    async with open_client() as client:
        job_id = await submit(client, job_config)
        assert (await client.post(f"/v1/jobs/{job_id}/stop")).status_code == 202
    assert cluster.stopped == [job_id]
    assert not (run_directory(job_id) / "result.json").exists()


async def test_a_resumed_job_that_waits_for_the_attempt_before_can_be_stopped(
    open_client: OpenClient, cluster: FakeCluster, history: History, job_config: Config
):
    """Its record is written by the coordinator that is still closing."""
    cluster.drivers_end = True
    async with open_client() as client:
        job_id = await fail(client, history, job_config)
        assert (await client.post(f"/v1/jobs/{job_id}/resume")).status_code == 202
        cluster.coordinators.add(job_id)
        cluster.unclosed.add(job_id)
        assert (await client.post(f"/v1/jobs/{job_id}/stop")).status_code == 202
        job = (await client.get(f"/v1/jobs/{job_id}")).json()
    assert (job["state"], job["attempt"], job["exit_code"]) == ("stopped", 2, 7)
    result = json.loads((run_directory(job_id) / "result.json").read_text())
    assert result["state"] == "failed", "that of the attempt before stays"


async def test_a_driver_that_ray_does_not_know_to_stop_yet_is_asked_again(
    open_client: OpenClient,
    cluster: FakeCluster,
    job_config: Config,
    monkeypatch: pytest.MonkeyPatch,
):
    asked: list[str] = []

    def stop_driver(submission_id: str) -> bool:
        asked.append(submission_id)
        if len(asked) < 3:
            return False
        cluster.states[submission_id] = DriverState.STOPPED
        return True

    monkeypatch.setattr(cluster, "stop_driver", stop_driver)
    async with open_client() as client:
        job_id = await submit(client, job_config)
        assert (await client.post(f"/v1/jobs/{job_id}/stop")).status_code == 202
        assert len(asked) == 3
        monkeypatch.setattr(cluster, "stop_driver", lambda _: False)
        cluster.states.clear()
        other = await submit(client, job_config)
        assert (await client.post(f"/v1/jobs/{other}/stop")).status_code == 503


async def test_a_job_that_has_just_ended_is_not_gone_on_with(
    open_client: OpenClient, cluster: FakeCluster, history: History, job_config: Config
):
    """Its end is in its record, and not yet in the history."""
    async with open_client() as client:
        job_id = await submit(client, job_config)
        run = RecordedRun(run_directory(job_id)).keep_job()
        run.event("submitted").event("epoch")
        Ingester(history.database).catch_up()
        cluster.drivers.clear()
        record_ending(Attempt(job_id), STOPPED)
        answer = await client.post(f"/v1/jobs/{job_id}/resume")
        assert answer.status_code == 409, answer.text
        assert cluster.drivers == {}


async def test_the_coordinator_of_an_earlier_attempt_takes_no_stop(
    open_client: OpenClient, cluster: FakeCluster, history: History, job_config: Config
):
    """It lingers until a driver has read how that attempt ended; that of the next comes after."""
    cluster.drivers_end = True
    async with open_client() as client:
        job_id = await fail(client, history, job_config)
        assert (await client.post(f"/v1/jobs/{job_id}/resume")).status_code == 202
        cluster.coordinators.add(job_id)
        assert (await client.post(f"/v1/jobs/{job_id}/stop")).status_code == 202
    assert f"{job_id}-a2" in cluster.stopped
    assert json.loads((run_directory(job_id) / "result.json").read_text())["state"] == "stopped"
