"""Submitting, listing, stopping, resuming and erasing jobs over HTTP."""

import json
import stat
from pathlib import Path
from typing import Any

import anyio
import pytest

from tests.unit.service.conftest import Client, OpenClient
from tests.unit.service.fakes import FakeClock, FakeCluster
from trainflow.cli.submitted_run import require_attempt
from trainflow.coordination.line_file import read_lines
from trainflow.coordination.names import Attempt, run_directory
from trainflow.errors import (
    ConflictError,
    CoordinationError,
    JobNotFoundError,
    UnreachableError,
)
from trainflow.service.cluster import DriverState
from trainflow.service.history.history import History
from trainflow.service.history.ingest import Ingester
from trainflow.service.history.records import Job
from trainflow.service.job_desk import JobDesk

pytestmark = pytest.mark.anyio

Config = dict[str, Any]


async def submit(client: Client, config: Config, **more: Any) -> str:
    answer = await client.post("/v1/jobs", json={"config": config, **more})
    assert answer.status_code == 201, answer.text
    return answer.json()["job_id"]


async def test_a_job_is_submitted_and_there_at_once(
    open_client: OpenClient, cluster: FakeCluster, job_config: Config, root: Path, home: Path
):
    async with open_client() as client:
        project = root / "project"
        answer = await client.post(
            "/v1/jobs", json={"config": job_config, "working_directory": str(project)}
        )
        assert answer.status_code == 201
        job = answer.json()
        assert answer.headers["location"] == f"/v1/jobs/{job['job_id']}"
        assert (job["state"], job["attempt"], job["name"]) == ("pending", 1, "tiny")
        assert (await client.get(answer.headers["location"])).json() == job
        (listed,) = (await client.get("/v1/jobs")).json()["jobs"]
        assert listed["job_id"] == job["job_id"]
    (driver,) = cluster.drivers.values()
    assert driver.submission_id == f"{job['job_id']}-a1"
    assert driver.command.startswith("exec ")
    assert driver.command.endswith(f"job.json --job-id {job['job_id']} --attempt 1")
    assert driver.variables == {"TRAINFLOW_HOME": str(home)}
    assert driver.working_directory == str(project)


async def test_a_job_without_a_working_directory_runs_in_a_folder_of_its_own(
    open_client: OpenClient, cluster: FakeCluster, job_config: Config, home: Path
):
    async with open_client() as client:
        job_id = await submit(client, job_config)
    (driver,) = cluster.drivers.values()
    assert driver.working_directory is None
    assert driver.command.startswith(f"cd {home / 'submissions' / job_id} && exec ")


async def test_what_a_driver_reads_is_what_was_sent_and_for_its_owner_alone(
    open_client: OpenClient, job_config: Config, home: Path
):
    config = job_config | {"runtime_env": {"env_vars": {"KEY": "s3cret"}}, "args": {"x": 1e400}}
    async with open_client() as client:
        answer = await client.post(
            "/v1/jobs",
            content=json.dumps({"config": config}),
            headers={"Content-Type": "application/json"},
        )
        assert answer.status_code == 201, answer.text
    assert "s3cret" not in answer.text
    folder = home / "submissions" / answer.json()["job_id"]
    assert json.loads((folder / "job.json").read_text()) == config
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "job.json").stat().st_mode) == 0o600


async def test_yaml_is_kept_as_it_was_written(
    open_client: OpenClient, job_config: Config, home: Path
):
    text = f"# my job\n{json.dumps(job_config)}\n"
    async with open_client() as client:
        answer = await client.post("/v1/jobs", json={"config": text})
        assert answer.status_code == 201, answer.text
    assert (home / "submissions" / answer.json()["job_id"] / "job.yaml").read_text() == text


async def test_a_key_makes_one_job_however_often_it_is_sent(
    open_client: OpenClient, cluster: FakeCluster, job_config: Config
):
    async with open_client() as client:

        async def send(**changes: Any) -> Any:
            body = {"config": job_config | changes}
            return await client.post("/v1/jobs", json=body, headers={"Idempotency-Key": "k1"})

        first, again = await send(), await send()
        assert (first.status_code, again.status_code) == (201, 200)
        assert first.json()["job_id"] == again.json()["job_id"]
        assert len(cluster.drivers) == 1
        other = await send(name="other")
        assert other.status_code == 409
        assert other.json()["type"] == "urn:trainflow:problem:idempotency-key-reused"
        assert len(cluster.drivers) == 1


