"""Jobs that are at work where the service doesn't see it: on another cluster than its own."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from tests.unit.service.conftest import OpenClient
from tests.unit.service.fakes import FakeClock, FakeCluster
from tests.unit.service.history.records import RecordedRun
from trainflow.config.checkpoint import CheckpointConfig
from trainflow.coordination.ending_file import write_ending
from trainflow.coordination.line_file import read_lines
from trainflow.coordination.names import run_directory
from trainflow.coordination.run_state import STOPPED
from trainflow.service.cluster import DriverState
from trainflow.service.heard_of import SILENT_S, find_silence_s, is_heard_of
from trainflow.service.history.history import History
from trainflow.service.history.ingest import Ingester

JOB_ID = "tiny-abcdef"
Publish = Callable[[float], None]


@pytest.fixture
def publish(history: History, clock: FakeClock, home: Path) -> Publish:
    """Have a job be begun, and publish its status so many seconds before now."""
    del home  # the run is under it
    run = RecordedRun(run_directory(JOB_ID))
    run.keep_job(checkpoint=CheckpointConfig(url="/checkpoints")).event("submitted").event("epoch")
    ingester = Ingester(history.database)

    def publish(before_s: float) -> None:
        run.publish()
        ingester.catch_up()
        clock.now_s = run.clock.now_s + before_s

    return publish


async def post(open_client: OpenClient, what: str) -> httpx.Response:
    async with open_client() as client:
        return await client.post(f"/v1/jobs/{JOB_ID}/{what}")


@pytest.mark.anyio
@pytest.mark.parametrize("what", ["stop", "resume"])
async def test_a_job_that_is_heard_of_elsewhere_is_left_alone(
    what: str, publish: Publish, open_client: OpenClient, cluster: FakeCluster
):
    publish(SILENT_S - 1)
    refused = await post(open_client, what)
    assert (refused.status_code, refused.json()["type"]) == (409, "urn:trainflow:problem:conflict")
    assert "heard of, but not on this cluster" in refused.json()["detail"]
    assert "`trainflow stop --address ...`" in refused.json()["detail"]
    assert "ask again in 1 s" in refused.json()["detail"]
    assert (cluster.drivers, cluster.stopped) == ({}, [])
    assert not (run_directory(JOB_ID) / "result.json").exists()
    kinds = [line["kind"] for line in read_lines(run_directory(JOB_ID) / "events.jsonl")]
    assert kinds == ["submitted", "epoch"]


@pytest.mark.anyio
async def test_a_job_of_which_nothing_was_heard_for_a_minute_is_stopped(
    publish: Publish, open_client: OpenClient
):
    publish(SILENT_S)
    assert (await post(open_client, "stop")).status_code == 202
    assert (run_directory(JOB_ID) / "result.json").exists()


@pytest.mark.anyio
async def test_a_job_of_which_nothing_was_heard_for_a_minute_is_resumed(
    publish: Publish, open_client: OpenClient, cluster: FakeCluster, root: Path
):
    publish(SILENT_S)
    async with open_client(roots=["/", str(root)]) as client:
        answer = await client.post(f"/v1/jobs/{JOB_ID}/resume")
    assert answer.status_code == 202, answer.text
    assert list(cluster.drivers) == [f"{JOB_ID}-a2"]


@pytest.mark.anyio
@pytest.mark.parametrize("what", ["stop", "resume"])
async def test_a_job_whose_driver_has_ended_here_is_nowhere_else(
    what: str, publish: Publish, open_client: OpenClient, cluster: FakeCluster
):
    publish(1.0)
    cluster.states[f"{JOB_ID}-a1"] = DriverState.ENDED
    async with open_client(roots=["/"]) as client:
        assert (await client.post(f"/v1/jobs/{JOB_ID}/{what}")).status_code == 202


Asked = tuple[str, str, int]
"""What is asked of a job that is closed: method, path, and the answer's status."""


async def ask(open_client: OpenClient, asked: Asked) -> httpx.Response:
    async with open_client(roots=["/"]) as client:
        return await client.request(asked[0], f"/v1/jobs/{JOB_ID}{asked[1]}")


def end(history: History) -> None:
    """Have a job's coordinator write how it has ended, before it closes anything."""
    write_ending(run_directory(JOB_ID), JOB_ID, STOPPED, 1000.0)
    Ingester(history.database).catch_up()
    assert history.jobs.get(JOB_ID).job.is_finished


