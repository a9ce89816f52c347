"""What TrainFlow costs a step when nothing fails, beside bare DDP under torchrun.

    make bench-overhead            # or: python -m benchmarks.overhead [--quick]

Two ranks, one torch thread each. The two systems run blocks of the same steps by turns on the same
machine, beside the same Ray cluster; a pair of neighbouring blocks gives one ratio of median step
times. The figure is the median of the ratios, with the interval that holds it in 95% of bootstrap
samples. Each model runs twice: without copies of the state in memory, which bare DDP doesn't make
either, and with one after every step, which is the default.

Process: the harness.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median
from typing import Literal

from benchmarks.overhead_job import NUM_RANKS, SIZES, Args
from benchmarks.report import Row, interval_of_median, publish
from benchmarks.turns import block_medians
from trainflow.cli.stop_signals import ending_in_order
from trainflow.clock import SYSTEM_CLOCK
from trainflow.config.job import JobConfig
from trainflow.coordination.driver import Run, connect, disconnect, start_run
from trainflow.coordination.local_cluster import LocalCluster

SizeName = Literal["demo", "large"]

FULL_BLOCKS: dict[SizeName, tuple[int, int]] = {"demo": (50, 6), "large": (20, 4)}
QUICK_BLOCKS: dict[SizeName, tuple[int, int]] = {"demo": (4, 4)}
_TIMEOUT_S = 1200.0
_TORCHRUN_GRACE_S = 40.0  # torchrun gives its ranks 30 s


def make_job(args: Args, snapshot_every_steps: int | None) -> JobConfig:
    """Describe TrainFlow's side."""
    size = SIZES[args.size]
    return JobConfig.model_validate(
        {
            "name": "bench-overhead",
            "entrypoint": "benchmarks.overhead_job:train",
            "args": json.loads(args.model_dump_json()),
            "training": {
                "max_steps": args.num_blocks * args.steps_a_block,
                "global_batch_size": size.sequences * NUM_RANKS,
                "microbatch_size": size.sequences,
            },
            "data": {"dataset": "benchmarks.overhead_job:open_dataset"},
            "workers": {"minimum": NUM_RANKS, "target": NUM_RANKS},
            "snapshot": {"every_steps": snapshot_every_steps},
        }
    )


def measure_pairs(args: Args, snapshot_every_steps: int | None) -> list[tuple[float, float]]:
    """Return the median step times of TrainFlow and of bare DDP, in seconds, block by block."""
    os.environ["TRAINFLOW_HOME"] = str(args.work_dir / "home")
    with LocalCluster.start(head_cpus=NUM_RANKS) as cluster:
        connect(cluster.address)
        try:
            run = start_run(make_job(args, snapshot_every_steps))
            _run_bare(args, run)
            _wait_ended(run)
        finally:
            disconnect()
    ours, bare = (block_medians(args.work_dir, system) for system in ("trainflow", "ddp"))
    return list(zip(ours, bare, strict=True))


def _run_bare(args: Args, run: Run) -> None:
    """Start torchrun beside the run and wait until it is done."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={NUM_RANKS}", "-m", "benchmarks.overhead_job"]
    environment = os.environ | {"OVERHEAD_ARGS": args.model_dump_json(), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    try:
        deadline_s = SYSTEM_CLOCK.monotonic_s() + _TIMEOUT_S
        while process.poll() is None:
            if run.status()["state"] == "failed" or SYSTEM_CLOCK.monotonic_s() > deadline_s:
                raise RuntimeError(f"the run did not get to its end: {run.status()['ending']}")
            SYSTEM_CLOCK.sleep(2.0)
    finally:
        process.terminate()  # it ends its ranks itself; they have sessions of their own
        try:
            process.wait(_TORCHRUN_GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    if process.returncode:
        raise RuntimeError(f"torchrun left with {process.returncode}")


def _wait_ended(run: Run) -> None:
    deadline_s = SYSTEM_CLOCK.monotonic_s() + 60.0
    while (status := run.status())["ending"] is None and SYSTEM_CLOCK.monotonic_s() < deadline_s:
        SYSTEM_CLOCK.sleep(0.2)
    if status["state"] != "succeeded":
        raise RuntimeError(f"TrainFlow's side ended as {status['state']}: {status['ending']}")


def measure(
    size: SizeName, num_blocks: int, steps_a_block: int, *, snapshot_every_steps: int | None
) -> list[Row]:
    """Measure one model; the first pair, in which both warm up, doesn't count."""
    name = size if snapshot_every_steps is None else f"{size}_every_step"
    work_dir = Path(tempfile.mkdtemp(prefix="overhead-"))
    args = Args(work_dir=work_dir, size=size, num_blocks=num_blocks, steps_a_block=steps_a_block)
    try:
        pairs = measure_pairs(args, snapshot_every_steps)[1:]
    finally:
        shutil.rmtree(work_dir, ignore_errors=True)
    ratios = [ours / bare for ours, bare in pairs]
    low, high = interval_of_median(ratios)
    print(f"{name}: ratios {[round(ratio, 4) for ratio in ratios]}", flush=True)
    return [
        Row(f"trainflow_{name}", "overhead_ratio", median(ratios), "1"),
        Row(f"trainflow_{name}", "overhead_ratio_low", low, "1"),
        Row(f"trainflow_{name}", "overhead_ratio_high", high, "1"),
        Row(f"trainflow_{name}", "step_s", median(ours for ours, _ in pairs), "s"),
        Row(f"ddp_{name}", "step_s", median(bare for _, bare in pairs), "s"),
        Row(f"trainflow_{name}", "pairs", len(pairs), "pairs"),
    ]


@ending_in_order()
def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the demo's model, three short pairs")
    arguments = parser.parse_args()
    blocks = QUICK_BLOCKS if arguments.quick else FULL_BLOCKS
    rows: list[Row] = []
    for size, shape in blocks.items():
        for every_steps in (None,) if arguments.quick else (None, 1):
            rows += measure(size, *shape, snapshot_every_steps=every_steps)
    publish("overhead", {"ranks": NUM_RANKS, "threads_a_rank": 1}, rows, quick=arguments.quick)


if __name__ == "__main__":
    main()
