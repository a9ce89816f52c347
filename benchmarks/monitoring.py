"""What monitoring costs a step, and how many series a run makes of a thousand ranks.

    make bench-monitoring          # or: python -m benchmarks.monitoring [--quick]

Two jobs of two ranks each run the same steps by turns on one Ray cluster, both under TrainFlow. One
is monitored by all there is: metrics, ledger, anomalies, curves for TensorBoard, and a webhook,
which a server of this process answers. The other has ``monitoring.enabled: false``. Turns are short
and go A B B A; four of them, a quad, give one ratio of step times, and one of what each job's
processes computed. There are many rounds, each with processes of its own, by turns with another job
started first and another having the first turn: two equal jobs differ by a percent for as long as
their processes live, which turns can't show. The figure is the median of the ratios, with the
interval that holds it in 95% of bootstrap samples of rounds, and of quads in them. Series are
counted at the coordinator of a simulated cluster.

Process: the harness.
"""

import argparse
import asyncio
import json
import os
import shutil
import tempfile
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain
from pathlib import Path
from statistics import fmean, median
from typing import Any

from benchmarks.coordinator_scale import WORKERS_A_NODE, make_job, measure_deaths
from benchmarks.monitoring_job import NUM_RANKS, SIDES, Args
from benchmarks.overhead_job import SIZES
from benchmarks.report import Row, interval_over_rounds, publish
from benchmarks.series import NotedSeries
from benchmarks.simulated_cluster import simulated
from benchmarks.turn_costs import Quad, find_agents, follow_quads, join_quads, read_cpu_s
from benchmarks.turns import Turns
from trainflow.cli.stop_signals import ending_in_order
from trainflow.clock import SYSTEM_CLOCK
from trainflow.config.job import JobConfig
from trainflow.config.webhook import KINDS
from trainflow.coordination.driver import Run, connect, disconnect, start_run
from trainflow.coordination.local_cluster import LocalCluster
from trainflow.monitoring.metrics import METRICS

_COUNTED = slice(1, None)  # in the first quad both warm up
NUM_SIMULATED = (10, 1000)
_NUM_DEATHS = 2
_BLOCKS_A_QUAD = 2  # of each job
_WITHIN_S = 1200.0
_ENDS_WITHIN_S = 60.0


@dataclass(frozen=True)
class Plan:
    """How much is measured.

    Attributes:
        num_rounds: each with jobs of its own.
        num_quads: of each round; the first and the last don't count.
        steps_a_block: of a turn, of which the first doesn't count.
    """

    num_rounds: int
    num_quads: int
    steps_a_block: int


FULL, QUICK = Plan(12, 7, 8), Plan(1, 3, 3)


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


def measure_round(
    args: Args, num_quads: int, agents_s: list[float], *, plain_is_first: bool
) -> list[Quad]:
    """Run both jobs once; returns the quads that count, with the monitored job's figures first.

    Args:
        args: of both; says which begins.
        num_quads: that are run.
        plain_is_first: the job that is not monitored is started first.
        agents_s: is given the CPU-seconds of Ray's agent, which serves both jobs.
    """
    os.environ["TRAINFLOW_HOME"] = str(args.work_dir / "home")
    sides = [
        args.model_copy(update={"system": system, "begins": begins})
        for system, begins in zip(SIDES, (args.begins, not args.begins), strict=True)
    ]
    with answering() as url, LocalCluster.start(head_cpus=NUM_RANKS * len(SIDES)) as cluster:
        connect(cluster.address)
        try:
            order = reversed(sides) if plain_is_first else sides
            started = {side.system: start_run(make_side(side, url)) for side in order}
            runs = [started[system] for system in SIDES]
            turns = Turns(args.work_dir / "turns")
            readings = list(follow_quads(turns, runs, num_quads, _WITHIN_S))
            agents_s.append(sum(map(read_cpu_s, find_agents(cluster.head.tree()))))
            for run in runs:
                _wait_ended(run)
        finally:
            disconnect()
    return join_quads(args.work_dir, SIDES, readings)[_COUNTED]


def _wait_ended(run: Run) -> None:
    deadline_s = SYSTEM_CLOCK.monotonic_s() + _ENDS_WITHIN_S
    while (status := run.status())["ending"] is None and SYSTEM_CLOCK.monotonic_s() < deadline_s:
        SYSTEM_CLOCK.sleep(0.2)
    if status["state"] != "succeeded":
        raise RuntimeError(f"{run.job_id} ended as {status['state']}: {status['ending']}")
    run.retire()


