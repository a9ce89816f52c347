"""TrainFlow's recovery: a hot spare takes the rank of a killed worker in place.

    python -m benchmarks.trainflow_recovery --kills 3

Process: the harness; the run is on a Ray cluster of its own.
"""

import argparse
import os
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray

from benchmarks.peers.events import EventTail
from benchmarks.peers.killing import Harness, KillPlan, execute_kills, kill_process
from benchmarks.peers.samples import Kill, RecoverySample, summarize, to_samples
from trainflow.clock import SYSTEM_CLOCK
from trainflow.config.job import JobConfig
from trainflow.coordination.driver import Run, connect, start_run
from trainflow.coordination.local_cluster import LocalCluster, LocalNode

NUM_MEMBERS = 3
_NODE_CPUS = 2
_POLL_S = 0.1
_TIMEOUT_S = 120.0


def make_job(log_dir: Path, num_spares: int) -> JobConfig:
    """Describe the run: the shared workload, longer than any measurement."""
    return JobConfig.model_validate(
        {
            "name": "bench-recovery",
            "entrypoint": "benchmarks.recovery_job:train",
            "args": {"log_dir": str(log_dir)},
            "training": {"max_steps": 100_000, "global_batch_size": 12, "microbatch_size": 4},
            "data": {"dataset": "benchmarks.recovery_job:open_dataset"},
            "workers": {"minimum": 1, "target": NUM_MEMBERS, "spares": num_spares},
            "failures": {"max_failures": None},
        }
    )


@contextmanager
def running(job: JobConfig, home: Path, num_nodes: int) -> Generator[tuple[Run, LocalCluster]]:
    """Run a job on a fresh cluster of its own; both are gone afterwards."""
    os.environ["TRAINFLOW_HOME"] = str(home)
    head_cpus = 0 if num_nodes else job.workers.target + job.workers.spares
    with LocalCluster.start(
        head_cpus=head_cpus, num_nodes=num_nodes, node_cpus=_NODE_CPUS
    ) as cluster:
        connect(cluster.address)
        try:
            yield start_run(job), cluster
        finally:
            ray.shutdown()


class NodeKiller:
    """Kills the whole node of a member: raylet, Keeper and every worker, without a word."""

    def __init__(self, run: Run, cluster: LocalCluster):
        self._run = run
        self._cluster = cluster
        self._dead: list[LocalNode] = []
        self._node_of: dict[int, LocalNode] = {}

    def replace_dead(self) -> None:
        """Start a node in the place of each that was killed."""
        for node in self._dead:
            self._cluster.replace(node, _NODE_CPUS)
        self._dead = []

    def locate(self) -> None:
        """Note which node each worker is on."""
        by_host = {node.host: node for node in self._cluster.nodes}
        self._node_of = {
            worker["pid"]: by_host[worker["host"]]
            for worker in self._run.workers()
            if worker["host"] in by_host
        }

    def kill(self, pid: int) -> None:
        """Kill the node that ``pid`` runs on."""
        node = self._node_of[pid]
        node.kill()
        self._dead.append(node)


def measure(
    num_kills: int, seed: int, work_dir: Path, num_spares: int = 2, num_nodes: int = 0
) -> list[RecoverySample]:
    """Kill a member ``num_kills`` times, at seeded random phases of its step.

    Before each kill the spares are back; without spares, the world has grown back. With
    ``num_nodes`` simulated nodes, the member's whole node is killed, and replaced before the next.

    Raises:
        TimeoutError: the run did not settle or did not recover in time.
    """
    log_dir = work_dir / "events"
    log_dir.mkdir(parents=True, exist_ok=True)
    tail = EventTail(log_dir)
    kills: list[Kill] = []
    job = make_job(log_dir, num_spares)
    with running(job, work_dir / "home", num_nodes) as (run, cluster):
        nodes = NodeKiller(run, cluster)
        kill = nodes.kill if num_nodes else kill_process
        for number in range(num_kills):
            nodes.replace_dead()
            _wait_until_full(run, num_spares)
            nodes.locate()
            plan = KillPlan(1, seed * 1000 + number, num_processes=NUM_MEMBERS)
            kills += execute_kills(plan, Harness(tail, SYSTEM_CLOCK, lambda: None, kill))
        _wait_until_recorded(run, num_kills)
        recovered = [e["data"] for e in run.status()["events"] if e["kind"] == "recovered"]
    tail.close()
    samples = to_samples(tail.events, kills, ())
    return [
        replace(sample, phases=_phases(kill, sample, data), steps_lost=data["steps_lost"])
        for sample, kill, data in zip(samples, kills, recovered, strict=True)
    ]


def _wait_until_full(run: Run, num_spares: int) -> None:
    """Wait until every member and spare is warm."""
    deadline_s = SYSTEM_CLOCK.monotonic_s() + _TIMEOUT_S
    while SYSTEM_CLOCK.monotonic_s() < deadline_s:
        status = run.status()
        full = status["world_size"] == NUM_MEMBERS and status["spares"] == num_spares
        if status["state"] == "running" and full:
            return
        SYSTEM_CLOCK.sleep(_POLL_S)
    raise TimeoutError(f"the run was not full again within {_TIMEOUT_S:g} s")


def _wait_until_recorded(run: Run, num_kills: int) -> None:
    deadline_s = SYSTEM_CLOCK.monotonic_s() + _TIMEOUT_S
    while sum(e["kind"] == "recovered" for e in run.status()["events"]) < num_kills:
        if SYSTEM_CLOCK.monotonic_s() > deadline_s:
            raise TimeoutError("a recovery is missing from the event log")
        SYSTEM_CLOCK.sleep(_POLL_S)


def _phases(kill: Kill, sample: RecoverySample, data: dict[str, Any]) -> dict[str, float]:
    """Cut a recovery where the coordinator's record of it says."""
    return {
        "seen": data["noticed_at_s"] - kill.unix_s,
        "freed": data["freed_s"],
        "groups": data["connected_s"] - data["freed_s"],
        "parked": data["parked_s"] - data["connected_s"],
        "epoch": data["begun_at_s"] - data["noticed_at_s"] - data["parked_s"],
        "heal": data["healed_at_s"] - data["begun_at_s"],
        "first_step": kill.unix_s + sample.recovery_s - data["healed_at_s"],
    }


def main() -> None:
    """Measure alone and print the samples."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--spares", type=int, default=2)
    parser.add_argument("--nodes", type=int, default=0, help="kill whole simulated nodes")
    arguments = parser.parse_args()
    work_dir = Path(tempfile.mkdtemp(prefix="trainflow-recovery-"))
    try:
        samples = measure(
            arguments.kills, arguments.seed, work_dir, arguments.spares, arguments.nodes
        )
        print(summarize(f"trainflow, {arguments.spares} spares", samples))
    finally:
        shutil.rmtree(work_dir, ignore_errors=True)


if __name__ == "__main__":
    main()
