"""Parts of the service, or what it serves, are killed: what is still answered, and what goes on."""

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.integration.served import Ground, Service, serving, wait_until
from trainflow.client import TrainFlowClient
from trainflow.client.problems import ServiceError
from trainflow.coordination.line_file import read_lines

pytestmark = [pytest.mark.ray, pytest.mark.chaos, pytest.mark.slow]

REPLICA = "ray::ServeReplica:trainflow:api"
COORDINATOR = "ray::Coordinator"
CONFLICT = 409


def find_processes(service: Service, title: str) -> list[psutil.Process]:
    """Return the cluster's processes whose title begins so."""
    found: list[psutil.Process] = []
    for process in psutil.Process(service.cluster.head.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if " ".join(process.cmdline()).startswith(title):
                found.append(process)
    return found


def find_listening(service: Service) -> list[psutil.Process]:
    """Return the replicas that take connections."""
    found: list[psutil.Process] = []
    for process in find_processes(service, REPLICA):
        with contextlib.suppress(psutil.Error):
            if any(
                each.laddr.port == service.ground.port and each.status == psutil.CONN_LISTEN
                for each in process.net_connections("tcp")
            ):
                found.append(process)
    return found


def kill_one(service: Service, title: str) -> None:
    process, *_ = find_processes(service, title)
    process.kill()
    process.wait(10)


class Listener(threading.Thread):
    """Follows a job's events from the first, whatever happens meanwhile.

    Attributes:
        numbers: of the events heard.
    """

    def __init__(self, ground: Ground, job_id: str):
        super().__init__(daemon=True)
        self.numbers: list[int] = []
        self.error: ServiceError | None = None
        self._client = TrainFlowClient(ground.url, ground.token)
        self._job_id = job_id

    def run(self) -> None:
        try:
            for event in self._client.events(self._job_id):
                self.numbers.append(event.number)
        except ServiceError as error:
            self.error = error
        finally:
            self._client.close()


@pytest.fixture
def ground(tmp_path: Path) -> Ground:
    return Ground.make(tmp_path)


@pytest.fixture
def service(ground: Ground) -> Iterator[Service]:
    with serving(ground) as service:
        yield service


def wait_step(service: Service, job_id: str, step: int) -> dict[str, Any]:
    return service.wait_job(job_id, lambda job: job["last_step"] > step)


def resume_lost(service: Service, job_id: str) -> dict[str, Any]:
    """Resume a job once its silence tells that it is on no other cluster."""
    answers: list[Any] = []

    def resume() -> bool:
        answers.append(service.client.post(f"/v1/jobs/{job_id}/resume"))
        return answers[-1].status_code != CONFLICT

    wait_until(resume, lambda: answers[-1].text)
    assert answers[-1].status_code == 202, answers[-1].text
    assert all("heard of, but not on this cluster" in each.text for each in answers[:-1])
    return answers[-1].json()


def test_replicas_and_the_coordinator_are_killed_and_no_event_is_lost(service: Service):
    job_id = service.submit(service.ground.endless_job())
    listener = Listener(service.ground, job_id)
    listener.start()
    step = wait_step(service, job_id, 20)["last_step"]
    for title in (REPLICA, COORDINATOR, REPLICA):
        kill_one(service, title)
        step = wait_step(service, job_id, step + 20)["last_step"]
        wait_until(lambda: len(find_listening(service)) == 2, lambda: "a replica is missing")
    kill_one(service, COORDINATOR)
    with TrainFlowClient(service.ground.url, service.ground.token) as client:
        client.stop(job_id)  # which asks again while no coordinator answers
    for process in find_processes(service, COORDINATOR):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()  # in the midst of stopping, or after it
    service.wait_job(job_id, lambda job: job["state"] == "stopped")
    listener.join(60)
    assert not listener.is_alive()
    assert listener.error is None
    written = read_lines(service.ground.home / "runs" / job_id / "events.jsonl")
    assert listener.numbers == [event["number"] for event in written]
    assert any(event["kind"] == "coordinator_restarted" for event in written)


@pytest.mark.soak
def test_what_was_known_is_known_after_the_head_died_and_the_job_is_gone_on_with(ground: Ground):
    with serving(ground) as service:
        job_id = service.submit(ground.endless_job())
        wait_step(service, job_id, 60)
        asked = f"/v1/jobs/{job_id}/checkpoints"
        wait_until(lambda: bool(service.ask("GET", asked)["checkpoints"]), lambda: "none is kept")
        service.cluster.head.kill()
    with serving(ground) as service:
        (listed,) = service.ask("GET", "/v1/jobs")["jobs"]
        assert listed["job_id"] == job_id
        job = service.ask("GET", f"/v1/jobs/{job_id}")
        assert job["state"] == "running"  # as it was last told
        assert job["stale_s"] > 1
        events = service.ask("GET", f"/v1/jobs/{job_id}/events?limit=1000")["events"]
        assert events[0]["kind"] == "submitted"
        assert "run " + job_id in service.client.get(f"/v1/jobs/{job_id}/logs").text
        printed = service.client.get(f"/v1/jobs/{job_id}/logs?worker=0").text
        assert "the line is about to be fitted" in printed
        kept = [e["data"]["step"] for e in events if e["kind"] == "checkpoint"]

        assert resume_lost(service, job_id)["attempt"] == 2
        wait_step(service, job_id, job["last_step"] + 20)
        service.ask("POST", f"/v1/jobs/{job_id}/stop", 202)
        service.wait_job(job_id, lambda job: job["state"] == "stopped")
        events = service.ask("GET", f"/v1/jobs/{job_id}/events?limit=1000")["events"]
        assert [event["number"] for event in events] == list(range(1, len(events) + 1))
        resumed = [event["data"]["step"] for event in events if event["kind"] == "resumed"]
        assert resumed[-1] >= max(kept)
        lost, _ = service.ask("GET", f"/v1/jobs/{job_id}/attempts")
        assert (lost["state"], lost["exit_code"]) == ("lost", None)
        assert lost["ended_at_s"] == pytest.approx(job["published_at_s"], abs=2)


@pytest.mark.soak
def test_a_job_goes_on_by_itself_on_the_next_cluster_if_it_says_so(ground: Ground):
    with serving(ground) as service:
        job_id = service.submit(ground.endless_job() | {"failures": {"max_lost_clusters": 1}})
        before = wait_step(service, job_id, 60)["last_step"]
        service.cluster.head.kill()
    with serving(ground) as service:
        service.wait_job(job_id, lambda job: job["attempt"] == 2)
        wait_step(service, job_id, before + 20)
        events = service.ask("GET", f"/v1/jobs/{job_id}/events?limit=1000")["events"]
        told = [event["data"] for event in events if event["kind"] == "resuming"]
        assert told == [{"attempt": 2, "times": 1, "at_most": 1}]
        lost, _ = service.ask("GET", f"/v1/jobs/{job_id}/attempts")
        (at_s,) = (event["at_s"] for event in events if event["kind"] == "resuming")
        assert lost["state"] == "lost"
        assert lost["ended_at_s"] < at_s - 50
        service.ask("POST", f"/v1/jobs/{job_id}/stop", 202)
        service.wait_job(job_id, lambda job: job["state"] == "stopped")
