"""The service on a real cluster: a job's life over HTTP."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from ray.job_submission import JobSubmissionClient

from tests.integration.served import (
    WITHIN_S,
    Ground,
    Service,
    serving,
    tiny_job,
    wait_until,
)
from trainflow.cli.exit_codes import ExitCode

pytestmark = [pytest.mark.ray, pytest.mark.slow]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with serving(Ground.make(tmp_path_factory.mktemp("service"))) as service:
        yield service


def test_a_job_is_submitted_read_while_it_trains_stopped_resumed_and_erased(service: Service):
    job_id = service.submit(service.ground.endless_job())
    service.wait_job(job_id, lambda job: job["state"] == "running" and job["last_step"] > 60)
    workers = service.ask("GET", f"/v1/jobs/{job_id}/workers")
    assert sorted(row["rank"] for row in workers["workers"] if row["rank"] is not None) == [0, 1]
    assert workers["stale_s"] < 30
    assert service.ask("GET", f"/v1/jobs/{job_id}/metrics")["points"]
    assert len(service.ask("GET", "/v1/cluster")["nodes"]) == 1
    assert service.ask("POST", f"/v1/jobs/{job_id}/resume", 409)["type"].endswith(":conflict")
    service.ask("DELETE", f"/v1/jobs/{job_id}", 409)
    logs = service.ask("GET", f"/v1/jobs/{job_id}/logs/workers")["workers"]
    assert {each["rank"] for each in logs} >= {0, 1}
    for rank in (0, 1):
        printed = service.client.get(f"/v1/jobs/{job_id}/logs?worker={rank}").text.splitlines()
        assert printed.count("the line is about to be fitted") == 1
        assert not any(line.startswith((":job_id:", ":actor_name:")) for line in printed)

    for _ in range(2):
        service.ask("POST", f"/v1/jobs/{job_id}/stop", 202)
    stopped = service.wait_job(job_id, lambda job: job["state"] == "stopped")
    assert (stopped["exit_code"], stopped["attempt"]) == (7, 1)

    def read_log() -> str:
        return service.client.get(f"/v1/jobs/{job_id}/logs").text

    wait_until(lambda: "stopped" in read_log(), read_log)  # its driver hears of it, too

    assert service.ask("POST", f"/v1/jobs/{job_id}/resume", 202)["attempt"] == 2
    further = stopped["last_step"] + 20
    service.wait_job(job_id, lambda job: job["state"] == "running" and job["last_step"] > further)
    service.ask("POST", f"/v1/jobs/{job_id}/stop", 202)
    service.wait_job(job_id, lambda job: job["state"] == "stopped")
    attempts = service.ask("GET", f"/v1/jobs/{job_id}/attempts")
    assert [each["state"] for each in attempts] == ["stopped", "stopped"]
    printed = read_log()  # what was before an attempt its driver does not tell again
    assert printed.count(f"submitted: job {job_id}") == 2
    assert printed.count("attempt: attempt 2 of the job begins") == 1
    events = service.ask("GET", f"/v1/jobs/{job_id}/events?limit=1000")["events"]
    assert [event["number"] for event in events] == list(range(1, len(events) + 1))
    resumed = [event for event in events if event["kind"] == "resumed"]
    assert resumed[-1]["data"]["step"] == stopped["last_step"]
    service.ask("DELETE", f"/v1/jobs/{job_id}", 204)
    service.ask("GET", f"/v1/jobs/{job_id}", 404)


@pytest.mark.soak
def test_a_job_that_failed_before_its_first_checkpoint_is_resumed_from_the_first_step(
    service: Service,
):
    job = service.ground.endless_job() | {"failures": {"max_failures": 0}}
    job["checkpoint"] = {"url": str(service.ground.folder / "none_yet"), "every_steps": 10**6}
    job_id = service.submit(job)
    service.wait_job(job_id, lambda job: job["last_step"] > 20)
    find_actors("Worker")[0].kill()
    failed = service.wait_job(job_id, lambda job: job["state"] == "failed")
    assert service.ask("POST", f"/v1/jobs/{job_id}/resume", 202)["attempt"] == 2
    service.wait_job(job_id, lambda job: job["state"] == "running" and job["attempt"] == 2)
    service.ask("POST", f"/v1/jobs/{job_id}/stop", 202)
    service.wait_job(job_id, lambda job: job["state"] == "stopped")
    events = service.ask("GET", f"/v1/jobs/{job_id}/events?limit=1000")["events"]
    (resumed,) = [event["data"] for event in events if event["kind"] == "resumed"]
    assert (resumed["step"], resumed["steps_lost"]) == (0, failed["last_step"])


def test_a_job_that_its_driver_refuses_says_why(service: Service):
    job_id = service.submit(tiny_job(entrypoint="my_training:absent"))
    job = service.wait_job(job_id, lambda job: job["state"] == "failed")
    assert job["exit_code"] == 2
    assert "absent" in job["reason"]
    assert "absent" in service.client.get(f"/v1/jobs/{job_id}/logs").text


def test_a_key_makes_one_job_over_all_replicas(service: Service):
    body = {"config": tiny_job(), "working_directory": str(service.ground.folder)}
    answers = [
        service.client.post("/v1/jobs", json=body, headers={"Idempotency-Key": "once"})
        for _ in range(6)
    ]
    assert sorted(answer.status_code for answer in answers) == [200] * 5 + [201]
    (job_id,) = {answer.json()["job_id"] for answer in answers}
    job = service.wait_job(job_id, lambda job: job["ended_at_s"] is not None)
    assert job["state"] == "succeeded"


def test_events_are_streamed_through_serve(service: Service):
    job_id = service.submit(tiny_job())
    text = ""
    headers = {"Accept": "text/event-stream"}
    with service.client.stream("GET", f"/v1/jobs/{job_id}/events", headers=headers) as answer:
        for piece in answer.iter_text():
            text += piece
            if "event: end" in text:
                break
    numbers = [int(line[4:]) for line in text.splitlines() if line.startswith("id: ")]
    assert numbers == list(range(1, len(numbers) + 1))
    assert '"kind": "succeeded"' in text


@pytest.mark.soak
def test_what_ray_is_given_the_service_stops_and_resumes_and_the_other_way_round(
    service: Service, tmp_path: Path
):
    jobs = JobSubmissionClient(service.cluster.address)
    ground, folder = service.ground, tmp_path / "in_none_of_the_roots"
    (folder / "inner").mkdir(parents=True)
    shutil.copy(ground.folder / "my_training.py", folder)
    job = ground.endless_job() | {"name": "by-ray"}
    job["checkpoint"] |= {"url": str(tmp_path / "checkpoints")}  # other jobs have left theirs
    (folder / "inner" / "job.json").write_text(json.dumps(job))
    environment = {"working_dir": str(folder), "env_vars": {"TRAINFLOW_HOME": str(ground.home)}}
    command = f"cd inner && exec {sys.executable} -m trainflow run job.json"
    submission = jobs.submit_job(entrypoint=command, runtime_env=environment)

    def find() -> list[dict[str, Any]]:
        found = service.ask("GET", "/v1/jobs?name=by-ray&state=running")["jobs"]
        return [job for job in found if job["last_step"] > 60]

    wait_until(lambda: bool(find()), lambda: jobs.get_job_logs(submission))
    job_id = find()[0]["job_id"]
    attempts = service.ask("GET", f"/v1/jobs/{job_id}/attempts")
    assert [each["submission_id"] for each in attempts] == [None]
    service.ask("POST", f"/v1/jobs/{job_id}/stop", 202)
    stopped = service.wait_job(job_id, lambda job: job["state"] == "stopped")
    wait_until(
        lambda: jobs.get_job_status(submission).is_terminal(),
        lambda: jobs.get_job_logs(submission),
    )
    shutil.rmtree(folder)  # what Ray was given is what counts
    assert service.ask("POST", f"/v1/jobs/{job_id}/resume", 202)["attempt"] == 2
    further = stopped["last_step"] + 20
    service.wait_job(job_id, lambda job: job["state"] == "running" and job["last_step"] > further)
    service.ask("POST", f"/v1/jobs/{job_id}/stop", 202)
    service.wait_job(job_id, lambda job: job["state"] == "stopped")
    events = service.ask("GET", f"/v1/jobs/{job_id}/events?limit=1000")["events"]
    resumed = [event["data"]["step"] for event in events if event["kind"] == "resumed"]
    assert resumed == [stopped["last_step"]]
    by_service = service.submit(tiny_job())
    assert f"{by_service}-a1" in {each.submission_id for each in jobs.list_jobs()}
    service.wait_job(by_service, lambda job: job["state"] == "succeeded")


@pytest.mark.soak
def test_a_job_that_is_stopped_before_it_has_begun_has_stopped_and_can_be_gone_on_with(
    service: Service,
):
    job_id = service.submit(service.ground.endless_job())
    service.ask("POST", f"/v1/jobs/{job_id}/stop", 202)
    service.wait_job(job_id, lambda job: job["state"] == "stopped")
    assert service.ask("POST", f"/v1/jobs/{job_id}/resume", 202)["attempt"] == 2
    service.wait_job(job_id, lambda job: job["state"] == "running")
    service.ask("POST", f"/v1/jobs/{job_id}/stop", 202)
    service.wait_job(job_id, lambda job: job["state"] == "stopped")


def kill_driver(job_id: str) -> None:
    """Kill the process that runs the first attempt of a job."""
    own = ["--job-id", job_id, "--attempt", "1"]
    for process in psutil.process_iter(["cmdline"]):
        command: list[str] = process.info["cmdline"] or []
        if "trainflow" in command and command[-len(own) :] == own:
            process.kill()
            process.wait(10)
            return
    raise AssertionError(f"job {job_id} has no driver")


def test_who_resumes_a_job_as_soon_as_it_is_told_as_stopped_and_stops_it_at_once_is_obeyed(
    service: Service,
):
    """The coordinator before is still there then, as its driver didn't live to let it go."""
    job_id = service.submit(service.ground.endless_job())
    service.wait_job(job_id, lambda job: job["state"] == "running" and job["last_step"] > 20)
    kill_driver(job_id)
    service.ask("POST", f"/v1/jobs/{job_id}/stop", 202)
    service.wait_job(job_id, lambda job: job["state"] == "stopped")
    for attempt in (2, 3):
        assert service.ask("POST", f"/v1/jobs/{job_id}/resume", 202)["attempt"] == attempt
        service.ask("POST", f"/v1/jobs/{job_id}/resume", 409)
        service.ask("DELETE", f"/v1/jobs/{job_id}", 409)
        service.ask("POST", f"/v1/jobs/{job_id}/stop", 202)
        job = service.wait_job(job_id, lambda job: job["state"] == "stopped")
        assert job["attempt"] == attempt
    attempts = service.ask("GET", f"/v1/jobs/{job_id}/attempts")
    assert [(each["number"], each["state"]) for each in attempts] == [
        (number, "stopped") for number in (1, 2, 3)
    ]
    service.ask("DELETE", f"/v1/jobs/{job_id}", 204)


