"""What monitoring costs a step, and how many series a run makes of a thousand ranks.

    make bench-monitoring          # or: python -m benchmarks.monitoring [--quick]

Two jobs of two ranks each run the same steps by turns on one Ray cluster, both under TrainFlow. One
is monitored by all there is: metrics, ledger, anomalies, curves for TensorBoard, and a webhook,
which a server of this process answers; the node is scraped as Prometheus would. The other has
``monitoring.enabled: false``. Turns are short and go A B B A; four of them are a quad. Before or
after that, on another cluster, two jobs do the same of which neither is monitored: the control, by
which is known what Ray's agent computes without monitoring. There are several rounds of both, by
turns with another job started first and another having the first turn: two equal jobs differ by a
percent for as long as their processes live, which turns can't show. What follows from the readings
is in `monitoring_costs`. Series are counted at the coordinator of a simulated cluster.

Process: the harness.
"""

import argparse
import asyncio
import json
import os
import shutil
import tempfile
import threading
import time
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import ray

from benchmarks.coordinator_scale import WORKERS_A_NODE, make_job, measure_deaths
from benchmarks.monitoring_costs import BLOCKS_A_QUAD, Round, find_costs, tabulate
from benchmarks.monitoring_job import CONTROL, MEASURED, NUM_RANKS, Args
from benchmarks.overhead_job import SIZES
from benchmarks.report import Row, publish
from benchmarks.series import NotedSeries
from benchmarks.simulated_cluster import simulated
from benchmarks.turn_costs import (
    TURNS_A_QUAD,
    Quad,
    Reading,
    follow_turns,
    join_quads,
)
from benchmarks.turns import Turns
from trainflow.cli.stop_signals import ending_in_order
from trainflow.clock import SYSTEM_CLOCK
from trainflow.computation.usage_meter import UsageMeter
from trainflow.config.job import JobConfig
from trainflow.config.webhook import KINDS
from trainflow.coordination.driver import Run, connect, disconnect, start_run
from trainflow.coordination.local_cluster import LocalCluster
from trainflow.monitoring.metric import JOB_LABEL
from trainflow.monitoring.metrics import METRICS

_NUM_DEATHS = 2
_WITHIN_S = 1200.0
_ENDS_WITHIN_S = 60.0
_SCRAPED_WITHIN_S = 10.0
_SHOWN_WITHIN_S = 15.0


@dataclass(frozen=True)
class Plan:
    """How much is measured.

    Attributes:
        num_rounds: each with two pairs of jobs of its own.
        num_quads: of each pair; the first and the last don't count.
        steps_a_block: of a turn, of which the first doesn't count.
        num_simulated: ranks of each run whose series are counted.
    """

    num_rounds: int
    num_quads: int
    steps_a_block: int
    num_simulated: tuple[int, ...] = (10, 1000)


# Of eight rounds each has another order of pairs, starts and turns; a scrape falls into either
# job's turns equally often in an even number of quads that count.
FULL, QUICK = Plan(8, 6, 8), Plan(1, 3, 2, num_simulated=(10,))


def make_side(args: Args, webhook_url: str) -> JobConfig:
    """Describe one of the two jobs."""
    size = SIZES[args.size]
    monitoring: dict[str, Any] = {"enabled": False}
    if args.system == "monitored":
        folder = str(args.work_dir / "curves")
        monitoring = {
            "sinks": [{"kind": "tensorboard", "folder": folder}],
            "webhook": {"url": webhook_url, "topics": list(KINDS)},
        }
    return JobConfig.model_validate(
        {
            "name": f"bench-{args.system}",
            "entrypoint": "benchmarks.monitoring_job:train",
            "args": json.loads(args.model_dump_json()),
            "training": {
                "max_steps": args.num_blocks * args.steps_a_block,
                "global_batch_size": size.sequences * NUM_RANKS,
                "microbatch_size": size.sequences,
            },
            "data": {"dataset": "benchmarks.overhead_job:open_dataset"},
            "workers": {"minimum": NUM_RANKS, "target": NUM_RANKS},
            "failures": {"hang_timeout_s": _WITHIN_S},  # a rank stands still for the other's turn
            "monitoring": monitoring,
        }
    )


