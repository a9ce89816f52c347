"""How soon the service answers while a job runs, and what asking it costs the job.

    make bench-service             # or: python -m benchmarks.service [--quick]

A job of two ranks trains on a cluster of its own; the service is beside it, with two replicas, as
`trainflow serve` deploys it. Answers are timed one at a time, `_PACE` a second, so that none waits
for another's. Then the job trains by turns alone and with `_ASKED_PER_S` requests a second: its
step rate in pairs of windows, in alternating order, gives the ratio. Last, at each of `_RATES`
requests a second, Ray's own record of tasks says how many calls the coordinator was sent. On one
machine the load's own process is part of what the job feels.

Process: the harness.
"""

import argparse
import http.client
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Generator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median, quantiles
from urllib.parse import urlsplit

import httpx
from ray.util import state

from benchmarks.report import Row, publish
from benchmarks.trainflow_recovery import Scenario, make_job, wait_for_status
from trainflow.cli.stop_signals import ending_in_order
from trainflow.clock import SYSTEM_CLOCK
from trainflow.coordination.driver import Run, connect, disconnect, start_run
from trainflow.coordination.local_cluster import LocalCluster
from trainflow.coordination.names import run_directory

SCENARIO = Scenario(num_members=2, num_spares=0)
_SYSTEM = "trainflow"
_PACE = 20.0
_ASKED_PER_S = 20.0
_RATES = (1.0, 20.0, 200.0)
_NUM_CLIENTS = 8
_WITHIN_S = 120.0
_LOOK_EVERY_S = 0.05
_SETTLED_STEP = 20
_METRICS_FILE = "metrics.jsonl"


@dataclass(frozen=True)
class Plan:
    """How long is measured.

    Attributes:
        num_answers: that are timed.
        window_s: of training, alone or not.
        num_pairs: of such windows.
        counted_s: for which calls are counted at each rate.
    """

    num_answers: int
    window_s: float
    num_pairs: int
    counted_s: float


_FULL = Plan(num_answers=1000, window_s=60.0, num_pairs=8, counted_s=20.0)
_QUICK = Plan(num_answers=40, window_s=3.0, num_pairs=1, counted_s=2.0)


@dataclass(frozen=True)
class Subject:
    """A job that trains, and the service that tells of it.

    Attributes:
        run: the job.
        url: where the service tells of it.
        cluster: that both are on.
    """

    run: Run
    url: str
    cluster: LocalCluster

    def count_steps(self, begun_s: float, ended_s: float) -> int:
        """Count the steps that were committed in a window, by the record."""
        times_s = time_steps(self.run.job_id)
        return sum(begun_s <= each < ended_s for each in times_s)

    def count_calls(self) -> int:
        """Count what Ray has heard of as sent to the coordinator, by whomever."""
        summary = state.summarize_tasks(address=self.cluster.address, raise_on_missing_output=False)
        tasks = summary["cluster"]["summary"]
        return sum(
            sum(task["state_counts"].values())
            for name, task in tasks.items()
            if name.startswith("Coordinator.")
        )


def time_steps(job_id: str) -> list[float]:
    """Return when each step was committed, by the record, as far as that is whole."""
    whole, _, _ = (run_directory(job_id) / _METRICS_FILE).read_text().rpartition("\n")
    return [json.loads(line)["committed_at_s"] for line in whole.splitlines()]


@contextmanager
def serving() -> Generator[Subject]:
    """Have a job train and a service tell of it; leaves neither behind."""
    with (
        tempfile.TemporaryDirectory() as folder,
        LocalCluster.start(head_cpus=SCENARIO.num_members + 2, takes_jobs=True) as cluster,
    ):
        home = Path(folder, "home")
        home.mkdir()
        os.environ["TRAINFLOW_HOME"] = str(home)
        connect(cluster.address)
        try:
            run = start_run(make_job(Path(folder, "events"), SCENARIO))
            with service_on(cluster, home) as url:
                wait_for_status(run, "train", lambda status: status["step"] >= _SETTLED_STEP)
                job_url = f"{url}/v1/jobs/{run.job_id}"
                wait_answer(job_url)
                yield Subject(run, job_url, cluster)
        finally:
            disconnect()
            cluster.kill()  # its end in order takes ten seconds


