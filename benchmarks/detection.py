"""How soon each fault is told of on several hosts, and what is told of where there is none.

    make bench-detection           # or: python -m benchmarks.detection [--quick]

Three ranks and a spare on hosts of their own (network namespaces). One fault after another falls on
a rank or its host, several times each; when it fell is compared with when the run's record tells
of it, and with when all ranks had committed a step again. Then the run trains on for half an hour
without a fault, while a process for each core of the machine computes beside it: whatever is told
of then is a false alarm. Needs root.

Process: the harness; the run's driver is on the head's host.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.net_run import NetRun
from benchmarks.report import Row, publish
from trainflow.clock import SYSTEM_CLOCK
from trainflow.config.job import JobConfig
from trainflow.coordination.chaos.net_hosts import NetHosts, net_hosts
from trainflow.coordination.local_cluster import LocalCluster

NUM_RANKS = 3
NUM_NODES = NUM_RANKS + 1
LEASE_S = 4.0
HANG_TIMEOUT_S = 3.0
RATE, TENTH = "1gbit", "100mbit"
ALARMS = (
    *("failure", "hang", "deadlock", "straggler", "slow_network", "isolate", "link_cut"),
    *("ranks_differ", "drain", "anomaly", "detector_off", "keeper_away", "record_unwritable"),
    *("data_stall", "waited_for", "node_unheard", "forming_fails"),
)
_SPOT_CHECK_EVERY_STEPS = 20
_NOTICE = "notice-{host}"
_HEALTHY_S = 1800.0
_SETTLED_S = 15.0
"""So long after a change training has shown what is usual."""

_TOLD_WITHIN_S = 90.0
_SLICE_S = 0.03


@dataclass(frozen=True)
class Fault:
    """Something that goes wrong.

    Attributes:
        name: of the fault.
        told_by: kinds of events that tell of it.
        falls: lets it fall on a member whose host is given, until the context is left.
        is_lost: whether the member's rank goes to another.
    """

    name: str
    told_by: tuple[str, ...]
    falls: Callable[[NetHosts, int, int], Any]
    is_lost: bool = True


@contextmanager
def killed(_hosts: NetHosts, pid: int, _host: int) -> Generator[None]:
    """Kill the process."""
    os.kill(pid, signal.SIGKILL)
    yield


@contextmanager
def stopped(_hosts: NetHosts, pid: int, _host: int) -> Generator[None]:
    """Stop the process."""
    os.kill(pid, signal.SIGSTOP)
    yield


@contextmanager
def slowed(_hosts: NetHosts, pid: int, _host: int) -> Generator[None]:
    """Let the process run half of the time."""
    done = threading.Event()

    def take_turns() -> None:
        while not done.wait(_SLICE_S):
            os.kill(pid, signal.SIGSTOP)
            done.wait(_SLICE_S)
            os.kill(pid, signal.SIGCONT)

    thread = threading.Thread(target=take_turns, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


@contextmanager
def link_slowed(hosts: NetHosts, _pid: int, host: int) -> Generator[None]:
    """Let the host's link pass a tenth of what it did."""
    hosts.shape(TENTH, host)
    try:
        yield
    finally:
        hosts.shape(RATE, host)


def cut(*, sends: bool, hears: bool) -> Callable[[NetHosts, int, int], Any]:
    """Cut the host off, in one direction or in both."""

    @contextmanager
    def falls(hosts: NetHosts, _pid: int, host: int) -> Generator[None]:
        hosts.cut(host, sends=sends, hears=hears)
        try:
            yield
        finally:
            hosts.shape(RATE, host)

    return falls


@contextmanager
def cut_from_others(hosts: NetHosts, _pid: int, host: int) -> Generator[None]:
    """Cut the host off from all but the head."""
    others = [other for other in range(1, NUM_NODES + 1) if other != host]
    for other in others:
        hosts.cut_between(host, other)
    try:
        yield
    finally:
        for other in others:
            hosts.mend_between(host, other)


