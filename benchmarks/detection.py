"""How soon each fault is told of on several hosts, and what is told of where there is none.

    make bench-detection           # or: python -m benchmarks.detection [--quick]

Three ranks and a spare on hosts of their own (network namespaces). One fault after another falls on
a rank or its host, several times each; when it fell is compared with when the run's record tells
of it, and with when all ranks had committed a step again. Then the run trains on without a fault,
while a process for each core of the machine computes beside it: whatever is told of then is a false
alarm. A second run has limits that are derived, and isolates hosts on which workers die again and
again: that, one stopped rank, and as long without a fault. Needs root.

Process: the harness; the run's driver is on the head's host.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.detection_faults import (
    KILLED,
    NOTICE,
    RATE,
    TENTH,
    Fault,
    Victim,
    list_faults,
    signalled,
)
from benchmarks.net_run import NetRun
from benchmarks.report import Row, publish
from trainflow.cli.stop_signals import ending_in_order
from trainflow.clock import SYSTEM_CLOCK
from trainflow.computation.chaos_orders import CAMPAIGN
from trainflow.config.job import JobConfig
from trainflow.coordination.chaos.net_hosts import NetHosts, net_hosts
from trainflow.coordination.local_cluster import LocalCluster

NUM_RANKS = 3
NUM_NODES = NUM_RANKS + 1
LEASE_S = 4.0
HANG_TIMEOUT_S = 3.0
ISOLATE_AFTER = 3
ALARMS = (
    *("failure", "hang", "deadlock", "straggler", "slow_network", "isolate", "link_cut"),
    *("ranks_differ", "drain", "anomaly", "detector_off", "keeper_away", "record_unwritable"),
    *("data_stall", "waited_for", "node_unheard", "forming_fails", "watch_failed", "waiting"),
)
SET: dict[str, Any] = {"hang_timeout_s": HANG_TIMEOUT_S}
DERIVED: dict[str, Any] = {"isolate_after": ISOLATE_AFTER, "probe_after_s": 10.0}
RUNS = ("set", "derived")
"""By the limits of each: those that a job sets, and those that follow from its step times."""

_SPOT_CHECK_EVERY_STEPS = 20
_HEALTHY_S = 1800.0
_SETTLED_S = 15.0
"""So long after a change training has shown what is usual."""

_TOLD_WITHIN_S = 90.0


@dataclass(frozen=True)
class Told:
    """When it was told of a fault, in seconds since it fell.

    Attributes:
        told_s: when the record told of it.
        recovered_s: when all ranks had committed a step again; None where no rank was lost.
    """

    told_s: float
    recovered_s: float | None = None


@dataclass
class Found:
    """What was measured.

    Attributes:
        told: by the fault's name.
        alarms: texts of false ones, so that each can be judged, by kind, by the name of the run.
    """

    told: dict[str, list[Told]] = field(default_factory=dict[str, list[Told]])
    alarms: dict[str, dict[str, list[str]]] = field(default_factory=dict[str, dict[str, list[str]]])

    def add(self, name: str, told: Told) -> None:
        """Add one more time that a fault fell, and say so."""
        print(name, told, flush=True)
        self.told.setdefault(name, []).append(told)

    def keep(self, run: str, alarms: dict[str, list[str]]) -> None:
        """Add what was told of where nothing was wrong, and say so."""
        print(run, alarms, flush=True)
        self.alarms[run] = alarms

    def rows(self) -> list[Row]:
        """Reduce it to figures."""
        rows: list[Row] = []
        for name, each in self.told.items():
            told_s = [told.told_s for told in each]
            recovered_s = [told.recovered_s for told in each if told.recovered_s is not None]
            for metric, values in (("told", told_s), ("recovered", recovered_s)):
                if values:
                    rows.append(Row(name, f"{metric}_s", median(values), "s"))
                    rows.append(Row(name, f"{metric}_at_most_s", max(values), "s"))
        return rows + [
            Row(run, f"{kind}_alarms", len(texts), "events")
            for run, alarms in self.alarms.items()
            for kind, texts in alarms.items()
        ]


def make_job(work_dir: Path, failures: dict[str, Any]) -> JobConfig:
    """Describe a run that trains until it is stopped."""
    return JobConfig.model_validate(
        {
            "name": "bench-detection",
            "entrypoint": "benchmarks.detection_job:train",
            "args": {"orders_dir": str(_orders(work_dir))},
            "training": {
                "max_steps": 1_000_000,
                "global_batch_size": 2 * NUM_RANKS,
                "microbatch_size": 2,
                "deterministic": True,
            },
            "data": {"dataset": "benchmarks.detection_job:open_dataset"},
            "workers": {"minimum": 1, "target": NUM_RANKS, "spares": 1},
            "failures": {
                "max_failures": None,
                "lease_s": LEASE_S,
                "spot_check_every_steps": _SPOT_CHECK_EVERY_STEPS,
                "preemption_notice": str(work_dir / NOTICE),
                **failures,
            },
        }
    )


def measure_fault(run: NetRun, hosts: NetHosts, fault: Fault, rank: int) -> Told:
    """Let a fault fall on a rank, and wait until it has been told of and borne."""
    settle(run)
    member = run.workers()[rank]
    names = member["worker_id"], member["host"]
    victim = Victim(rank, member["pid"], hosts.number_of(member["host"]), hosts, names)
    num_recovered, num_told = len(run.events("recovered")), len(run.events(*fault.told_by))

    def find() -> list[dict[str, Any]]:
        told = run.events(*fault.told_by)[num_told:]
        return [each for each in told if fault.tells(each, victim)]

    with fault.falls(victim) as fell:
        run.wait(find, _TOLD_WITHIN_S)
        if fault.is_lost:
            run.wait(lambda: len(run.events("recovered")) > num_recovered)
    fell_at_s = fell()
    assert fell_at_s is not None, "what was told of has happened"
    told_s = find()[0]["at_s"] - fell_at_s
    if fault.over is not None:
        over = fault.over
        run.wait(lambda: any(each["at_s"] > fell_at_s for each in run.events(over)))
    if not fault.is_lost:
        return Told(told_s)
    recovered = run.events("recovered")[num_recovered]
    return Told(told_s, recovered["data"]["committed_at_s"] - fell_at_s)


def measure_isolation(run: NetRun, hosts: NetHosts, number: int) -> Told:
    """Kill the worker of a host until the host is isolated, and wait until it is taken back.

    Fewer kills will do if other workers were lost there before.
    """
    host = hosts.address(number)
    num_told = len(run.events("isolate"))
    fell_at_s = 0.0

    def find() -> list[float]:
        told = run.events("isolate")[num_told:]
        return [each["at_s"] for each in told if each["data"]["host"] == host]

    settle(run, 0.0)
    for _ in range(ISOLATE_AFTER):
        (worker,) = [each for each in run.workers() if each["host"] == host]
        lost = f"lost {worker['worker_id']} "
        fell_at_s = SYSTEM_CLOCK.unix_s()
        os.kill(worker["pid"], signal.SIGKILL)
        run.wait(lambda lost=lost: any(e["text"].startswith(lost) for e in run.events("failure")))
        settle(run, 0.0)  # of an isolated host that is once it has been taken back
        if find():
            break
    return Told(find()[0] - fell_at_s)


def settle(run: NetRun, for_s: float = _SETTLED_S) -> None:
    """Wait until all ranks and a spare are there, and have been for a while."""
    states = ["member"] * NUM_RANKS + ["spare"]
    run.wait(lambda: [each["state"] for each in run.workers()] == states)
    since_s = SYSTEM_CLOCK.unix_s()
    run.wait(lambda: SYSTEM_CLOCK.unix_s() >= since_s + for_s)


@contextmanager
def loaded(num_processes: int) -> Generator[None]:
    """Have so many processes compute without end."""
    with ExitStack() as until_done:
        for _ in range(num_processes):
            burner = subprocess.Popen([sys.executable, "-c", "while True: sum(range(10_000))"])
            until_done.callback(burner.wait)
            until_done.callback(burner.kill)
        yield


def gather_alarms(run: NetRun, for_s: float) -> dict[str, list[str]]:
    """Train on under load, and gather the texts of what is told of by kind.

    Raises:
        AssertionError: it stood still for longer than a fault may go untold: that isn't healthy.
    """
    settle(run)
    before = {kind: len(run.events(kind)) for kind in ALARMS}
    since_s = SYSTEM_CLOCK.unix_s()
    with loaded(os.cpu_count() or 1):
        run.wait(lambda: SYSTEM_CLOCK.unix_s() > since_s + for_s, for_s + _TOLD_WITHIN_S)
    committed_s = [
        each for step in run.read("metrics") if (each := step["committed_at_s"]) > since_s
    ]
    longest_s = max(b - a for a, b in pairwise([since_s, *committed_s, SYSTEM_CLOCK.unix_s()]))
    assert longest_s < _TOLD_WITHIN_S, f"no step for {longest_s:.0f} s, and nothing was to be wrong"
    return {kind: [each["text"] for each in run.events(kind)[before[kind] :]] for kind in ALARMS}


@contextmanager
def running(
    hosts: NetHosts, cluster: LocalCluster, work_dir: Path, failures: dict[str, Any]
) -> Generator[NetRun]:
    """Start a run, and stop it at the end."""
    run = NetRun(hosts, cluster, work_dir, make_job(work_dir, failures))
    try:
        run.wait(lambda: run.has_trained_for(0))
        yield run
        run.stop()
    finally:
        run.kill()


@contextmanager
def cluster_on(hosts: NetHosts, work_dir: Path) -> Generator[LocalCluster]:
    """Start a cluster on the hosts, with folders for orders in reach of its workers."""
    _orders(work_dir).mkdir()
    os.environ |= {CAMPAIGN: str(_campaign(work_dir)), "TRAINFLOW_HOME": str(work_dir / "home")}
    with LocalCluster.start(head_cpus=0, num_nodes=NUM_NODES, node_cpus=1, sites=hosts) as cluster:
        hosts.shape(RATE)
        yield cluster


def _orders(work_dir: Path) -> Path:
    return work_dir / "orders"


def _campaign(work_dir: Path) -> Path:
    return work_dir / "campaign"


def measure_with_limits_set(
    hosts: NetHosts, work_dir: Path, faults: tuple[Fault, ...], times: int, healthy_s: float
) -> Found:
    """Let every fault fall ``times`` times by turns, then none."""
    found = Found()
    with cluster_on(hosts, work_dir) as cluster, running(hosts, cluster, work_dir, SET) as run:
        for number in range(times):
            for fault in faults:
                found.add(fault.name, measure_fault(run, hosts, fault, number % NUM_RANKS))
        if healthy_s:
            found.keep("healthy", gather_alarms(run, healthy_s))
    return found


def measure_with_limits_derived(
    hosts: NetHosts, work_dir: Path, times: int, healthy_s: float
) -> Found:
    """Stop ranks, and have hosts be isolated; then let nothing happen."""
    found = Found()
    stopped = Fault("stopped_auto", ("hang", "failure"), signalled(signal.SIGSTOP))
    with cluster_on(hosts, work_dir) as cluster, running(hosts, cluster, work_dir, DERIVED) as run:
        for number in range(times):
            found.add(stopped.name, measure_fault(run, hosts, stopped, number % NUM_RANKS))
            found.add("flapping", measure_isolation(run, hosts, 1 + number % NUM_NODES))
        if healthy_s:
            found.keep("healthy_auto", gather_alarms(run, healthy_s))
    return found


def measure(times: int, healthy_s: float, only: str | None, *, quick: bool) -> Found:
    """Measure both runs, or one of `RUNS`, each in a folder of its own, which is removed."""
    found, derived = Found(), Found()
    work_dirs = [Path(tempfile.mkdtemp(prefix="detection-")) for _ in range(2)]
    with ExitStack() as until_done, net_hosts(1 + NUM_NODES) as hosts:
        for work_dir in work_dirs:
            until_done.callback(shutil.rmtree, work_dir, ignore_errors=True)
        first, second = work_dirs
        if quick:
            return measure_with_limits_set(hosts, first, (KILLED,), 1, 0.0)
        if only != "derived":
            faults = list_faults(first, _orders(first), _campaign(first))
            found = measure_with_limits_set(hosts, first, faults, times, healthy_s / 2)
        if only != "set":
            derived = measure_with_limits_derived(hosts, second, times, healthy_s / 2)
    return Found(found.told | derived.told, found.alarms | derived.alarms)


@ending_in_order()
def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    part = parser.add_mutually_exclusive_group()
    part.add_argument("--quick", action="store_true", help="one kill")
    parser.add_argument("--times", type=int, default=3, help="how often each fault falls")
    parser.add_argument(
        "--healthy", type=float, default=_HEALTHY_S, help="seconds without any, of both runs"
    )
    part.add_argument(
        "--only", choices=RUNS, help="one of the runs, by its limits; its result is not kept"
    )
    arguments = parser.parse_args()
    quick: bool = arguments.quick
    times, healthy_s = (1, 0.0) if quick else (arguments.times, arguments.healthy)
    found = measure(times, healthy_s, arguments.only, quick=quick)
    conditions = {
        "ranks": NUM_RANKS,
        "lease_s": LEASE_S,
        "hang_timeout_s": HANG_TIMEOUT_S,
        "isolate_after": ISOLATE_AFTER,
        "spot_check_every_steps": _SPOT_CHECK_EVERY_STEPS,
        "link": RATE,
        "slow_link": TENTH,
        "healthy_s": healthy_s,
        "burning_processes": os.cpu_count(),
        "raw": {name: [vars(told) for told in each] for name, each in found.told.items()},
        "alarms": found.alarms,
    }
    publish("detection", conditions, found.rows(), quick=quick or arguments.only is not None)


if __name__ == "__main__":
    main()