class Posts(BaseHTTPRequestHandler):
    """Takes what a webhook is told."""

    num_taken = 0

    def do_POST(self) -> None:
        """Read it, and say so."""
        self.rfile.read(int(self.headers["Content-Length"]))
        type(self).num_taken += 1
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  its names
        """Print nothing."""


@contextmanager
def answering() -> Generator[str]:
    """Have a server take posts; yields its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Posts)
    thread = threading.Thread(target=server.serve_forever, name="posts")
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def measure_pair(args: Args, sides: tuple[str, str], num_quads: int, started: int) -> list[Quad]:
    """Run two jobs by turns; returns the quads that count.

    Args:
        args: of both; says whether the first of them has the first turn.
        sides: both, by their names.
        num_quads: that are run.
        started: which of them is started first.

    Raises:
        RuntimeError: one failed, or the first was monitored and nobody was told of it, or it was
            not and somebody was.
    """
    os.environ["TRAINFLOW_HOME"] = str(args.work_dir / "home")
    both = [
        args.model_copy(update={"system": system, "begins": begins})
        for system, begins in zip(sides, (args.begins, not args.begins), strict=True)
    ]
    turns = Turns(args.work_dir / "turns")
    with answering() as url, LocalCluster.start(head_cpus=NUM_RANKS * len(sides)) as cluster:
        connect(cluster.address)
        try:
            places = (started, 1 - started)
            by_place = {place: start_run(make_side(both[place], url)) for place in places}
            runs = [by_place[place] for place in range(len(sides))]
            readings: list[Reading] = []
            for each in follow_turns(turns, runs, cluster.head.tree, num_quads, _WITHIN_S):
                readings.append(each)
                if is_scraped(len(readings) - 1):
                    scrape()
            shown = _scrape_until(runs[0].job_id if sides[0] == "monitored" else None)
            for run in runs:
                _wait_ended(run)
        finally:
            disconnect()
    for run, side in zip(runs, sides, strict=True):
        is_shown = f'{JOB_LABEL}="{run.job_id}"' in shown
        if is_shown != (side == "monitored"):
            raise RuntimeError(f"{side}: shown to Prometheus, or not, is {is_shown}")
    return join_quads(args.work_dir, sides, int(not args.begins), readings)


def is_scraped(turn: int) -> bool:
    """Whether the node is scraped in a turn: once a quad, by turns in either job's turn."""
    quad, place = divmod(turn, TURNS_A_QUAD)
    return place == quad % 2


def scrape() -> str:
    """Read all that nodes show to Prometheus."""
    pages: list[str] = []
    for node in ray.nodes():
        url = f"http://{node['NodeManagerAddress']}:{node['MetricsExportPort']}/metrics"
        with urllib.request.urlopen(url, timeout=_SCRAPED_WITHIN_S) as answer:
            pages.append(answer.read().decode())
    return "".join(pages)


def _scrape_until(job_id: str | None) -> str:
    """Read what nodes show, again until they show a job, if one is given; it may take a while."""
    deadline_s = SYSTEM_CLOCK.monotonic_s() + _SHOWN_WITHIN_S
    while True:
        shown = scrape()
        is_there = job_id is None or f'{JOB_LABEL}="{job_id}"' in shown
        if is_there or SYSTEM_CLOCK.monotonic_s() > deadline_s:
            return shown
        SYSTEM_CLOCK.sleep(0.5)