CLOSED = pytest.mark.parametrize("asked", [("POST", "/resume", 202), ("DELETE", "", 204)])


@pytest.mark.anyio
@CLOSED
@pytest.mark.parametrize("before_s", [-3.0, SILENT_S - 1])
async def test_a_job_that_is_being_closed_elsewhere_is_left_alone(
    asked: Asked,
    before_s: float,
    publish: Publish,
    open_client: OpenClient,
    history: History,
):
    publish(before_s)  # and a clock that is behind
    end(history)
    refused = await ask(open_client, asked)
    assert (refused.status_code, refused.json()["type"]) == (409, "urn:trainflow:problem:conflict")
    assert "not all is closed yet on another cluster" in refused.json()["detail"]
    assert (run_directory(JOB_ID) / "result.json").exists()


@pytest.mark.anyio
@CLOSED
async def test_a_job_whose_coordinator_has_told_its_last_word_is_closed(
    asked: Asked, publish: Publish, open_client: OpenClient, history: History
):
    publish(1.0)
    end(history)
    told = {"state": "stopped", "as_of_s": 1000.0, "ending": STOPPED.describe()}
    document = {"status": told, "workers": []}
    (run_directory(JOB_ID) / "status.json").write_text(json.dumps(document))
    assert (await ask(open_client, asked)).status_code == asked[2]


@pytest.mark.anyio
@CLOSED
async def test_a_job_whose_cluster_died_while_it_closed_it_is_closed_after_a_minute(
    asked: Asked, publish: Publish, open_client: OpenClient, history: History
):
    publish(SILENT_S)
    end(history)
    assert (await ask(open_client, asked)).status_code == asked[2]


@pytest.mark.anyio
@CLOSED
@pytest.mark.parametrize("known_by", ["driver", "coordinator"])
async def test_a_job_that_is_being_closed_here_is_seen_to_here(
    asked: Asked,
    known_by: str,
    publish: Publish,
    open_client: OpenClient,
    history: History,
    cluster: FakeCluster,
):
    publish(1.0)
    end(history)
    if known_by == "driver":
        cluster.states[f"{JOB_ID}-a1"] = DriverState.ENDED
    else:
        cluster.coordinators.add(JOB_ID)
    assert (await ask(open_client, asked)).status_code == asked[2]


def test_what_was_heard_of_an_attempt_before_says_nothing_of_one_that_has_yet_to_begin(
    publish: Publish, history: History
):
    publish(1.0)
    job, attempts = history.jobs.get(JOB_ID).job, history.jobs.attempts(JOB_ID)
    assert find_silence_s(job, None, job.updated_at_s + 1) == 1.0
    assert is_heard_of(attempts, 1.0)
    assert not is_heard_of([*attempts, replace(attempts[0], started_at_s=None)], 1.0)
    assert not is_heard_of(attempts, SILENT_S)


@pytest.mark.parametrize(
    ("as_of_s", "silent_s"), [(None, 3600.0), (-1.0, 1.0), (2.0, 2.0), (-7200.0, 3600.0)]
)
@pytest.mark.parametrize("passed_s", [3600.0, -3600.0])
def test_what_was_heard_last_counts_and_a_clock_that_was_set_back_hides_nothing(
    publish: Publish, history: History, as_of_s: float | None, silent_s: float, passed_s: float
):
    publish(1.0)
    job = history.jobs.get(JOB_ID).job
    job = replace(job, published_at_s=job.updated_at_s)
    now_s = job.updated_at_s + passed_s
    status = None if as_of_s is None else {"as_of_s": now_s + as_of_s}
    assert find_silence_s(job, status, now_s) == pytest.approx(silent_s)


@pytest.mark.anyio
@pytest.mark.parametrize("what", ["stop", "resume"])
async def test_a_job_that_publishes_is_at_work_though_the_history_is_behind(
    what: str, publish: Publish, open_client: OpenClient, clock: FakeClock
):
    publish(SILENT_S + 30)
    document = {"status": {"as_of_s": clock.now_s - 0.5}, "workers": []}
    (run_directory(JOB_ID) / "status.json").write_text(json.dumps(document))
    refused = await post(open_client, what)
    assert (refused.status_code, refused.json()["type"]) == (409, "urn:trainflow:problem:conflict")
    assert not (run_directory(JOB_ID) / "result.json").exists()
