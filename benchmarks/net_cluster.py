"""A Ray cluster over hosts of their own: a head on the first, and nodes on others.

Process: the benchmark.  Blocks: until a node has registered.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.net_hosts import NetHosts
from trainflow.clock import SYSTEM_CLOCK
from trainflow.coordination.local_cluster import LocalNode

HEAD = 0
_PORT = 6379
_OBJECT_STORE_BYTES = 128 * 1024 * 1024
_START_WITHIN_S = 90.0
_FEW_PROCESSES = ["--disable-usage-stats", "--include-dashboard=false"]


class NetCluster:
    """The nodes, by host."""

    def __init__(self, hosts: NetHosts):
        self._hosts = hosts
        self._nodes: dict[int, LocalNode] = {}

    @property
    def address(self) -> str:
        """What drivers on the head's host connect to."""
        return f"{self._hosts.address(HEAD)}:{_PORT}"

    def pids(self) -> dict[str, int]:
        """Return by address the pid of which each node's processes are children."""
        return {self._hosts.address(host): node.pid for host, node in self._nodes.items()}

    def start_head(self) -> None:
        """Start the head, which takes no workers, and wait for it."""
        self._start(HEAD, ["--head", f"--port={_PORT}", "--num-cpus=0", *_FEW_PROCESSES])
        self.wait_started(HEAD)

    def start_node(self, host: int, cpus: int) -> None:
        """Begin to start a node."""
        self._start(host, [f"--address={self.address}", f"--num-cpus={cpus}"])

    def wait_started(self, host: int) -> None:
        """Wait until a node has registered.

        Raises:
            RuntimeError: it did not come up; holds what it printed last.
        """
        node = self._nodes[host]
        log = node.temp_dir / "ray-start.log"
        deadline_s = SYSTEM_CLOCK.monotonic_s() + _START_WITHIN_S
        while "Ray runtime started" not in log.read_text():
            if node.process.poll() is not None or SYSTEM_CLOCK.monotonic_s() > deadline_s:
                raise RuntimeError(f"host {host}: Ray did not start: {log.read_text()[-2000:]}")
            SYSTEM_CLOCK.sleep(0.05)

    def stop(self) -> None:
        """End every process, the head's last, and remove the files."""
        for host in sorted(self._nodes, reverse=True):
            node = self._nodes.pop(host)
            node.stop()
            shutil.rmtree(node.temp_dir, ignore_errors=True)

    def _start(self, host: int, arguments: list[str]) -> None:
        temp_dir = Path(tempfile.mkdtemp(prefix="tf-", dir="/tmp"))
        ray = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block"]
        ray += [f"--temp-dir={temp_dir}", f"--object-store-memory={_OBJECT_STORE_BYTES}"]
        ray += [f"--node-ip-address={self._hosts.address(host)}", *arguments]
        with (temp_dir / "ray-start.log").open("wb") as log:
            process = subprocess.Popen(
                self._hosts.command(host, ray),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, "RAY_AUTH_MODE": "disabled", "GLOO_SOCKET_IFNAME": "eth0"},
            )
        self._nodes[host] = LocalNode(process, temp_dir, self._hosts.address(host))


@contextmanager
def net_cluster(hosts: NetHosts, num_nodes: int, node_cpus: int) -> Generator[NetCluster]:
    """Start a head and nodes; every process is gone afterwards."""
    cluster = NetCluster(hosts)
    try:
        cluster.start_head()
        for host in range(1, num_nodes + 1):
            cluster.start_node(host, node_cpus)
        for host in range(1, num_nodes + 1):
            cluster.wait_started(host)
        yield cluster
    finally:
        cluster.stop()
