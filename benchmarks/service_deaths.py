"""What the service still answers while it, a job's coordinator or Ray's head is killed.

    make bench-service-deaths      # or: python -m benchmarks.service_deaths [--quick]

A job of two ranks and a spare trains on a cluster of its own; the service is beside it, with two
replicas, as `trainflow serve` deploys it, and has submitted the job. Five addresses are asked some
twenty times a second each. SIGKILL takes by turns a replica, the coordinator, and a member, which a
browser watches on the live page, if there is Chromium; each time all is whole again before the
next. Last, every process of the head's node is killed, and with it the job; then Ray and the
service are started again. On few cores what asks is part of what is measured.

Process: the harness.
"""

import argparse
import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import psutil

from benchmarks.page_watch import PageWatch, watching
from benchmarks.prober import Look, Prober, look_at, measure_silence
from benchmarks.report import Row, publish
from benchmarks.service import service_on, time_steps, wait_answer
from trainflow.cli.stop_signals import ending_in_order
from trainflow.clock import SYSTEM_CLOCK
from trainflow.coordination.local_cluster import LocalCluster
from trainflow.coordination.names import stamp_directory

ADDRESSES = {
    "status": "/v1/jobs/{job_id}",
    "list": "/v1/jobs",
    "events": "/v1/jobs/{job_id}/events",
    "logs": "/v1/jobs/{job_id}/logs",
    "metrics": "/v1/jobs/{job_id}/metrics?max_points=100",
}
NUM_REPLICAS, NUM_MEMBERS = 2, 2
_ROOT = Path(__file__).parents[1]
_REPLICA, _COORDINATOR = "ray::ServeReplica:trainflow:api", "ray::Coordinator"
_WITHIN_S = 120.0
_LOOK_EVERY_S = 0.1
_GOES_ON_FOR_S = 2.0
_FRESH_S = 2.0

Figures = dict[str, list[float]]


@dataclass(frozen=True)
class Plan:
    """How often each is killed."""

    replicas: int
    coordinators: int
    members: int
    heads: int
    settled_step: int

    @property
    def spares(self) -> int:
        """How many the job needs."""
        return int(self.members > 0)


_FULL = Plan(replicas=7, coordinators=7, members=7, heads=3, settled_step=20)
_QUICK = Plan(replicas=1, coordinators=1, members=0, heads=0, settled_step=5)


def describe_job(log_dir: Path, num_spares: int) -> dict[str, Any]:
    """Return a job that trains longer than any measurement."""
    return {
        "name": "bench-deaths",
        "entrypoint": "benchmarks.recovery_job:train",
        "args": {"log_dir": str(log_dir)},
        "training": {"max_steps": 100_000, "global_batch_size": 8, "microbatch_size": 4},
        "data": {"dataset": "benchmarks.recovery_job:open_dataset"},
        "workers": {"minimum": 1, "target": NUM_MEMBERS, "spares": num_spares},
        "failures": {"max_failures": None},
    }