async def test_a_key_sent_at_once_by_many_makes_one_job(
    open_client: OpenClient, cluster: FakeCluster, job_config: Config
):
    answers: list[Any] = []
    async with open_client() as client, anyio.create_task_group() as group:

        async def send() -> None:
            headers = {"Idempotency-Key": "k1"}
            body = {"config": job_config}
            answers.append(await client.post("/v1/jobs", json=body, headers=headers))

        for _ in range(8):
            group.start_soon(send)
    assert len({answer.json()["job_id"] for answer in answers}) == 1
    assert sorted(answer.status_code for answer in answers) == [200] * 7 + [201]
    assert len(cluster.drivers) == 1


async def test_a_request_that_was_not_answered_is_made_good_when_repeated(
    open_client: OpenClient, cluster: FakeCluster, job_config: Config
):
    async with open_client() as client:
        headers = {"Idempotency-Key": "k1"}
        cluster.error = UnreachableError("the dashboard does not answer")
        first = await client.post("/v1/jobs", json={"config": job_config}, headers=headers)
        assert first.status_code == 503
        assert first.json()["type"] == "urn:trainflow:problem:cluster-unreachable"
        cluster.error = None
        again = await client.post("/v1/jobs", json={"config": job_config}, headers=headers)
        assert again.status_code == 200
        assert list(cluster.drivers) == [f"{again.json()['job_id']}-a1"]


async def test_a_key_of_a_job_that_has_ended_begins_it_no_second_time(
    open_client: OpenClient, cluster: FakeCluster, history: History, job_config: Config
):
    async with open_client() as client:
        headers = {"Idempotency-Key": "k1"}
        first = await client.post("/v1/jobs", json={"config": job_config}, headers=headers)
        history.submissions.fail(first.json()["job_id"], 1, "lost")
        again = await client.post("/v1/jobs", json={"config": job_config}, headers=headers)
    assert (again.status_code, again.json()["state"], again.json()["attempt"]) == (200, "failed", 1)
    assert len(cluster.drivers) == 1


async def test_a_job_that_the_cluster_refuses_has_failed_and_its_key_is_free(
    open_client: OpenClient, cluster: FakeCluster, job_config: Config
):
    async with open_client() as client:
        headers = {"Idempotency-Key": "k1"}
        cluster.error = CoordinationError("runtime_env: got nonsense")
        refused = await client.post("/v1/jobs", json={"config": job_config}, headers=headers)
        assert refused.status_code == 502
        (job,) = (await client.get("/v1/jobs?state=failed")).json()["jobs"]
        assert "nonsense" in job["reason"]
        cluster.error = None
        again = await client.post("/v1/jobs", json={"config": job_config}, headers=headers)
        assert again.status_code == 201
        assert again.json()["job_id"] != job["job_id"]


async def test_a_wrong_configuration_is_refused_with_every_reason(
    open_client: OpenClient, cluster: FakeCluster, job_config: Config
):
    job_config["name"] = "Not A Name"
    job_config["training"]["max_step"] = 3
    async with open_client() as client:
        answer = await client.post("/v1/jobs", json={"config": job_config})
    assert answer.status_code == 422
    problem = answer.json()
    assert answer.headers["content-type"] == "application/problem+json"
    assert problem["type"] == "urn:trainflow:problem:invalid-configuration"
    assert {item["setting"] for item in problem["errors"]} == {"name", "training.max_step"}
    assert "max_steps" in problem["errors"][1]["change"] + problem["errors"][0]["change"]
    assert cluster.drivers == {}


DEEP = "[" * 100_000
BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n"
    for a, b in zip("abcdefghi", "bcdefghij", strict=True)
)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("a: [", "expected valid YAML"),
        ("- 1", "a section of keys and values"),
        ("a: 1\na: 2", "stands a second time"),
        (DEEP, "nested too deeply"),
        (BOMB, "more than 100000 values"),
        ("args:\n" + "".join(f"  k{n}: [1]\n" for n in range(5000)), "more than 10000 values"),
        ("#" * 300_000, "300000 characters"),
        ("a: !!python/object/apply:os.system [x]", "expected valid YAML"),
        ({"name": "a\x00b"}, "can't be kept"),
        ({"args": {"\x00": 1}}, "can't be kept"),
        ({}, "entrypoint: got nothing"),
        ("", "got None"),
    ],
)
async def test_what_is_no_configuration_is_refused(
    config: Any, said: str, open_client: OpenClient, cluster: FakeCluster
):
    async with open_client() as client:
        answer = await client.post("/v1/jobs", json={"config": config})
    assert answer.status_code == 422
    assert said in answer.json()["detail"]
    assert cluster.drivers == {}


