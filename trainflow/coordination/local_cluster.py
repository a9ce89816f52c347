"""A Ray cluster of this machine's own: a head, and if wanted several nodes, each a process tree.

A head that a driver starts inside itself (`ray.init()`) takes detached actors with it when the
driver dies. This one is separate: the driver may die, and training goes on.

Process: driver.  Blocks: until a node has registered.
"""

import ctypes
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field

from trainflow.clock import SYSTEM_CLOCK
from trainflow.coordination.abandoned_memory import remove_of_node
from trainflow.coordination.local_node import NODE_VARIABLE, LocalNode, stop_nodes
from trainflow.coordination.node_folders import NodeFolder, remove_abandoned
from trainflow.coordination.ray_reach import LOOPBACK, OF_ONE_MACHINE
from trainflow.coordination.sites import Loopback, Sites
from trainflow.coordination.topology import RACK
from trainflow.errors import CoordinationError

START_WITHIN_S = 60.0
_OBJECT_STORE_BYTES = 128 * 1024 * 1024
_PR_SET_PDEATHSIG = 1
_DASHBOARD_PORT = 8265  # Ray's own default, to which `ray job submit` turns


@dataclass
class LocalCluster:
    """A head and its nodes. A context manager: leaves no process behind, no file and no memory.

    Attributes:
        address: what other processes connect to.
        head: the head's node.
        nodes: the others.
        sites: where they are.
        dies_with_starter: nodes end in order when the thread that has started them is gone.
    """

    address: str
    head: LocalNode
    nodes: list[LocalNode] = field(default_factory=list[LocalNode])
    sites: Sites = field(default_factory=Loopback)
    dies_with_starter: bool = False
    _replaced: list[LocalNode] = field(default_factory=list[LocalNode], init=False)

    @classmethod
    def start(
        cls,
        *,
        head_cpus: float,
        num_nodes: int = 0,
        node_cpus: float = 2,
        sites: Sites = Loopback(),  # noqa: B008  it is a value
        takes_jobs: bool = False,
        dies_with_starter: bool = False,
    ) -> "LocalCluster":
        """Start a head, then ``num_nodes`` nodes beside it.

        Files of nodes whose starter was killed are removed first.

        Args:
            head_cpus: that the head declares.
            num_nodes: how many others there are.
            node_cpus: that each of them declares.
            sites: where on this machine each is.
            takes_jobs: start Ray's dashboard too, to which ``ray job submit`` talks.
            dies_with_starter: end every node when the calling thread is gone, by SIGKILL too.

        Raises:
            CoordinationError: it did not come up; holds what it printed last.
        """
        remove_abandoned()
        head = ["--head", "--port=0", *_place_dashboard(is_wanted=takes_jobs)]
        node = _start_node(sites, 0, [*head, f"--num-cpus={head_cpus:g}"], bound=dies_with_starter)
        cluster = cls(_wait_head(node), node, sites=sites, dies_with_starter=dies_with_starter)
        try:
            for _ in range(num_nodes):
                cluster.nodes.append(cluster._begin_node(len(cluster.nodes), node_cpus))
            for node in cluster.nodes:
                _wait_started(node)
        except BaseException:
            cluster.stop()
            raise
        return cluster

    def add_node(self, cpus: float) -> LocalNode:
        """Start one more node."""
        node = self._begin_node(len(self.nodes), cpus)
        self.nodes.append(node)
        _wait_started(node)
        return node

    def replace(self, dead: LocalNode, cpus: float) -> LocalNode:
        """Start a node in the place of one that was killed, under its address."""
        node = self.begin_replacing(dead, cpus)
        _wait_started(node)
        return node

    def begin_replacing(self, dead: LocalNode, cpus: float) -> LocalNode:
        """As `replace`, without waiting for the node to have registered."""
        index = self.nodes.index(dead)
        self._replaced.append(dead)
        dead.remove_files()
        self.nodes[index] = self._begin_node(index, cpus)
        return self.nodes[index]

    def stop(self) -> None:
        """End every process of the cluster, all nodes before the head, and remove its files.

        What jobs have left in shared memory goes with it, also of nodes that were replaced. A
        signal that interrupts it has what is left killed.
        """
        try:
            stop_nodes(self.nodes)
            stop_nodes([self.head])
        except BaseException:  # a signal: whoever sends it doesn't wait
            self.kill()
            raise
        finally:
            for node in [*self._replaced, *self.nodes, self.head]:
                node.remove_files()
                if node.node_id:
                    remove_of_node(node.node_id)

    def kill(self) -> None:
        """End every process of the cluster at once; `stop` removes what they leave."""
        for node in [*self.nodes, self.head]:
            node.kill()

    def __enter__(self) -> "LocalCluster":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _begin_node(self, index: int, cpus: float) -> LocalNode:
        arguments = [f"--address={self.address}", f"--num-cpus={cpus:g}"]
        return _start_node(self.sites, 1 + index, arguments, bound=self.dies_with_starter)


