"""A run on hosts in network namespaces, whose links and processes others disturb.

Process: the benchmark.  The run's driver is a process on the head's host.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from trainflow.clock import SYSTEM_CLOCK
from trainflow.config.job import JobConfig
from trainflow.coordination.chaos.net_hosts import HEAD, NetHosts
from trainflow.coordination.local_cluster import LocalCluster

WITHIN_S = 240.0
_POLL_S = 0.1

Lines = list[dict[str, Any]]


class NetRun:
    """Its record is read where it is written: nothing is asked of it over the network meanwhile.

    Attributes:
        job: what runs.
    """

    def __init__(self, hosts: NetHosts, cluster: LocalCluster, work_dir: Path, job: JobConfig):
        """Start the run.

        Args:
            hosts: where the cluster is.
            cluster: the cluster.
            work_dir: gets the driver's files; its folder ``home`` is ``TRAINFLOW_HOME``.
            job: what runs.
        """
        self.job = job
        self._hosts, self._address = hosts, cluster.address
        self._env = os.environ | {
            "RAY_AUTH_MODE": "disabled",
            "TRAINFLOW_HOME": str(work_dir / "home"),
        }
        (work_dir / "job.yaml").write_text(job.model_dump_json())
        self._runs = work_dir / "home" / "runs"
        self._log = work_dir / "driver.log"
        with self._log.open("wb") as log:
            self._driver = subprocess.Popen(
                self._command("run", str(work_dir / "job.yaml")),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._env,
            )

    def workers(self) -> Lines:
        """Ask the coordinator for its workers; members come first, by rank."""
        command = self._command("workers", "--output", "json")
        done = subprocess.run(command, env=self._env, capture_output=True, text=True, check=True)
        return json.loads(done.stdout)["workers"]

    def read(self, name: str) -> Lines:
        """Return what is whole of a file of the run's record."""
        lines: Lines = []
        for path in self._runs.glob(f"*/{name}.jsonl"):
            whole, _, _ = path.read_text().rpartition("\n")
            lines += [json.loads(line) for line in whole.splitlines()]
        return lines

    def events(self, *kinds: str) -> Lines:
        """Return the events of these kinds so far."""
        return [event for event in self.read("events") if event["kind"] in kinds]

    def wait(self, reached: Callable[[], object], within_s: float = WITHIN_S) -> None:
        """Look again and again until something is so.

        Raises:
            AssertionError: it isn't in time, or the driver has left; says what has happened.
        """
        deadline_s = SYSTEM_CLOCK.monotonic_s() + within_s
        while not reached():
            left_s = deadline_s - SYSTEM_CLOCK.monotonic_s()
            assert self._driver.poll() is None, f"the driver left: {self._log.read_text()[-3000:]}"
            assert left_s > 0, [event["text"] for event in self.read("events")]
            SYSTEM_CLOCK.sleep(_POLL_S)

    def has_trained_for(self, duration_s: float) -> bool:
        """Whether so much time has passed since the first step was committed."""
        times_s = [step["committed_at_s"] for step in self.read("metrics")]
        return bool(times_s) and times_s[-1] - times_s[0] > duration_s

    def stop(self) -> int:
        """Stop the run; returns the driver's exit code."""
        self._driver.send_signal(signal.SIGTERM)
        return self._driver.wait(WITHIN_S)

    def kill(self) -> None:
        """End the driver, whatever it does."""
        self._driver.kill()
        self._driver.wait()

    def _command(self, *words: str) -> list[str]:
        command = [sys.executable, "-m", "trainflow", *words, "--address", self._address]
        return self._hosts.command(HEAD, command)