def find_actors(kind: str) -> list[psutil.Process]:
    """Return the processes of actors of a class, on clusters that this process has started."""
    ours = psutil.Process().children(recursive=True)
    return [process for process in ours if _name_of(process).startswith(f"ray::{kind}")]


def _name_of(process: psutil.Process) -> str:
    with suppress(psutil.NoSuchProcess):
        return (process.cmdline() or [""])[0]
    return ""


@pytest.mark.soak
def test_a_resumed_job_begins_once_all_of_the_attempt_before_is_closed(service: Service):
    job_id = service.submit(service.ground.endless_job())
    service.wait_job(job_id, lambda job: job["state"] == "running" and job["last_step"] > 20)
    (keeper,) = find_actors("Keeper")
    keeper.suspend()
    try:
        service.ask("POST", f"/v1/jobs/{job_id}/stop", 202)
        service.wait_job(job_id, lambda job: job["state"] == "stopped")
        service.ask("POST", f"/v1/jobs/{job_id}/resume", 202)
        service.wait_job(job_id, lambda job: job["state"] == "running" and job["attempt"] == 2)
    finally:
        with suppress(psutil.NoSuchProcess):
            keeper.resume()
    service.ask("POST", f"/v1/jobs/{job_id}/stop", 202)
    service.wait_job(job_id, lambda job: job["state"] == "stopped")