@pytest.mark.parametrize(
    ("body", "status", "problem"),
    [
        (b"{bad", 400, "malformed-request"),
        (b"\xff\xfe", 400, "malformed-request"),
        (b"[" * 200_000, 400, "malformed-request"),
        (b"9" * 10_000, 400, "malformed-request"),
        (b"", 422, "invalid-request"),
        (b"null", 422, "invalid-request"),
        (b"[1]", 422, "invalid-request"),
        (b'{"config": 5}', 422, "invalid-request"),
        (b'{"config": {}, "surprise": 1}', 422, "invalid-request"),
        (b'{"config": {}, "working_directory": 5}', 422, "invalid-request"),
        (b'{"config": {"name": "\\ud800"}}', 422, "invalid-configuration"),
    ],
)
async def test_a_body_of_another_form_is_refused(
    body: bytes, status: int, problem: str, open_client: OpenClient
):
    async with open_client() as client:
        headers = {"Content-Type": "application/json"}
        answer = await client.post("/v1/jobs", content=body, headers=headers)
    assert answer.status_code == status, answer.text
    assert answer.json()["type"] == f"urn:trainflow:problem:{problem}"


async def test_what_may_be_of_several_types_is_told_once_by_its_own_key(open_client: OpenClient):
    async with open_client() as client:
        answer = await client.post("/v1/jobs", json={"config": 5})
    (item,) = answer.json()["errors"]
    assert (item["setting"], item["got"]) == ("body.config", "5")
    assert item["expected"] == "a section of keys and values or text"
    assert item["change"].startswith("change body.config; ")


@pytest.mark.parametrize("body", [b"[" * 200_000, b"9" * 10_000])
async def test_a_body_that_is_more_than_can_be_read_is_told_as_such(
    body: bytes, open_client: OpenClient
):
    async with open_client() as client:
        headers = {"Content-Type": "application/json"}
        answer = await client.post("/v1/jobs", content=body, headers=headers)
    assert "not nested hundreds deep, with no number of thousands of digits" in answer.text


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", ""])
async def test_a_body_that_a_web_page_may_send_unasked_is_refused(
    content_type: str, open_client: OpenClient, job_config: Config
):
    async with open_client() as client:
        body = json.dumps({"config": job_config})
        headers = {"Content-Type": content_type}
        answer = await client.post("/v1/jobs", content=body, headers=headers)
    assert answer.status_code == 415


@pytest.mark.parametrize(
    "directory",
    ["/", "/etc", "..", "{root}/../..", "{root}/absent", "{root}/link", "\x00", "a" * 4097],
)
async def test_a_working_directory_outside_of_the_roots_is_refused(
    directory: str, open_client: OpenClient, cluster: FakeCluster, job_config: Config, root: Path
):
    (root / "link").symlink_to("/etc")
    body = {"config": job_config, "working_directory": directory.format(root=root)}
    async with open_client() as client:
        answer = await client.post("/v1/jobs", json=body)
    assert answer.status_code in {403, 422}, answer.text
    assert cluster.drivers == {}


async def test_a_link_that_stays_inside_is_followed(
    open_client: OpenClient, cluster: FakeCluster, job_config: Config, root: Path
):
    (root / "link").symlink_to(root / "project")
    async with open_client() as client:
        await submit(client, job_config, working_directory=str(root / "link"))
    (driver,) = cluster.drivers.values()
    assert driver.working_directory == str(root / "project")


async def test_pages_hold_every_job_once_though_more_come(
    open_client: OpenClient, job_config: Config, clock: FakeClock
):
    async with open_client() as client:
        made = [await submit(client, job_config) for _ in range(5)]
        seen: list[str] = []
        cursor = None
        while True:
            query = {"limit": 2} | ({} if cursor is None else {"cursor": cursor})
            page = (await client.get("/v1/jobs", params=query)).json()
            seen += [job["job_id"] for job in page["jobs"]]
            clock.now_s += 1
            await submit(client, job_config)
            cursor = page["next_cursor"]
            if cursor is None:
                break
    assert sorted(seen) == sorted(made)


