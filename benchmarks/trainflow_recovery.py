"""TrainFlow's recovery: a hot spare takes the rank of a killed worker in place.

    python -m benchmarks.trainflow_recovery --kills 3

Process: the harness; the run is on a Ray cluster of its own.
"""

import argparse
import os
import shutil
import tempfile
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from benchmarks.peers.events import EventTail
from benchmarks.peers.killing import (
    Harness,
    KillPlan,
    execute_kills,
    kill_process,
    stop_process,
)
from benchmarks.peers.samples import Kill, RecoverySample, summarize, to_samples
from trainflow.clock import SYSTEM_CLOCK
from trainflow.config.job import JobConfig
from trainflow.coordination.driver import Run, connect, disconnect, start_run
from trainflow.coordination.local_cluster import LocalCluster

if TYPE_CHECKING:
    from trainflow.coordination.local_node import LocalNode

NUM_MEMBERS = 3
HANG_TIMEOUT_S = 3.0
_NODE_CPUS = 2
_POLL_S = 0.1
_TIMEOUT_S = 120.0

Victim = Literal["process", "node", "hang"]
RunEvent = dict[str, Any]


@dataclass(frozen=True)
class Scenario:
    """What is done to a run.

    Attributes:
        victim: a member's process is killed, or its whole node; or its process is stopped, and
            lives on until its Keeper kills it.
        num_spares: hot spares that stand by.
        num_nodes: simulated nodes; with 0 everything is on the head's.
        num_members: ranks that train.
    """

    victim: Victim = "process"
    num_spares: int = 2
    num_nodes: int = 0
    num_members: int = NUM_MEMBERS


WITH_SPARES = Scenario()
WITHOUT_SPARES = Scenario(num_spares=0)
NODE_LOSS = Scenario("node", num_nodes=3)
HANG = Scenario("hang")


def make_job(log_dir: Path, scenario: Scenario) -> JobConfig:
    """Describe the run: the shared workload, longer than any measurement."""
    hang_timeout_s = HANG_TIMEOUT_S if scenario.victim == "hang" else "auto"
    return JobConfig.model_validate(
        {
            "name": "bench-recovery",
            "entrypoint": "benchmarks.recovery_job:train",
            "args": {"log_dir": str(log_dir)},
            "training": {"max_steps": 100_000, "global_batch_size": 12, "microbatch_size": 4},
            "data": {"dataset": "benchmarks.recovery_job:open_dataset"},
            "workers": {
                "minimum": 1,
                "target": scenario.num_members,
                "spares": scenario.num_spares,
            },
            "failures": {"max_failures": None, "hang_timeout_s": hang_timeout_s},
        }
    )


@dataclass
class Ground:
    """A cluster that runs are started on, one after the other."""

    cluster: LocalCluster

    def start(self, job: JobConfig) -> Run:
        """Start a job; returns at once."""
        return start_run(job)


@contextmanager
def own_ground(home: Path, scenario: Scenario) -> Generator[Ground]:
    """Start a fresh cluster; it and its runs are gone afterwards."""
    os.environ["TRAINFLOW_HOME"] = str(home)
    head_cpus = 0 if scenario.num_nodes else scenario.num_members + scenario.num_spares
    with LocalCluster.start(
        head_cpus=head_cpus, num_nodes=scenario.num_nodes, node_cpus=_NODE_CPUS
    ) as cluster:
        connect(cluster.address)
        try:
            yield Ground(cluster)
        finally:
            disconnect()


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


@dataclass(frozen=True)
class Subject:
    """A run that is broken.

    Attributes:
        run: it.
        cluster: what it is on, and nothing else.
        log_dir: where its ranks write their events.
        scenario: what is done to it.
    """

    run: Run
    cluster: LocalCluster
    log_dir: Path
    scenario: Scenario


def measure(
    num_kills: int, seed: int, work_dir: Path, scenario: Scenario = WITH_SPARES
) -> list[RecoverySample]:
    """Start a run and break it; see `break_members`."""
    log_dir = work_dir / "events"
    log_dir.mkdir(parents=True, exist_ok=True)
    with own_ground(work_dir / "home", scenario) as ground:
        run = ground.start(make_job(log_dir, scenario))
        return break_members(Subject(run, ground.cluster, log_dir, scenario), num_kills, seed)