@pytest.mark.soak
def test_a_later_attempt_is_refused_after_the_one_before_has_told_its_end(service: Service):
    folder = service.ground.folder.with_name("changed")
    shutil.copytree(service.ground.folder, folder)
    body = {"config": service.ground.endless_job(), "working_directory": str(folder)}
    job_id = service.ask("POST", "/v1/jobs", 201, json=body)["job_id"]
    service.wait_job(job_id, lambda job: job["state"] == "running" and job["last_step"] > 20)
    (keeper,) = find_actors("Keeper")
    keeper.suspend()  # so that closing lasts
    try:
        service.ask("POST", f"/v1/jobs/{job_id}/stop", 202)
        service.wait_job(job_id, lambda job: job["state"] == "stopped")
        (folder / "my_training.py").write_text("")
        service.ask("POST", f"/v1/jobs/{job_id}/resume", 202)
        failed = service.wait_job(job_id, lambda job: job["state"] == "failed")
    finally:
        with suppress(psutil.NoSuchProcess):
            keeper.resume()
    assert failed["attempt"] == 2
    assert "my_training" in failed["reason"]
    attempts = service.ask("GET", f"/v1/jobs/{job_id}/attempts")
    assert [(each["state"], each["exit_code"]) for each in attempts] == [
        ("stopped", 7),
        ("failed", 2),
    ]
    events = service.ask("GET", f"/v1/jobs/{job_id}/events?limit=1000")["events"]
    assert [event["number"] for event in events] == list(range(1, len(events) + 1))
    assert [event["kind"] for event in events[-3:]] == ["stopped", "attempt", "failed"]