def _wait_ended(run: Run) -> None:
    deadline_s = SYSTEM_CLOCK.monotonic_s() + _ENDS_WITHIN_S
    while (status := run.status())["ending"] is None and SYSTEM_CLOCK.monotonic_s() < deadline_s:
        SYSTEM_CLOCK.sleep(0.2)
    if status["state"] != "succeeded":
        raise RuntimeError(f"{run.job_id} ended as {status['state']}: {status['ending']}")
    run.retire()


def measure_costs(plan: Plan) -> list[Row]:
    """Measure what steps take, and what both jobs' processes and Ray's agent compute."""
    rounds: list[Round] = []
    for number in range(plan.num_rounds):
        is_first = number // 4 % 2 == 0
        pairs = {MEASURED: [], CONTROL: []} if is_first else {CONTROL: [], MEASURED: []}
        for sides in pairs:
            pairs[sides] = _measure_in_folder(plan, sides, number)
        rounds.append(Round(pairs[MEASURED], pairs[CONTROL]))
        print(f"round {number}: {find_costs(pairs[MEASURED], plan.steps_a_block)}", flush=True)
    if not Posts.num_taken:
        raise RuntimeError("nothing was told: there are no posts")
    posts = Row("monitored", "posts", Posts.num_taken, "posts")
    return [*tabulate(rounds, plan.steps_a_block), posts]


def _measure_in_folder(plan: Plan, sides: tuple[str, str], number: int) -> list[Quad]:
    work_dir = Path(tempfile.mkdtemp(prefix="monitoring-"))
    args = Args(
        work_dir=work_dir,
        size="demo",
        num_blocks=BLOCKS_A_QUAD * plan.num_quads,
        steps_a_block=plan.steps_a_block,
        system="plain",
        begins=number % 2 == 0,
    )
    try:
        # Of four rounds each has another order of starts and turns.
        quads = measure_pair(args, sides, plan.num_quads, int(number % 4 in {1, 2}))
        has_curves = bool(list((work_dir / "curves").rglob("events.out.tfevents*")))
        if has_curves != ("monitored" in sides):
            raise RuntimeError(f"{sides}: that there are curves is {has_curves}")
        return quads
    finally:
        shutil.rmtree(work_dir, ignore_errors=True)


def time_usage_read() -> Row:
    """Return what a rank's reading of what it takes of the machine takes, every few seconds."""
    meter, num_reads = UsageMeter({}), 1000
    begun_s = time.process_time()
    for _ in range(num_reads):
        meter.read()
    return Row("rank", "usage_read_s", (time.process_time() - begun_s) / num_reads, "s")


async def count_series(num_workers: int) -> Row:
    """Count the series of a run of so many simulated ranks, of which two die."""
    noted = NotedSeries()
    with (
        tempfile.TemporaryDirectory(prefix="trainflow-") as directory,
        simulated(make_job(num_workers), WORKERS_A_NODE, directory, lambda _: noted) as cluster,
    ):
        async with asyncio.timeout(_ENDS_WITHIN_S):
            await cluster.wait_epoch_after(None)
        await measure_deaths(cluster, _NUM_DEATHS, seed=0)
    return Row(f"trainflow_{num_workers}", "series", noted.num_series, "series")


@ending_in_order()
def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round")
    arguments = parser.parse_args()
    plan = QUICK if arguments.quick else FULL
    rows = [asyncio.run(count_series(num_workers)) for num_workers in plan.num_simulated]
    bound = sum(metric.num_series for metric in METRICS)
    rows.append(Row("trainflow", "series_bound", bound, "series"))
    rows += [time_usage_read(), *measure_costs(plan)]
    conditions = {
        "ranks": NUM_RANKS,
        "threads_a_rank": 1,
        "rounds": plan.num_rounds,
        "quads_a_round": plan.num_quads,
        "steps_a_block": plan.steps_a_block,
        "sinks": ["tensorboard"],
        "webhook": "local",
        "scraped": "once a quad",
        "simulated_deaths": _NUM_DEATHS,
    }
    publish("monitoring", conditions, rows, quick=arguments.quick)


if __name__ == "__main__":
    main()