@dataclass
class Subject:
    """A job that trains, and the service that has submitted it.

    Attributes:
        url: of the service.
        job_id: of the job.
        cluster: that both are on.
        num_spares: of the job.
        figures: what was measured so far, by name.
    """

    url: str
    job_id: str
    cluster: LocalCluster
    num_spares: int
    figures: Figures = field(default_factory=dict[str, list[float]])

    def address(self, name: str) -> str:
        """Return one of `ADDRESSES` of the job."""
        return self.url + ADDRESSES[name].format(job_id=self.job_id)

    def note(self, name: str, value: float) -> None:
        """Keep a figure."""
        self.figures.setdefault(name, []).append(value)
        print(f"{name}: {value:.3f}", flush=True)

    def ask(self, path: str) -> dict[str, Any]:
        """Ask about the job once."""
        with httpx.Client(timeout=_WITHIN_S) as client:
            return client.get(f"{self.url}/v1/jobs/{self.job_id}{path}").json()

    def find(self, title: str) -> list[psutil.Process]:
        """Return the cluster's processes whose title begins so."""
        found: list[psutil.Process] = []
        for process in psutil.Process(self.cluster.head.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                if " ".join(process.cmdline()).startswith(title):
                    found.append(process)
        return found

    def kill_one(self, title: str) -> None:
        """Kill one of those."""
        self.find(title)[0].kill()

    def kill_member(self) -> None:
        """Kill the worker that has the last rank."""
        workers = self.ask("/workers")["workers"]
        (pid,) = (each["pid"] for each in workers if each["rank"] == NUM_MEMBERS - 1)
        psutil.Process(pid).kill()

    def is_whole(self) -> bool:
        """Whether all train, spares stand by, and both replicas are there."""
        try:
            status, workers = self.ask(""), self.ask("/workers")["workers"]
            is_trained = status["state"] == "running" and status["stale_s"] < _FRESH_S
        except (httpx.HTTPError, ValueError, LookupError):
            return False
        states = [each["state"] for each in workers]
        found = states.count("member"), states.count("spare")
        is_manned = found == (NUM_MEMBERS, self.num_spares)
        return is_trained and is_manned and len(self.find(_REPLICA)) == NUM_REPLICAS


def wait_until(reached: Callable[[], bool], what: str) -> None:
    """Wait for something; raises TimeoutError if it doesn't come."""
    deadline_s = SYSTEM_CLOCK.monotonic_s() + _WITHIN_S
    while not reached():
        if SYSTEM_CLOCK.monotonic_s() > deadline_s:
            raise TimeoutError(f"{what}: not within {_WITHIN_S:g} s")
        SYSTEM_CLOCK.sleep(_LOOK_EVERY_S)


@contextmanager
def serving(home: Path, plan: Plan) -> Generator[Subject]:
    """Have a service train a job; leaves neither behind."""
    with (
        LocalCluster.start(head_cpus=NUM_MEMBERS + 3, takes_jobs=True) as cluster,
        service_on(cluster, home) as url,
    ):
        wait_answer(f"{url}/readyz")
        body = {"config": describe_job(home / "events", plan.spares)}
        job = httpx.post(f"{url}/v1/jobs", json=body, timeout=_WITHIN_S).raise_for_status().json()
        subject = Subject(url, job["job_id"], cluster, plan.spares)
        wait_until(
            lambda: subject.is_whole() and subject.ask("")["last_step"] >= plan.settled_step,
            "a job that trains",
        )
        try:
            yield subject
        finally:
            cluster.kill()  # its end in order takes ten seconds


def find_longest(times_s: Sequence[float], since_s: float) -> float:
    """Return the longest time between two steps, of which the second came since then. Pure."""
    pairs = pairwise(times_s)
    return max((late - early for early, late in pairs if late >= since_s), default=0.0)


@contextmanager
def death_of(subject: Subject, what: str) -> Generator[Prober]:
    """Ask all addresses while the block kills, and for a while after it; keep what that cost."""
    urls = {name: subject.address(name) for name in ADDRESSES}
    with Prober(urls) as prober:
        SYSTEM_CLOCK.sleep(_GOES_ON_FOR_S / 2)
        killed_s = SYSTEM_CLOCK.unix_s()
        yield prober
        wait_until(subject.is_whole, f"all whole after the death of a {what}")
        SYSTEM_CLOCK.sleep(_GOES_ON_FOR_S)
    silences = [measure_silence(looks, killed_s) for looks in prober.looks.values()]
    subject.note(f"{what}_longest_silence", max(each.longest_s for each in silences))
    subject.note(f"{what}_failed", sum(each.num_failed for each in silences))
    subject.note(f"{what}_asked", sum(each.num_asked for each in silences))
    subject.note(f"{what}_longest_step", find_longest(time_steps(subject.job_id), killed_s))


def kill_replica(subject: Subject) -> None:
    """Kill a replica, and see when there are as many again."""
    with death_of(subject, "replica"):
        before = {process.pid for process in subject.find(_REPLICA)}
        begun_s = SYSTEM_CLOCK.monotonic_s()
        subject.kill_one(_REPLICA)
        wait_until(
            lambda: len({each.pid for each in subject.find(_REPLICA)} - before) == 1,
            "another replica",
        )
        subject.note("replica_another_begun", SYSTEM_CLOCK.monotonic_s() - begun_s)


def kill_coordinator(subject: Subject) -> None:
    """Kill the coordinator, and see how old what is told becomes."""
    with death_of(subject, "coordinator") as prober:
        killed_s = SYSTEM_CLOCK.unix_s()
        subject.kill_one(_COORDINATOR)
        wait_until(
            lambda: bool(find_fresh(prober.looks["status"], killed_s)), "a status published anew"
        )
        fresh = find_fresh(prober.looks["status"], killed_s)[0]
        subject.note("coordinator_status_anew", fresh.told_s - killed_s)
    told = [look.answer["stale_s"] for look in prober.looks["status"] if look.is_good]
    subject.note("coordinator_stale_at_most", max(told))


def find_fresh(looks: Sequence[Look], since_s: float) -> list[Look]:
    """Return the answers with a status that was published since then. Pure."""
    return [each for each in looks if each.is_good and each.answer["published_at_s"] > since_s]


def kill_member(subject: Subject, page: PageWatch | None) -> None:
    """Kill a member, and see when the page shows that, and that it was made good."""
    with death_of(subject, "member"):
        last = subject.ask("")["last_event"]
        killed_s = SYSTEM_CLOCK.unix_s()
        subject.kill_member()
        if page is None:
            return
        subject.note("page_shows_kill", page.wait_event("failure", last) - killed_s)
        shown_s = page.wait_event("recovered", last)
        events = subject.ask(f"/events?after={last}")["events"]
        (recovered_s,) = (each["at_s"] for each in events if each["kind"] == "recovered")
        subject.note("page_shows_recovery", shown_s - recovered_s)


def kill_head(subject: Subject, home: Path) -> None:
    """Kill all of the head's node, then serve again, and see what is told of the job."""
    with Prober({name: subject.address(name) for name in ADDRESSES}) as prober:
        SYSTEM_CLOCK.sleep(_GOES_ON_FOR_S / 2)
        subject.cluster.head.kill()
        gone_s = SYSTEM_CLOCK.unix_s()
        SYSTEM_CLOCK.sleep(_GOES_ON_FOR_S)
    looks = [look for each in prober.looks.values() for look in each if look.asked_s > gone_s]
    subject.note("head_answers_while_gone", sum(look.is_good for look in looks))
    begun_s = SYSTEM_CLOCK.monotonic_s()
    with (
        LocalCluster.start(head_cpus=NUM_MEMBERS, takes_jobs=True) as cluster,
        service_on(cluster, home) as url,
        httpx.Client(timeout=_WITHIN_S) as client,
    ):
        again = Subject(url, subject.job_id, cluster, subject.num_spares, subject.figures)
        wait_until(
            lambda: all(look_at(client, again.address(name)).is_good for name in ADDRESSES),
            "answers after the head was started again",
        )
        again.note("head_all_answered_again", SYSTEM_CLOCK.monotonic_s() - begun_s)
        require_known(again)


def require_known(subject: Subject) -> None:
    """Raise ValueError unless what was known of the job is told, and told to be old."""
    status = subject.ask("")
    events = subject.ask("/events")["events"]
    if status["state"] != "running" or status["stale_s"] < 1 or events[0]["number"] != 1:
        raise ValueError(f"got {status}, expected the state that was told last, and its age")


def measure(plan: Plan, home: Path) -> Figures:
    """Kill as planned; a head takes its job with it, so the next one has a job of its own."""
    figures: Figures = {}
    for number in range(max(1, plan.heads)):
        with serving(home, plan) as subject:
            subject.figures = figures
            if number == 0:
                break_parts(subject, plan)
            if number < plan.heads:
                kill_head(subject, home)
            # Nobody is left to remove the stamps of its workers.
            shutil.rmtree(stamp_directory(subject.job_id, "any").parent, ignore_errors=True)
    return figures


def break_parts(subject: Subject, plan: Plan) -> None:
    """Kill parts of one cluster by turns."""
    steps = time_steps(subject.job_id)
    usual_s = median(late - early for early, late in pairwise(steps))
    subject.note("step_usual", usual_s)
    page_url = f"{subject.url}/#/jobs/{subject.job_id}"
    with watching(page_url) if plan.members > 0 else nullcontext() as page:
        for turn in range(max(plan.replicas, plan.coordinators, plan.members)):
            if turn < plan.replicas:
                kill_replica(subject)
            if turn < plan.coordinators:
                kill_coordinator(subject)
            if turn < plan.members:
                kill_member(subject, page)


def to_rows(figures: Figures) -> list[Row]:
    """Return the median of each figure, and the worst; of counts the sum. Pure."""
    rows: list[Row] = []
    for name, values in figures.items():
        if name.endswith(("_failed", "_asked", "_while_gone")):
            rows.append(Row("trainflow", name, sum(values), "requests"))
        else:
            rows.append(Row("trainflow", name, median(values), "s"))
            rows.append(Row("trainflow", f"{name}_worst", max(values), "s"))
    return rows


@ending_in_order()
def main() -> None:
    """Measure all of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="no head and no member; under 50 s")
    arguments = parser.parse_args()
    plan = _QUICK if arguments.quick else _FULL
    paths = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)  # where the job's modules are
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRAINFLOW_HOME"] = folder
        figures = measure(plan, Path(folder))
    conditions = {"plan": vars(plan), "replicas": NUM_REPLICAS, "members": NUM_MEMBERS}
    publish("service_deaths", conditions, to_rows(figures), quick=arguments.quick)


if __name__ == "__main__":
    main()