@pytest.mark.soak
def test_a_job_that_another_cluster_is_closing_is_neither_resumed_nor_erased(service: Service):
    ground = service.ground
    job_file = ground.folder / "elsewhere.json"
    fails_once = {"name": "elsewhere", "failures": {"max_failures": 0}}
    job_file.write_text(json.dumps(ground.endless_job() | fails_once))
    environment = {**os.environ, "TRAINFLOW_HOME": str(ground.home)}
    command = [sys.executable, "-m", "trainflow", "run", str(job_file)]  # with a head of its own
    with (ground.home / "elsewhere.log").open("wb") as log:
        run = subprocess.Popen(command, cwd=ground.folder, env=environment, stdout=log, stderr=log)
    try:

        def find() -> list[dict[str, Any]]:
            found = service.ask("GET", "/v1/jobs?name=elsewhere&state=running")["jobs"]
            return [job for job in found if job["last_step"] > 20]

        wait_until(lambda: bool(find()), (ground.home / "elsewhere.log").read_text)
        job = f"/v1/jobs/{find()[0]['job_id']}"
        (keeper,) = find_actors("Keeper")
        keeper.suspend()  # so that closing lasts: it is waited for as long as its lease
        try:
            member, *_ = service.ask("GET", f"{job}/workers")["workers"]
            os.kill(member["pid"], signal.SIGKILL)
            service.wait_job(job.rpartition("/")[2], lambda job: job["state"] == "failed")
            for refused in (("POST", f"{job}/resume"), ("DELETE", job)):
                assert "on another cluster" in service.ask(*refused, 409)["detail"]
        finally:
            with suppress(psutil.NoSuchProcess):
                keeper.resume()
        assert run.wait(WITHIN_S) == ExitCode.FAILED
        service.ask("DELETE", job, 204)
    finally:
        run.terminate()
        run.wait(WITHIN_S)


def test_a_job_is_erased_with_the_coordinator_that_could_begin_it_anew(service: Service):
    job_id = service.submit(service.ground.endless_job())
    service.wait_job(job_id, lambda job: job["state"] == "running" and job["last_step"] > 20)
    kill_driver(job_id)  # nobody reads the result
    service.ask("POST", f"/v1/jobs/{job_id}/stop", 202)
    service.wait_job(job_id, lambda job: job["state"] == "stopped")
    service.ask("DELETE", f"/v1/jobs/{job_id}", 204)
    wait_until(lambda: not find_actors("Coordinator"), lambda: find_actors("Coordinator"))


def test_another_host_and_no_token_are_refused_through_serve(service: Service):
    assert service.client.get("/v1/jobs", headers={"Host": "evil.example"}).status_code == 421
    assert service.client.get("/v1/jobs", headers={"Authorization": ""}).status_code == 401
    assert httpx.get(service.client.base_url.join("/healthz")).status_code == 200


def test_that_others_may_use_the_cluster_is_said(service: Service):
    said = (service.ground.home / "serve.log").read_text()
    assert f"the cluster at {service.cluster.address} takes whoever reaches it from other" in said


def test_who_serves_where_a_service_is_hears_that_it_is_replaced(service: Service, tmp_path: Path):
    """The last here: the service that the others share is no more."""
    ground = Ground.make(tmp_path)
    environment = {**os.environ, "TRAINFLOW_HOME": str(ground.home)}
    command = [sys.executable, "-m", "trainflow", "serve", "--detach"]
    command += ["--address", service.cluster.address]
    run = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=WITHIN_S, check=True
    )
    assert "a service was there, which this one has replaced" in run.stderr
    assert httpx.get(f"{ground.url}/healthz").status_code == 200
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{service.ground.url}/healthz")
    first = (service.ground.home / "serve.log").read_text()
    assert "replaced" not in first