async def test_jobs_are_filtered(open_client: OpenClient, job_config: Config):
    async with open_client() as client:
        mine = await submit(client, job_config | {"labels": {"team": "a"}})
        other = await submit(client, job_config | {"name": "other"})

        async def find(query: str) -> set[str]:
            answer = await client.get(f"/v1/jobs?{query}")
            return {job["job_id"] for job in answer.json()["jobs"]}

        assert await find("label=team%3Da") == {mine}
        assert await find("name=other") == {other}
        assert await find("state=pending&state=failed") == {mine, other}
        assert await find("state=failed") == set()


@pytest.mark.parametrize(
    "query",
    ["limit=0", "limit=1001", "limit=x", "cursor=%00", "cursor=zzz", "state=odd", "label=x"],
)
async def test_a_wrong_filter_is_refused(query: str, open_client: OpenClient):
    async with open_client() as client:
        answer = await client.get(f"/v1/jobs?{query}")
    assert answer.status_code == 422
    assert answer.json()["type"] == "urn:trainflow:problem:invalid-request"


@pytest.mark.parametrize("route", ["", "/attempts", "/events", "/metrics", "/workers", "/logs"])
@pytest.mark.parametrize(
    ("job_id", "status"),
    [
        ("nobody-abcdef", 404),
        ("A", 422),
        ("..", 404),
        ("a%2Fb", 404),
        ("a%00", 422),
        ("%F0%9F", 422),
    ],
)
async def test_an_unknown_job_is_told(
    route: str, job_id: str, status: int, open_client: OpenClient
):
    async with open_client() as client:
        answer = await client.get(f"/v1/jobs/{job_id}{route}")
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"


async def test_a_job_is_stopped_by_its_coordinator_and_again_changes_nothing(
    open_client: OpenClient, cluster: FakeCluster, job_config: Config
):
    async with open_client() as client:
        job_id = await submit(client, job_config)
        cluster.coordinators.add(job_id)
        for _ in range(2):
            assert (await client.post(f"/v1/jobs/{job_id}/stop")).status_code == 202
    assert cluster.stopped == [job_id, job_id]


async def test_a_job_that_nobody_sees_to_has_ended_once_it_is_stopped(
    open_client: OpenClient, cluster: FakeCluster, job_config: Config
):
    async with open_client() as client:
        job_id = await submit(client, job_config)
        cluster.drivers.clear()  # the head was restarted
        assert (await client.post(f"/v1/jobs/{job_id}/stop")).status_code == 202
    assert json.loads((run_directory(job_id) / "result.json").read_text())["state"] == "stopped"


async def test_a_stop_that_does_not_arrive_is_told(
    open_client: OpenClient, cluster: FakeCluster, job_config: Config
):
    async with open_client() as client:
        job_id = await submit(client, job_config)
        cluster.error = UnreachableError("the coordinator restarts")
        answer = await client.post(f"/v1/jobs/{job_id}/stop")
    assert answer.status_code == 503
    assert int(answer.headers["retry-after"]) > 0


async def fail(client: Client, history: History, config: Config) -> str:
    job_id = await submit(client, config)
    history.submissions.fail(job_id, 1, "lost")
    return job_id


async def test_what_has_ended_is_not_stopped(
    open_client: OpenClient, history: History, job_config: Config
):
    async with open_client() as client:
        job_id = await fail(client, history, job_config)
        answer = await client.post(f"/v1/jobs/{job_id}/stop")
    assert answer.status_code == 409
    assert "has failed" in answer.json()["detail"]


async def test_a_failed_job_is_gone_on_with_as_its_second_attempt(
    open_client: OpenClient, cluster: FakeCluster, history: History, job_config: Config
):
    async with open_client() as client:
        job_id = await fail(client, history, job_config)
        answer = await client.post(f"/v1/jobs/{job_id}/resume")
        assert answer.status_code == 202, answer.text
        assert (answer.json()["state"], answer.json()["attempt"]) == ("pending", 2)
        assert cluster.drivers[f"{job_id}-a2"].command.endswith("--attempt 2 --resume auto")
        again = await client.post(f"/v1/jobs/{job_id}/resume")
        assert again.status_code == 409
        attempts = (await client.get(f"/v1/jobs/{job_id}/attempts")).json()
    assert [each["state"] for each in attempts] == ["failed", None]
    assert len(cluster.drivers) == 2


