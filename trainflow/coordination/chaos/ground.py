"""The cluster that a campaign's runs are on: one of its own on this machine, or one that is there.

Process: driver.  Thread: main.  Blocks: while nodes start and end.
"""

import os
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import ray

from trainflow.clock import SYSTEM_CLOCK, Clock
from trainflow.computation.chaos_orders import CAMPAIGN
from trainflow.config.chaos_plan import ChaosPlan
from trainflow.config.job import JobConfig
from trainflow.coordination import names
from trainflow.coordination.chaos.fitting import ENDPOINT, cpus_of_a_node
from trainflow.coordination.chaos.net_hosts import HEAD, NetHosts, net_hosts
from trainflow.coordination.chaos.record_disk import RecordDisk
from trainflow.coordination.chaos.scene import OwnCluster
from trainflow.coordination.chaos.store_proxy import StoreProxy
from trainflow.coordination.driver import Run, connect, disconnect, start_run
from trainflow.coordination.local_cluster import LocalCluster
from trainflow.coordination.sites import Loopback
from trainflow.errors import ConfigError, CoordinationError, UnreachableError

HOME = "TRAINFLOW_HOME"
_RUNS_END_WITHIN_S = 20.0
_LOOK_EVERY_S = 0.2


@dataclass
class Ground:
    """A cluster that this process is connected to.

    Attributes:
        folder: of the campaign.
        own: what was started for it; None where the cluster was there.
        runs: that were started.
    """

    folder: Path
    own: OwnCluster | None = None
    runs: list[Run] = field(default_factory=list[Run])

    def start(self, job: JobConfig) -> Run:
        """Start a job whose workers take part in the campaign; returns at once."""
        if self.own is None:  # its nodes don't have our environment
            environment = dict(job.runtime_env)
            variables = {**environment.get("env_vars", {}), CAMPAIGN: str(self.folder)}
            job = job.model_copy(update={"runtime_env": environment | {"env_vars": variables}})
        disk = None if self.own is None else self.own.disk
        with _environment(HOME, str(disk.folder if disk else names.home())):
            run = start_run(job)
        self.runs.append(run)
        return run


@contextmanager
def open_ground(
    folder: Path, plan: ChaosPlan, job: JobConfig, address: str | None
) -> Generator[Ground]:
    """Connect to the cluster at ``address``, or start one; what was started is ended.

    Raises:
        UnreachableError: none answers there.
        ConfigError: it has nodes that are not on this machine.
        CoordinationError: none could be started.
    """
    if address is None:
        with _own_ground(folder, plan, job) as ground:
            yield ground
        return
    ground = Ground(folder)
    try:
        connect(address)
        _require_local(address)
        with _ending_runs(ground):
            yield ground
    finally:
        disconnect()


@contextmanager
def _own_ground(folder: Path, plan: ChaosPlan, job: JobConfig) -> Generator[Ground]:
    cpus = cpus_of_a_node(plan, job)
    ground = Ground(folder)
    with (
        _proxied_store(plan) as proxy,
        _record_disk(folder, plan) as disk,
        _hosts(plan) as hosts,
        _environment(CAMPAIGN, str(folder)),
        LocalCluster.start(
            head_cpus=0,
            num_nodes=plan.cluster.nodes,
            node_cpus=cpus,
            sites=hosts or Loopback(),
            dies_with_starter=True,
        ) as cluster,
    ):
        ground.own = OwnCluster(cluster, cpus, proxy, disk, hosts)
        try:
            connect(cluster.address)
            with _ending_runs(ground):
                yield ground
        finally:
            disconnect()


@contextmanager
def _ending_runs(ground: Ground) -> Generator[None]:
    """Where the campaign ends early, have its runs end in order, so that their records tell."""
    try:
        yield
    except BaseException:
        end_runs(ground.runs, SYSTEM_CLOCK)
        raise


def end_runs(runs: Sequence[Run], clock: Clock) -> None:
    """Stop runs, and wait a while until they have closed what they ran; not for what is over."""
    deadline_s = clock.monotonic_s() + _RUNS_END_WITHIN_S
    for run in reversed(runs):
        is_told = False
        while clock.monotonic_s() < deadline_s:
            try:
                if not is_told:
                    run.stop()
                    is_told = True
                if run.status()["ending"] is not None:
                    run.retire()
                    break
            except UnreachableError:
                pass  # it may be restarting
            except CoordinationError:
                break
            clock.sleep(_LOOK_EVERY_S)


@contextmanager
def _proxied_store(plan: ChaosPlan) -> Generator[StoreProxy | None]:
    """Have processes that are started meanwhile reach the S3 server through a proxy, if need be."""
    if not plan.has("hang_store"):
        yield None
        return
    with closing(StoreProxy(os.environ[ENDPOINT])) as proxy, _environment(ENDPOINT, proxy.endpoint):
        yield proxy


@contextmanager
def _record_disk(folder: Path, plan: ChaosPlan) -> Generator[RecordDisk | None]:
    """Have a file system for records, if need be; what is on it is kept with the others."""
    if not plan.has("fill_disk"):
        yield None
        return
    disk = RecordDisk(folder / "disk")
    try:
        yield disk
    finally:
        disk.close(names.home())


@contextmanager
def _hosts(plan: ChaosPlan) -> Generator[NetHosts | None]:
    """Have a host for each node, if need be, and be on the head's: where its address is known."""
    if not plan.has("partition"):
        yield None
        return
    with net_hosts(1 + plan.cluster.nodes) as hosts, hosts.entered(HEAD):
        yield hosts


@contextmanager
def _environment(name: str, value: str) -> Generator[None]:
    """Set a variable for processes that are started meanwhile."""
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        if before is None:
            del os.environ[name]
        else:
            os.environ[name] = before


def _require_local(address: str) -> None:
    """Refuse a cluster with nodes elsewhere: processes are killed by their pids on this machine."""
    own = {each.address for found in psutil.net_if_addrs().values() for each in found}
    nodes: set[str] = {node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
    away = sorted(each for each in nodes - own if not each.startswith("127."))
    if away:
        raise ConfigError(
            f"--address: got {address!r}, with nodes on other machines ({', '.join(away)}), "
            "expected all of them on this one, where processes can be killed; run the campaign on "
            "a cluster of one machine, or leave --address out"
        )