def measure_cost(plan: Plan) -> list[Row]:
    """Measure what steps take, and what both jobs' processes compute."""
    rounds: list[list[Quad]] = []
    agents_s: list[float] = []
    for number in range(plan.num_rounds):
        work_dir = Path(tempfile.mkdtemp(prefix="monitoring-"))
        args = Args(
            work_dir=work_dir,
            size="demo",
            num_blocks=_BLOCKS_A_QUAD * plan.num_quads,
            steps_a_block=plan.steps_a_block,
            system="monitored",
            begins=number % 2 == 0,
        )
        try:
            plain_is_first = number // 2 % 2 == 1  # four rounds have all there is
            quads = measure_round(args, plan.num_quads, agents_s, plain_is_first=plain_is_first)
            rounds.append(quads)
            if not list((work_dir / "curves").rglob("events.out.tfevents*")):
                raise RuntimeError("nothing was told: there are no curves")
        finally:
            shutil.rmtree(work_dir, ignore_errors=True)
        print(f"round {number}: {find_ratios(rounds[-1])}", flush=True)
    if not Posts.num_taken:
        raise RuntimeError("nothing was told: there are no posts")
    steps_a_round = len(SIDES) * _BLOCKS_A_QUAD * (plan.num_quads - 1) * plan.steps_a_block
    agent_s = sum(agents_s) / (len(agents_s) * steps_a_round)
    return [*tabulate(rounds, plan.steps_a_block), Row("ray", "agent_cpu_s", agent_s, "s a step")]


def find_ratios(quads: Sequence[Quad]) -> dict[str, list[float]]:
    """Return what monitoring costs by each quad.

    ``step``: of step times; ``cpu``: of CPU-seconds of all processes; ``more``: what the
    coordinator computes more, as a share of what all processes of the other job do.
    """
    return {
        "step": [monitored / plain for monitored, plain in (each.step_s for each in quads)],
        "cpu": [each.spent[0].all_s / each.spent[1].all_s for each in quads],
        "more": [
            (each.spent[0].coordinator_s - each.spent[1].coordinator_s) / each.spent[1].all_s
            for each in quads
        ],
    }


def tabulate(rounds: Sequence[Sequence[Quad]], steps_a_block: int) -> list[Row]:
    """Return all figures of all rounds."""
    ratios = [find_ratios(quads) for quads in rounds]
    rows: list[Row] = []
    for name, metric, figure in (
        ("step", "overhead_ratio", median),
        ("cpu", "cpu_ratio", median),
        ("more", "coordinator_more_ratio", fmean),
    ):
        by_round = [each[name] for each in ratios]
        low, high = interval_over_rounds(by_round, figure)
        value = figure(list(chain.from_iterable(by_round)))
        figures = {metric: value, f"{metric}_low": low, f"{metric}_high": high}
        rows += [Row("monitored", key, each, "1") for key, each in figures.items()]
    quads = list(chain.from_iterable(rounds))
    rows.append(Row("monitored", "quads", len(quads), "quads"))
    rows.append(Row("monitored", "posts", Posts.num_taken, "posts"))
    steps_a_quad = _BLOCKS_A_QUAD * steps_a_block
    for side, system in enumerate(SIDES):
        step_s = median(each.step_s[side] for each in quads) / _BLOCKS_A_QUAD
        rows.append(Row(system, "step_s", step_s, "s"))
        for metric, spent_s in (
            ("coordinator_cpu_s", [each.spent[side].coordinator_s for each in quads]),
            ("cpu_s", [each.spent[side].all_s for each in quads]),
        ):
            rows.append(Row(system, metric, fmean(spent_s) / steps_a_quad, "s a step"))
    return rows


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
    rows = [asyncio.run(count_series(num_workers)) for num_workers in NUM_SIMULATED]
    bound = sum(metric.num_series for metric in METRICS)
    rows.append(Row("trainflow", "series_bound", bound, "series"))
    rows += measure_cost(plan)
    conditions = {
        "ranks": NUM_RANKS,
        "threads_a_rank": 1,
        "rounds": plan.num_rounds,
        "quads_a_round": plan.num_quads,
        "steps_a_block": plan.steps_a_block,
        "sinks": ["tensorboard"],
        "webhook": "local",
        "simulated_deaths": _NUM_DEATHS,
    }
    publish("monitoring", conditions, rows, quick=arguments.quick)


if __name__ == "__main__":
    main()