def under_notice(work_dir: Path) -> Callable[[NetHosts, int, int], Any]:
    """Give notice that the host's machine is to be taken back, and take that back."""

    @contextmanager
    def falls(hosts: NetHosts, _pid: int, host: int) -> Generator[None]:
        notice = work_dir / _NOTICE.replace("{host}", hosts.address(host))
        notice.write_text("600")
        try:
            yield
        finally:
            notice.unlink()

    return falls


FAULTS = (
    Fault("killed", ("failure",), killed),
    Fault("stopped", ("hang", "failure"), stopped),
    Fault("cut_off", ("failure",), cut(sends=False, hears=False)),
    Fault("deaf", ("failure",), cut(sends=True, hears=False)),
    Fault("mute", ("failure",), cut(sends=False, hears=True)),
    Fault("cut_from_others", ("link_cut",), cut_from_others),
    Fault("slow_rank", ("straggler",), slowed, is_lost=False),
    Fault("slow_link", ("slow_network",), link_slowed, is_lost=False),
)


def make_job(work_dir: Path) -> JobConfig:
    """Describe the run: the workload of the recovery benchmark, until it is stopped."""
    log_dir = work_dir / "log"
    log_dir.mkdir()
    return JobConfig.model_validate(
        {
            "name": "bench-detection",
            "entrypoint": "benchmarks.recovery_job:train",
            "args": {"log_dir": str(log_dir)},
            "training": {
                "max_steps": 1_000_000,
                "global_batch_size": 2 * NUM_RANKS,
                "microbatch_size": 2,
                "deterministic": True,
            },
            "data": {"dataset": "benchmarks.recovery_job:open_dataset"},
            "workers": {"minimum": 1, "target": NUM_RANKS, "spares": 1},
            "failures": {
                "max_failures": None,
                "isolate_after": None,
                "hang_timeout_s": HANG_TIMEOUT_S,
                "lease_s": LEASE_S,
                "spot_check_every_steps": _SPOT_CHECK_EVERY_STEPS,
                "preemption_notice": str(work_dir / _NOTICE),
            },
        }
    )


@dataclass(frozen=True)
class Told:
    """When it was told of a fault, in seconds since it fell.

    Attributes:
        told_s: when the record told of it.
        recovered_s: when all ranks had committed a step again; None where no rank was lost.
    """

    told_s: float
    recovered_s: float | None


def measure_fault(run: NetRun, hosts: NetHosts, fault: Fault, rank: int) -> Told:
    """Let a fault fall on a rank, and wait until it has been told of and borne."""
    settle(run)
    member = run.workers()[rank]
    host = hosts.number_of(member["host"])
    num_recovered = len(run.events("recovered"))
    since_s = SYSTEM_CLOCK.unix_s()

    def find() -> list[dict[str, Any]]:
        told = [each for each in run.events(*fault.told_by) if each["at_s"] >= since_s]
        names = member["worker_id"], member["host"]
        return [each for each in told if any(name in str(each) for name in names)]

    with fault.falls(hosts, member["pid"], host):
        run.wait(find, _TOLD_WITHIN_S)
        if fault.is_lost:
            run.wait(lambda: len(run.events("recovered")) > num_recovered)
    told_s = find()[0]["at_s"] - since_s
    if not fault.is_lost:
        over = [f"{kind}_over" for kind in fault.told_by]
        run.wait(lambda: any(each["at_s"] > since_s for each in run.events(*over)))
        return Told(told_s, None)
    recovered = run.events("recovered")[num_recovered]
    return Told(told_s, recovered["data"]["committed_at_s"] - since_s)


def settle(run: NetRun) -> None:
    """Wait until all ranks and a spare are there, and have been for a while."""
    states = ["member"] * NUM_RANKS + ["spare"]
    run.wait(lambda: [each["state"] for each in run.workers()] == states)
    since_s = SYSTEM_CLOCK.unix_s()
    run.wait(lambda: SYSTEM_CLOCK.unix_s() > since_s + _SETTLED_S)