def _place_dashboard(*, is_wanted: bool) -> list[str]:
    """Return where Ray's dashboard is to be: where people expect it, or else at any port."""
    if not is_wanted:
        return ["--include-dashboard=false"]
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", _DASHBOARD_PORT))
        except OSError:
            return ["--include-dashboard=true", "--dashboard-port=0"]
    return ["--include-dashboard=true", f"--dashboard-port={_DASHBOARD_PORT}"]


def _wait_head(node: LocalNode) -> str:
    """Wait until the head has started; returns its address."""
    _wait_started(node)
    address_file = node.temp_dir / "ray_current_cluster"
    _wait_for(node, lambda: address_file.exists() and address_file.read_text().strip() != "")
    return address_file.read_text().strip()


def _start_node(sites: Sites, number: int, arguments: list[str], *, bound: bool) -> LocalNode:
    folder = NodeFolder()
    temp_dir = folder.path
    host, rack = sites.address(number), sites.rack(number)
    command = [
        sys.executable,
        "-m",
        "ray.scripts.scripts",
        "start",
        "--block",
        "--disable-usage-stats",
    ]
    command += [
        f"--temp-dir={temp_dir}",
        f"--object-store-memory={_OBJECT_STORE_BYTES}",
        "--dashboard-agent-listen-port=0",  # its default is one port for all nodes of a machine
        *([] if host is None else [f"--node-ip-address={host}"]),
        *([] if rack is None else [f"--labels={RACK}={rack}"]),
        *arguments,
    ]
    reach = OF_ONE_MACHINE if host == LOOPBACK else {}
    with (temp_dir / "ray-start.log").open("wb") as log:
        process = subprocess.Popen(
            sites.command(number, command),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={
                **os.environ,
                NODE_VARIABLE: str(temp_dir),
                "RAY_AUTH_MODE": "disabled",
                **reach,
            },
            pass_fds=[folder.lock],
            preexec_fn=_bind_to_starter if bound else None,  # noqa: PLW1509  one call, no lock
        )
    return LocalNode(process, temp_dir, host, folder=folder)


_prctl = ctypes.CDLL(None).prctl
"""Found before any fork: a child that looks a symbol up might wait for a lock for ever."""


def _bind_to_starter() -> None:
    """In the child: be sent what `LocalNode.stop` sends, once the thread that forked is gone."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _wait_started(node: LocalNode) -> None:
    _wait_for(node, lambda: node.has_started)
    node.note_id()  # a node that dies by itself can't be asked any more
    node.note_first()


def _wait_for(node: LocalNode, reached: Callable[[], bool]) -> None:
    """Wait for a sign of life; ends the node, and raises with its last words, if none comes."""
    try:
        _wait_until(node, reached)
    except BaseException:  # a signal, too: nobody else knows of this node yet
        node.kill()
        node.remove_files()
        raise


def _wait_until(node: LocalNode, reached: Callable[[], bool]) -> None:
    deadline_s = SYSTEM_CLOCK.monotonic_s() + START_WITHIN_S
    while not reached():
        if node.process.poll() is not None or SYSTEM_CLOCK.monotonic_s() > deadline_s:
            raise CoordinationError(
                f"Ray did not start within {START_WITHIN_S:.0f} s; expected free ports, memory "
                f"and disk space under {node.temp_dir}. It printed:\n{node.log()[-2000:]}"
            )
        SYSTEM_CLOCK.sleep(0.05)
