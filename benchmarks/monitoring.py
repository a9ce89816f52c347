"""What monitoring costs a step, and how many series a run makes of a thousand ranks.

    make bench-monitoring          # or: python -m benchmarks.monitoring [--quick]

Two jobs of two ranks each run the same steps by turns on one Ray cluster, both under TrainFlow. One
is monitored by all there is: metrics, ledger, anomalies, curves for TensorBoard, and a webhook,
which a server of this process answers. The other has ``monitoring.enabled: false``. A pair of
neighbouring blocks gives one ratio of median step times; the figure is the median of the ratios,
with the interval that holds it in 95% of bootstrap samples. What coordinators compute is read at
the turns. Series are counted at the coordinator of a simulated cluster.

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
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import ray

from benchmarks.coordinator_scale import WORKERS_A_NODE, make_job, measure_deaths
from benchmarks.monitoring_job import NUM_RANKS, SIDES, Args
from benchmarks.overhead_job import SIZES
from benchmarks.report import Row, interval_of_median, publish
from benchmarks.series import NotedSeries
from benchmarks.simulated_cluster import simulated
from benchmarks.turns import Turns, block_medians
from trainflow.clock import SYSTEM_CLOCK
from trainflow.config.job import JobConfig
from trainflow.config.webhook import KINDS
from trainflow.coordination.driver import Run, connect, start_run
from trainflow.coordination.local_cluster import LocalCluster
from trainflow.monitoring.metrics import METRICS

FULL_BLOCKS, QUICK_BLOCKS = (42, 26), (4, 4)
_COUNTED = slice(1, -1)  # in the first both warm up, and during the last one of them ends
NUM_SIMULATED = (10, 1000)
_NUM_DEATHS = 2
_WITHIN_S = 1200.0
_ENDS_WITHIN_S = 60.0
_POLL_S = 0.02
_LOOK_EVERY_S = 5.0


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


def measure_turns(args: Args) -> tuple[list[tuple[float, float]], list[list[float]]]:
    """Run both jobs.

    Returns:
        For each pair of blocks the median step times in seconds, monitored and not; and for each
        side the CPU-seconds that its coordinator took in each of its blocks.
    """
    os.environ["TRAINFLOW_HOME"] = str(args.work_dir / "home")
    sides = [args.model_copy(update={"system": system}) for system in SIDES]
    with answering() as url, LocalCluster.start(head_cpus=NUM_RANKS * len(SIDES)) as cluster:
        connect(cluster.address)
        try:
            runs = [start_run(make_side(side, url)) for side in sides]
            cpu_s = follow_turns(Turns(args.work_dir / "turns"), runs, args.num_blocks)
            for run in runs:
                _wait_ended(run)
        finally:
            ray.shutdown()
    times = [block_medians(args.work_dir, system) for system in SIDES]
    return list(zip(*times, strict=True)), cpu_s


def follow_turns(turns: Turns, runs: Sequence[Run], num_blocks: int) -> list[list[float]]:
    """Read at each turn what the coordinators have computed; see `measure_turns`."""
    processes = [psutil.Process(run.coordinator_pid()) for run in runs]
    spent_s: list[list[float]] = [[] for _ in runs]
    deadline_s = looked_at_s = SYSTEM_CLOCK.monotonic_s()
    deadline_s += _WITHIN_S
    block, before_s = 0, [_cpu_s(process) for process in processes]
    while block < len(runs) * num_blocks:
        SYSTEM_CLOCK.sleep(_POLL_S)
        now_s = SYSTEM_CLOCK.monotonic_s()
        if now_s - looked_at_s > _LOOK_EVERY_S:
            looked_at_s = now_s
            _require_going_on(runs, is_late=now_s > deadline_s)
        if turns.block > block:
            after_s = [_cpu_s(process) for process in processes]
            side = block % len(runs)
            spent_s[side].append(after_s[side] - before_s[side])
            block, before_s = block + 1, after_s
    return spent_s


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def _require_going_on(runs: Sequence[Run], *, is_late: bool) -> None:
    for run in runs:
        status = run.status()
        if is_late or status["state"] == "failed":
            raise RuntimeError(f"{run.job_id} did not get to its end: {status['ending']}")


def _wait_ended(run: Run) -> None:
    deadline_s = SYSTEM_CLOCK.monotonic_s() + _ENDS_WITHIN_S
    while (status := run.status())["ending"] is None and SYSTEM_CLOCK.monotonic_s() < deadline_s:
        SYSTEM_CLOCK.sleep(0.2)
    if status["state"] != "succeeded":
        raise RuntimeError(f"{run.job_id} ended as {status['state']}: {status['ending']}")
    run.retire()


def measure_cost(num_blocks: int, steps_a_block: int) -> list[Row]:
    """Measure a step and a coordinator."""
    work_dir = Path(tempfile.mkdtemp(prefix="monitoring-"))
    args = Args(
        work_dir=work_dir,
        size="demo",
        num_blocks=num_blocks,
        steps_a_block=steps_a_block,
        system="monitored",
    )
    try:
        all_pairs, cpu_s = measure_turns(args)
        if not list((work_dir / "curves").rglob("events.out.tfevents*")) or not Posts.num_taken:
            raise RuntimeError("nothing was told: there are no curves, or no posts")
    finally:
        shutil.rmtree(work_dir, ignore_errors=True)
    pairs = all_pairs[_COUNTED]
    ratios = [monitored / plain for monitored, plain in pairs]
    low, high = interval_of_median(ratios)
    rows = [
        Row("monitored", "overhead_ratio", median(ratios), "1"),
        Row("monitored", "overhead_ratio_low", low, "1"),
        Row("monitored", "overhead_ratio_high", high, "1"),
        Row("monitored", "pairs", len(pairs), "pairs"),
        Row("monitored", "posts", Posts.num_taken, "posts"),
    ]
    for side, system in enumerate(SIDES):
        rows.append(Row(system, "step_s", median(pair[side] for pair in pairs), "s"))
        num_steps = len(pairs) * steps_a_block
        spent_s = sum(cpu_s[side][_COUNTED])
        rows.append(Row(system, "coordinator_cpu_s", spent_s / num_steps, "s a step"))
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


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two short pairs")
    arguments = parser.parse_args()
    num_blocks, steps_a_block = QUICK_BLOCKS if arguments.quick else FULL_BLOCKS
    rows = [asyncio.run(count_series(num_workers)) for num_workers in NUM_SIMULATED]
    bound = sum(metric.num_series for metric in METRICS)
    rows.append(Row("trainflow", "series_bound", bound, "series"))
    rows += measure_cost(num_blocks, steps_a_block)
    conditions = {
        "ranks": NUM_RANKS,
        "threads_a_rank": 1,
        "steps_a_block": steps_a_block,
        "sinks": ["tensorboard"],
        "webhook": "local",
        "simulated_deaths": _NUM_DEATHS,
    }
    publish("monitoring", conditions, rows, quick=arguments.quick)


if __name__ == "__main__":
    main()