def break_members(subject: Subject, num_kills: int, seed: int) -> list[RecoverySample]:
    """Break a member ``num_kills`` times, at seeded random phases of its step.

    Before each time the spares are back, without spares the world has grown back, and a node that
    was killed is replaced.

    Raises:
        TimeoutError: the run did not settle or did not recover in time.
    """
    run, scenario = subject.run, subject.scenario
    nodes = NodeKiller(run, subject.cluster)
    breakers: dict[Victim, Callable[[int], None]] = {
        "process": kill_process,
        "node": nodes.kill,
        "hang": stop_process,
    }
    kills: list[Kill] = []
    with closing(EventTail(subject.log_dir)) as tail:
        for number in range(num_kills):
            nodes.replace_dead()
            _wait_until_full(run, scenario)
            nodes.locate()
            plan = KillPlan(1, seed * 1000 + number, num_processes=scenario.num_members)
            harness = Harness(tail, SYSTEM_CLOCK, lambda: None, breakers[scenario.victim])
            kills += execute_kills(plan, harness)
        events = _wait_until_recorded(run, kills)
        samples = to_samples(tail.poll(), kills, ())
    return [
        complete_sample(sample, kill, events, scenario)
        for sample, kill in zip(samples, kills, strict=True)
    ]


def complete_sample(
    sample: RecoverySample, kill: Kill, events: Sequence[RunEvent], scenario: Scenario
) -> RecoverySample:
    """Add what only the coordinator's record of a recovery tells: its phases, and the verdict."""
    recovered = find_recovered(events, kill)
    assert recovered is not None, "the caller has waited for it"
    detect_s = None
    if scenario.victim == "hang":
        verdicts_s = [e["at_s"] for e in events if e["kind"] == "hang" and e["at_s"] > kill.unix_s]
        if not verdicts_s:
            raise ValueError(f"the stop of pid {kill.pid} at {kill.unix_s} led to no verdict")
        detect_s = min(verdicts_s) - kill.unix_s
    return replace(sample, phases=_phases(kill, sample, recovered["data"]), detect_s=detect_s)


def find_recovered(events: Sequence[RunEvent], kill: Kill) -> RunEvent | None:
    """Return the coordinator's record of the first recovery that it began after ``kill``."""
    later = [
        event
        for event in events
        if event["kind"] == "recovered" and event["data"]["noticed_at_s"] > kill.unix_s
    ]
    return min(later, key=lambda event: event["data"]["noticed_at_s"], default=None)


def wait_for_status(
    run: Run,
    what: str,
    reached: Callable[[dict[str, Any]], bool],
    timeout_s: float = _TIMEOUT_S,
) -> dict[str, Any]:
    """Return the run's status once it satisfies ``reached``.

    Raises:
        TimeoutError: it did not in time, or has ended; names ``what`` was waited for.
    """
    deadline_s = SYSTEM_CLOCK.monotonic_s() + timeout_s
    while not reached(status := run.status()):
        if status["ending"] is not None or SYSTEM_CLOCK.monotonic_s() > deadline_s:
            stands = f"{status['state']}, {status['ending']}"
            raise TimeoutError(f"the run did not {what} within {timeout_s:g} s: it is {stands}")
        SYSTEM_CLOCK.sleep(_POLL_S)
    return status


def _wait_until_full(run: Run, scenario: Scenario) -> None:
    """Wait until every member and spare is warm."""
    full = ("running", scenario.num_members, scenario.num_spares)
    wait_for_status(
        run,
        "grow full",
        lambda status: (status["state"], status["world_size"], status["spares"]) == full,
    )


def _wait_until_recorded(run: Run, kills: Sequence[Kill]) -> list[RunEvent]:
    """Return the run's events, once the last recovery is among them."""
    status = wait_for_status(
        run,
        "record a recovery",
        lambda status: find_recovered(status["events"], kills[-1]) is not None,
    )
    return status["events"]


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
    parser.add_argument("--victim", choices=get_args(Victim), default="process")
    parser.add_argument("--nodes", type=int, default=0, help="simulated nodes; 3 to kill them")
    arguments = parser.parse_args()
    scenario = Scenario(arguments.victim, arguments.spares, arguments.nodes)
    work_dir = Path(tempfile.mkdtemp(prefix="trainflow-recovery-"))
    try:
        samples = measure(arguments.kills, arguments.seed, work_dir, scenario)
        print(summarize(f"trainflow, {arguments.spares} spares, {arguments.victim}", samples))
    finally:
        shutil.rmtree(work_dir, ignore_errors=True)


if __name__ == "__main__":
    main()
