"""A service on a real cluster, and a job's code for it, for tests."""

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from trainflow.clock import SYSTEM_CLOCK
from trainflow.coordination.local_cluster import LocalCluster
from trainflow.service.history.history import open_history
from trainflow.service.history.records import Scope

WITHIN_S = 240.0
LOOK_EVERY_S = 0.3  # looks are requests, which a job that starts pays for


def find_port() -> int:
    """Return a port that is free, and that nobody is given who asks for any: Ray asks for many."""
    while True:
        port = random.randrange(20_000, 32_000)
        try:
            with socket.create_server(("127.0.0.1", port)):
                return port
        except OSError:
            continue


def wait_until(reached: Callable[[], bool], explain: Callable[[], object]) -> None:
    deadline_s = SYSTEM_CLOCK.monotonic_s() + WITHIN_S
    while not reached():
        assert SYSTEM_CLOCK.monotonic_s() < deadline_s, explain()
        SYSTEM_CLOCK.sleep(LOOK_EVERY_S)


def tiny_job(**changes: Any) -> dict[str, Any]:
    job = {
        "name": "served",
        "entrypoint": "my_training:train",
        "training": {"max_steps": 30, "global_batch_size": 8, "microbatch_size": 2},
        "data": {"dataset": "my_training:make_points"},
        "workers": {"minimum": 1, "target": 2},
    }
    return job | changes


@dataclass
class Ground:
    """What outlives a service and its cluster.

    Attributes:
        home: TRAINFLOW_HOME.
        folder: a job's code, under the service's root.
        port: that the service listens at.
        token: that allows all.
    """

    home: Path
    folder: Path
    port: int
    token: str

    @classmethod
    def make(cls, place: Path) -> "Ground":
        home, folder = place / "home", place / "root" / "project"
        home.mkdir(parents=True)
        folder.mkdir(parents=True)
        shutil.copy(Path(__file__).parent / "command_line_job.py", folder / "my_training.py")
        port = find_port()
        settings = {"http": {"port": port}, "roots": [str(folder.parent)], "replicas": 2}
        (home / "service.yaml").write_text(json.dumps(settings))
        with open_history(f"sqlite:///{home / 'history.db'}") as history:
            token = history.tokens.create("test", frozenset(Scope)).secret
        return cls(home, folder, port, token)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def endless_job(self) -> dict[str, Any]:
        """A job that trains until it is stopped, and keeps checkpoints."""
        training = {"max_steps": 10**6, "global_batch_size": 8, "microbatch_size": 2}
        checkpoint = {"url": str(self.folder.parent / "checkpoints"), "every_steps": 50}
        return tiny_job(training=training, checkpoint=checkpoint)


class Service:
    """A service that serves, and a client of it.

    Attributes:
        client: may read and submit.
        ground: that it stands on.
        cluster: that it is on.
    """

    def __init__(self, client: httpx.Client, ground: Ground, cluster: LocalCluster, log: Path):
        self.client = client
        self.ground = ground
        self.cluster = cluster
        self._log = log

    def ask(self, method: str, path: str, status: int = 200, **more: Any) -> Any:
        answer = self.client.request(method, path, **more)
        assert answer.status_code == status, (path, answer.status_code, answer.text)
        return answer.json() if answer.content else None

    def submit(self, job: dict[str, Any]) -> str:
        body = {"config": job, "working_directory": str(self.ground.folder)}
        return self.ask("POST", "/v1/jobs", 201, json=body)["job_id"]

    def wait_job(self, job_id: str, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        found: dict[str, Any] = {}

        def look() -> bool:
            found.update(self.ask("GET", f"/v1/jobs/{job_id}"))
            return holds(found)

        wait_until(look, lambda: (found, self._log.read_text()[-2000:]))
        return found


@contextmanager
def serving(ground: Ground) -> Generator[Service]:
    """Serve on a new cluster, as a person would; leaves neither behind."""
    log = ground.home / "serve.log"
    environment = {**os.environ, "TRAINFLOW_HOME": str(ground.home)}
    headers = {"Authorization": f"Bearer {ground.token}"}
    with (
        LocalCluster.start(head_cpus=4, takes_jobs=True) as cluster,
        log.open("wb") as output,
        httpx.Client(base_url=ground.url, headers=headers, timeout=70) as client,
    ):
        command = [sys.executable, "-m", "trainflow", "serve", "--address", cluster.address]
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
        try:
            wait_until(
                lambda: "serving at" in log.read_text() or process.poll() is not None,
                log.read_text,
            )
            assert process.poll() is None, log.read_text()
            yield Service(client, ground, cluster, log)
        finally:
            if cluster.head.process.poll() is None:
                process.send_signal(signal.SIGTERM)
            else:
                process.kill()  # its cluster is gone
            process.wait(WITHIN_S)