@contextmanager
def service_on(cluster: LocalCluster, home: Path) -> Generator[str]:
    """Have a service run on a cluster, at an address of its own, for whoever asks from here."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    limits = {"requests_per_s": 1000.0, "burst": 1000}
    settings = {"http": {"port": port}, "authentication": "off", "limits": limits}
    (home / "service.yaml").write_text(json.dumps(settings))
    command = [sys.executable, "-m", "trainflow", "serve", "--address", cluster.address]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()  # its cluster ends, too
        process.wait(_WITHIN_S)


def wait_answer(url: str) -> None:
    """Wait until something answers there, and that it is well.

    Raises:
        TimeoutError: nothing does.
    """
    deadline_s = SYSTEM_CLOCK.monotonic_s() + _WITHIN_S
    while SYSTEM_CLOCK.monotonic_s() < deadline_s:
        try:
            if httpx.get(url).is_success:
                return
        except httpx.TransportError:
            pass
        SYSTEM_CLOCK.sleep(_LOOK_EVERY_S)
    raise TimeoutError(f"{url} did not answer within {_WITHIN_S:g} s")


class Load:
    """Requests at a steady rate; a context manager. Any answer but 200 is an error at the end."""

    def __init__(self, url: str, per_s: float):
        self._url = url
        self._pause_s = _NUM_CLIENTS / per_s
        self._end = threading.Event()
        self._errors: list[str] = []
        self.num_answers = 0
        self._lock = threading.Lock()
        self._threads = [
            threading.Thread(target=self._ask, args=(number * self._pause_s / _NUM_CLIENTS,))
            for number in range(_NUM_CLIENTS)
        ]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        for thread in self._threads:
            thread.join()
        if self._errors:
            raise RuntimeError(f"{len(self._errors)} requests failed; the first: {self._errors[0]}")

    def _ask(self, first_after_s: float) -> None:
        due_s = SYSTEM_CLOCK.monotonic_s() + first_after_s
        where = urlsplit(self._url)
        connection = http.client.HTTPConnection(where.netloc, timeout=_WITHIN_S)
        with closing(connection):  # takes a fifth of the CPU that httpx does: the job feels it
            while not self._end.wait(max(0.0, due_s - SYSTEM_CLOCK.monotonic_s())):
                due_s += self._pause_s
                connection.request("GET", where.path)
                answer = connection.getresponse()
                text = answer.read()
                with self._lock:
                    self.num_answers += 1
                    if answer.status != http.HTTPStatus.OK:
                        self._errors.append(f"{answer.status} {text[:200]!r}")


def time_answers(url: str, count: int) -> list[float]:
    """Ask ``count`` times, one at a time; returns the seconds that each answer took."""
    times_s: list[float] = []
    with httpx.Client(timeout=_WITHIN_S) as client:
        client.get(url)  # connects
        for _ in range(count):
            begun_s = SYSTEM_CLOCK.monotonic_s()
            client.get(url).raise_for_status()
            times_s.append(SYSTEM_CLOCK.monotonic_s() - begun_s)
            SYSTEM_CLOCK.sleep(1 / _PACE)
    return times_s


def measure_cost(subject: Subject, plan: Plan) -> list[float]:
    """Return, of each pair of windows, the step rate with requests by that without."""
    ratios: list[float] = []
    for pair in range(plan.num_pairs):
        rates: dict[bool, float] = {}
        for is_asked in (False, True) if pair % 2 == 0 else (True, False):
            rates[is_asked] = _step_rate(subject, plan.window_s, is_asked=is_asked)
        ratios.append(rates[True] / rates[False])
        print(f"pair {pair}: {rates}", flush=True)
    return ratios


def _step_rate(subject: Subject, window_s: float, *, is_asked: bool) -> float:
    if is_asked:
        with Load(subject.url, _ASKED_PER_S):
            return _step_rate(subject, window_s, is_asked=False)
    begun_s = SYSTEM_CLOCK.unix_s()
    SYSTEM_CLOCK.sleep(window_s)
    return subject.count_steps(begun_s, SYSTEM_CLOCK.unix_s()) / window_s


def count_calls_at(subject: Subject, per_s: float, counted_s: float) -> tuple[float, float]:
    """Return the calls to the coordinator and the answers a second, at a rate of requests."""
    with Load(subject.url, per_s) as load:
        before, answers_before = subject.count_calls(), load.num_answers
        begun_s = SYSTEM_CLOCK.monotonic_s()
        SYSTEM_CLOCK.sleep(counted_s)
        calls, answers = subject.count_calls() - before, load.num_answers - answers_before
        took_s = SYSTEM_CLOCK.monotonic_s() - begun_s
    return calls / took_s, answers / took_s


@ending_in_order()
def main() -> None:
    """Measure all of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few seconds of each; under 50 s")
    arguments = parser.parse_args()
    plan = _QUICK if arguments.quick else _FULL
    with serving() as subject:
        times_s = time_answers(subject.url, plan.num_answers)
        ratios = measure_cost(subject, plan)
        counted = {rate: count_calls_at(subject, rate, plan.counted_s) for rate in _RATES}
    rows = [
        Row(_SYSTEM, "status_p50", 1e3 * median(times_s), "ms"),
        Row(_SYSTEM, "status_p99", 1e3 * quantiles(times_s, n=100)[98], "ms"),
        Row(_SYSTEM, "step_rate_ratio_asked", median(ratios), "ratio"),
        Row(_SYSTEM, "step_rate_ratio_asked_least", min(ratios), "ratio"),
    ]
    for rate, (calls, answers) in counted.items():
        rows.append(Row(_SYSTEM, f"coordinator_calls_at_{rate:g}", calls, "1/s"))
        rows.append(Row(_SYSTEM, f"answers_at_{rate:g}", answers, "1/s"))
    conditions = {
        "num_answers": plan.num_answers,
        "window_s": plan.window_s,
        "num_pairs": plan.num_pairs,
        "asked_per_s": _ASKED_PER_S,
        "replicas": 2,
    }
    publish("service", conditions, rows, quick=arguments.quick)


if __name__ == "__main__":
    main()