@contextmanager
def loaded(num_processes: int) -> Generator[None]:
    """Have so many processes compute without end."""
    with ExitStack() as until_done:
        for _ in range(num_processes):
            burner = subprocess.Popen([sys.executable, "-c", "while True: sum(range(10_000))"])
            until_done.callback(burner.wait)
            until_done.callback(burner.kill)
        yield


def count_alarms(run: NetRun, for_s: float) -> dict[str, int]:
    """Train on under load, and count what is told of by kind."""
    settle(run)
    before = {kind: len(run.events(kind)) for kind in ALARMS}
    since_s = SYSTEM_CLOCK.unix_s()
    with loaded(os.cpu_count() or 1):
        run.wait(lambda: SYSTEM_CLOCK.unix_s() > since_s + for_s, for_s + _TOLD_WITHIN_S)
    return {kind: len(run.events(kind)) - before[kind] for kind in ALARMS}


def measure(
    hosts: NetHosts, work_dir: Path, faults: tuple[Fault, ...], *, times: int, healthy_s: float
) -> tuple[dict[str, list[Told]], dict[str, int]]:
    """Start a run, let every fault fall ``times`` times by turns, then none."""
    found: dict[str, list[Told]] = {fault.name: [] for fault in faults}
    os.environ["TRAINFLOW_HOME"] = str(work_dir / "home")
    with LocalCluster.start(head_cpus=0, num_nodes=NUM_NODES, node_cpus=1, sites=hosts) as cluster:
        hosts.shape(RATE)
        run = NetRun(hosts, cluster, work_dir, make_job(work_dir))
        try:
            run.wait(lambda: run.has_trained_for(0))
            for number in range(times):
                for fault in faults:
                    found[fault.name].append(measure_fault(run, hosts, fault, number % NUM_RANKS))
            alarms = count_alarms(run, healthy_s) if healthy_s else {}
            run.stop()
        finally:
            run.kill()
    return found, alarms


def to_rows(found: dict[str, list[Told]], alarms: dict[str, int]) -> list[Row]:
    """Reduce what was found to figures."""
    rows: list[Row] = []
    for name, each in found.items():
        told_s = [told.told_s for told in each]
        rows += [
            Row(name, "told_s", median(told_s), "s"),
            Row(name, "told_at_most_s", max(told_s), "s"),
        ]
        recovered_s = [told.recovered_s for told in each if told.recovered_s is not None]
        if recovered_s:
            rows.append(Row(name, "recovered_s", median(recovered_s), "s"))
            rows.append(Row(name, "recovered_at_most_s", max(recovered_s), "s"))
    return [*rows, *(Row("healthy", f"{kind}_alarms", n, "events") for kind, n in alarms.items())]


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one kill")
    parser.add_argument("--times", type=int, default=5, help="how often each fault falls")
    parser.add_argument("--healthy", type=float, default=_HEALTHY_S, help="seconds without any")
    arguments = parser.parse_args()
    quick: bool = arguments.quick
    work_dir = Path(tempfile.mkdtemp(prefix="detection-"))
    times, healthy_s = (1, 0.0) if quick else (arguments.times, arguments.healthy)
    notice = Fault("notice", ("drain",), under_notice(work_dir), is_lost=False)
    faults = FAULTS[:1] if quick else (*FAULTS, notice)
    with net_hosts(1 + NUM_NODES) as hosts:
        found, alarms = measure(hosts, work_dir, faults, times=times, healthy_s=healthy_s)
    shutil.rmtree(work_dir, ignore_errors=True)
    conditions = {
        "ranks": NUM_RANKS,
        "lease_s": LEASE_S,
        "hang_timeout_s": HANG_TIMEOUT_S,
        "link": RATE,
        "slow_link": TENTH,
        "healthy_s": healthy_s,
        "burning_processes": os.cpu_count(),
        "raw": {name: [vars(told) for told in each] for name, each in found.items()},
    }
    publish("detection", conditions, to_rows(found, alarms), quick=quick)


if __name__ == "__main__":
    main()
