"""The service on a real cluster: a job's life over HTTP, and what stays when parts of it die."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from trainflow.clock import SYSTEM_CLOCK
from trainflow.coordination.local_cluster import LocalCluster
from trainflow.service.history.history import open_history
from trainflow.service.history.records import Scope

pytestmark = [pytest.mark.ray, pytest.mark.slow]

WITHIN_S = 120.0
LOOK_EVERY_S = 0.1


def find_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def wait_until(reached: Callable[[], bool], explain: Callable[[], object]) -> None:
    deadline_s = SYSTEM_CLOCK.monotonic_s() + WITHIN_S
    while not reached():
        assert SYSTEM_CLOCK.monotonic_s() < deadline_s, explain()
        SYSTEM_CLOCK.sleep(LOOK_EVERY_S)


class Service:
    """A service that serves, and a client of it.

    Attributes:
        client: may read and submit.
        folder: a job's code, under one of the service's roots.
    """

    def __init__(self, client: httpx.Client, folder: Path, log: Path):
        self.client = client
        self.folder = folder
        self._log = log

    def ask(self, method: str, path: str, status: int = 200, **more: Any) -> Any:
        answer = self.client.request(method, path, **more)
        assert answer.status_code == status, (path, answer.status_code, answer.text)
        return answer.json() if answer.content else None

    def submit(self, max_steps: int, **headers: str) -> str:
        config = {
            "name": "served",
            "entrypoint": "my_training:train",
            "training": {"max_steps": max_steps, "global_batch_size": 8, "microbatch_size": 2},
            "data": {"dataset": "my_training:make_points"},
            "workers": {"minimum": 1, "target": 2},
            "checkpoint": {"url": str(self.folder.parent / "checkpoints"), "every_steps": 50},
        }
        body = {"config": config, "working_directory": str(self.folder)}
        return self.ask("POST", "/v1/jobs", 201, json=body, headers=headers)["job_id"]

    def wait_job(self, job_id: str, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        found: dict[str, Any] = {}

        def look() -> bool:
            found.update(self.ask("GET", f"/v1/jobs/{job_id}"))
            return holds(found)

        wait_until(look, lambda: (found, self._log.read_text()[-2000:]))
        return found


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def service(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    root = tmp_path_factory.mktemp("root")
    folder = root / "project"
    folder.mkdir()
    shutil.copy(Path(__file__).parent / "command_line_job.py", folder / "my_training.py")
    port, log = find_port(), root / "serve.log"
    (home / "service.yaml").write_text(
        json.dumps({"http": {"port": port}, "roots": [str(root)], "replicas": 2})
    )
    with open_history(f"sqlite:///{home / 'history.db'}") as history:
        token = history.tokens.create("test", frozenset(Scope)).secret
    environment = {**os.environ, "TRAINFLOW_HOME": str(home)}
    with (
        LocalCluster.start(head_cpus=4, takes_jobs=True) as cluster,
        log.open("wb") as output,
        httpx.Client(
            base_url=f"http://127.0.0.1:{port}",
            headers={"Authorization": f"Bearer {token}"},
            timeout=70,
        ) as client,
    ):
        command = [sys.executable, "-m", "trainflow", "serve", "--address", cluster.address]
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
        try:
            wait_until(
                lambda: "serving at" in log.read_text() or process.poll() is not None,
                log.read_text,
            )
            assert process.poll() is None, log.read_text()
            yield Service(client, folder, log)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(WITHIN_S)


def test_a_job_is_submitted_read_while_it_trains_stopped_resumed_and_erased(service: Service):
    job_id = service.submit(1_000_000)
    service.wait_job(job_id, lambda job: job["state"] == "running" and job["last_step"] > 60)
    workers = service.ask("GET", f"/v1/jobs/{job_id}/workers")
    assert sorted(row["rank"] for row in workers["workers"] if row["rank"] is not None) == [0, 1]
    assert workers["stale_s"] < 30
    assert service.ask("GET", f"/v1/jobs/{job_id}/metrics")["points"]
    assert len(service.ask("GET", "/v1/cluster")["nodes"]) == 1
    assert service.ask("POST", f"/v1/jobs/{job_id}/resume", 409)["type"].endswith(":conflict")
    service.ask("DELETE", f"/v1/jobs/{job_id}", 409)

    for _ in range(2):
        service.ask("POST", f"/v1/jobs/{job_id}/stop", 202)
    stopped = service.wait_job(job_id, lambda job: job["state"] == "stopped")
    assert (stopped["exit_code"], stopped["attempt"]) == (7, 1)
    log = service.client.get(f"/v1/jobs/{job_id}/logs")
    assert "stopped" in log.text

    assert service.ask("POST", f"/v1/jobs/{job_id}/resume", 202)["attempt"] == 2
    further = stopped["last_step"] + 20
    service.wait_job(job_id, lambda job: job["state"] == "running" and job["last_step"] > further)
    service.ask("POST", f"/v1/jobs/{job_id}/stop", 202)
    service.wait_job(job_id, lambda job: job["state"] == "stopped")
    attempts = service.ask("GET", f"/v1/jobs/{job_id}/attempts")
    assert [each["state"] for each in attempts] == ["stopped", "stopped"]
    events = service.ask("GET", f"/v1/jobs/{job_id}/events?limit=1000")["events"]
    assert [event["number"] for event in events] == list(range(1, len(events) + 1))
    resumed = [event for event in events if event["kind"] == "resumed"]
    assert resumed[-1]["data"]["step"] == stopped["last_step"]
    service.ask("DELETE", f"/v1/jobs/{job_id}", 204)
    service.ask("GET", f"/v1/jobs/{job_id}", 404)


def test_a_job_that_its_driver_refuses_says_why(service: Service):
    body = {"config": json.dumps({**tiny(), "entrypoint": "my_training:absent"})}
    body["working_directory"] = str(service.folder)
    job_id = service.ask("POST", "/v1/jobs", 201, json=body)["job_id"]
    job = service.wait_job(job_id, lambda job: job["state"] == "failed")
    assert job["exit_code"] == 2
    assert "absent" in job["reason"]
    assert "absent" in service.client.get(f"/v1/jobs/{job_id}/logs").text


def tiny() -> dict[str, Any]:
    return {
        "name": "tiny",
        "entrypoint": "my_training:train",
        "training": {"max_steps": 30, "global_batch_size": 8, "microbatch_size": 2},
        "data": {"dataset": "my_training:make_points"},
        "workers": {"minimum": 1, "target": 2},
    }


def test_a_key_makes_one_job_over_all_replicas(service: Service):
    body = {"config": tiny(), "working_directory": str(service.folder)}
    answers = [
        service.client.post("/v1/jobs", json=body, headers={"Idempotency-Key": "once"})
        for _ in range(6)
    ]
    assert sorted(answer.status_code for answer in answers) == [200] * 5 + [201]
    (job_id,) = {answer.json()["job_id"] for answer in answers}
    job = service.wait_job(job_id, lambda job: job["ended_at_s"] is not None)
    assert job["state"] == "succeeded"


def test_events_are_streamed_through_serve(service: Service):
    body = {"config": tiny(), "working_directory": str(service.folder)}
    job_id = service.ask("POST", "/v1/jobs", 201, json=body)["job_id"]
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


def test_another_host_and_no_token_are_refused_through_serve(service: Service):
    assert service.client.get("/v1/jobs", headers={"Host": "evil.example"}).status_code == 421
    assert service.client.get("/v1/jobs", headers={"Authorization": ""}).status_code == 401
    assert httpx.get(service.client.base_url.join("/healthz")).status_code == 200