async def test_the_next_driver_of_a_job_that_never_began_finds_a_record_to_go_on_with(
    open_client: OpenClient, history: History, job_config: Config
):
    async with open_client() as client:
        job_id = await fail(client, history, job_config)
        with pytest.raises(JobNotFoundError):
            require_attempt(Attempt(job_id, 2))
        assert (await client.post(f"/v1/jobs/{job_id}/resume")).status_code == 202
        directory = require_attempt(Attempt(job_id, 2))
        Ingester(history.database).catch_up()
        attempts = (await client.get(f"/v1/jobs/{job_id}/attempts")).json()
    (event,) = read_lines(directory / "events.jsonl")
    assert (event["kind"], event["text"]) == ("failed", "lost")
    assert [each["number"] for each in attempts] == [1, 2]


async def test_a_running_job_is_not_resumed(
    open_client: OpenClient, cluster: FakeCluster, job_config: Config
):
    async with open_client() as client:
        job_id = await submit(client, job_config)
        cluster.states[f"{job_id}-a1"] = DriverState.ENDED
        cluster.coordinators.add(job_id)
        answer = await client.post(f"/v1/jobs/{job_id}/resume")
    assert answer.status_code == 409
    assert len(cluster.drivers) == 1


async def test_a_job_whose_cluster_is_gone_is_gone_on_with(
    open_client: OpenClient, cluster: FakeCluster, job_config: Config
):
    async with open_client() as client:
        job_id = await submit(client, job_config)
        cluster.drivers.clear()  # the head was restarted
        answer = await client.post(f"/v1/jobs/{job_id}/resume")
    assert answer.status_code == 202, answer.text
    assert list(cluster.drivers) == [f"{job_id}-a2"]


async def test_a_dead_job_that_many_resume_at_once_has_one_attempt_more(
    open_client: OpenClient, cluster: FakeCluster, job_config: Config
):
    statuses: list[int] = []
    async with open_client() as client:
        job_id = await submit(client, job_config)
        cluster.drivers.clear()  # the head was restarted

        async def resume() -> None:
            statuses.append((await client.post(f"/v1/jobs/{job_id}/resume")).status_code)

        async with anyio.create_task_group() as group:
            for _ in range(6):
                group.start_soon(resume)
    assert sorted(statuses) == [202] + [409] * 5
    assert list(cluster.drivers) == [f"{job_id}-a2"]


async def test_a_resumption_is_alone_however_long_it_takes(
    open_client: OpenClient,
    cluster: FakeCluster,
    history: History,
    clock: FakeClock,
    job_config: Config,
):
    desk = JobDesk(history, cluster, (), clock)
    async with open_client() as client:
        job_id = await submit(client, job_config)
    cluster.drivers.clear()  # the head was restarted

    def resume_meanwhile(_: Job) -> None:
        clock.sleep(1000)
        with pytest.raises(ConflictError, match="another request"):
            desk.resume(job_id)

    desk.resume(job_id, before=resume_meanwhile)
    assert list(cluster.drivers) == [f"{job_id}-a2"]


async def test_a_resumption_that_failed_is_in_nobodys_way(
    open_client: OpenClient, cluster: FakeCluster, history: History, job_config: Config
):
    async with open_client() as client:
        job_id = await fail(client, history, job_config)
        cluster.error = CoordinationError("no")
        assert (await client.post(f"/v1/jobs/{job_id}/resume")).status_code == 502
        cluster.error = None
        assert (await client.post(f"/v1/jobs/{job_id}/resume")).json()["attempt"] == 3


async def test_a_job_of_which_nothing_was_kept_is_not_resumed(
    open_client: OpenClient, history: History, job_config: Config
):
    del job_config["checkpoint"]
    async with open_client() as client:
        job_id = await fail(client, history, job_config)
        answer = await client.post(f"/v1/jobs/{job_id}/resume")
    assert answer.status_code == 409
    assert answer.json()["type"] == "urn:trainflow:problem:not-resumable"
    assert "checkpoint.url" in answer.json()["detail"]


async def test_a_working_directory_that_is_no_longer_allowed_is_refused(
    open_client: OpenClient, history: History, job_config: Config, root: Path
):
    async with open_client() as client:
        job_id = await submit(client, job_config, working_directory=str(root / "project"))
        history.submissions.fail(job_id, 1, "lost")
    async with open_client(roots=[]) as client:
        answer = await client.post(f"/v1/jobs/{job_id}/resume")
    assert answer.status_code == 403
