"""A service in a process of its own, so that the system tells what its clients cost it.

    python -m tests.unit.service.app_process SETTINGS_AS_JSON

serves the runs under TRAINFLOW_HOME, prints its URL, and ends when its standard input does.

Process: itself; a test asks for it.  Thread: the service listens in one, another keeps the history.
"""

import json
import subprocess
import sys
from collections.abc import Generator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests.unit.service.fakes import FakeCluster
from tests.unit.service.runs import find_port
from trainflow.service.app import create_app
from trainflow.service.history.history import open_history
from trainflow.service.history.ingest import Ingester
from trainflow.service.history.ingest_thread import IngestThread
from trainflow.service.http_server import HttpServer
from trainflow.service.settings import ServiceSettings

LOOK_EVERY_S = 0.02
# A test's own requests are not to be what is refused.
UNBOUNDED = {"requests_per_s": 1e6, "burst": 10**6}


@dataclass(frozen=True)
class Cost:
    """What a process has of its system.

    Attributes:
        num_descriptors: open ones.
        num_threads: running ones.
        num_bytes: of memory, resident.
    """

    num_descriptors: int
    num_threads: int
    num_bytes: int


@dataclass(frozen=True)
class AppProcess:
    """A service that listens in a process of its own.

    Attributes:
        host: where.
        port: and there.
        process: itself.
        log: what it has complained of.
    """

    host: str
    port: int
    process: psutil.Process
    log: Path

    def measure(self) -> Cost:
        with self.process.oneshot():
            resident = self.process.memory_info().rss
            return Cost(self.process.num_fds(), self.process.num_threads(), resident)

    def count_connections(self) -> int:
        """Return how many of its descriptors are connections of clients."""
        connections = self.process.net_connections("tcp")
        at_port = [each for each in connections if each.laddr.port == self.port]
        return sum(each.status != psutil.CONN_LISTEN for each in at_port)

    def ask(self, path: str, **given: Any) -> httpx.Response:
        return httpx.get(f"http://{self.host}:{self.port}{path}", timeout=30, **given)


@contextmanager
def serving_apart(log: Path, limits: dict[str, Any]) -> Generator[AppProcess]:
    """Have a service run that wants no tokens, with some limits."""
    given = {
        "authentication": "off",
        "history": {"poll_every_s": LOOK_EVERY_S},
        "limits": UNBOUNDED | limits,
    }
    command = [sys.executable, "-m", __name__, json.dumps(given)]
    with (
        log.open("wb") as told,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=told, text=True
        ) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            url = httpx.URL(process.stdout.readline().strip())
            assert url.port is not None, log.read_text()
            yield AppProcess(url.host, url.port, psutil.Process(process.pid), log)
        finally:
            process.stdin.close()
            assert process.wait(60) == 0, log.read_text()


def main() -> None:
    settings = ServiceSettings.model_validate_json(sys.argv[1])
    with open_history() as history:
        ingester = Ingester(history.database)
        ingester.catch_up()
        keeping = IngestThread(ingester, settings.history.poll_every_s)
        keeping.start()
        try:
            http = settings.http.model_copy(update={"port": find_port()})
            app = create_app(settings, history, FakeCluster())
            with closing(HttpServer(app, http, settings.limits.stalled_s)):
                print(f"http://127.0.0.1:{http.port}", flush=True)
                sys.stdin.read()
        finally:
            keeping.stop()


if __name__ == "__main__":
    main()
