"""The part of the benchmark of streaming that talks to Ray: it runs on the head's host.

    python -m benchmarks.streaming_driver PLAN      # JSON; started by benchmarks.streaming

Process: a driver, in the network namespace of the head.
"""

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import psutil
from pydantic import BaseModel

from benchmarks.streaming_job import RANKS_ON, Args
from benchmarks.turns import Turns, block_medians
from trainflow.clock import SYSTEM_CLOCK
from trainflow.config.job import JobConfig, SnapshotConfig
from trainflow.coordination import names
from trainflow.coordination.driver import Run, connect, disconnect, start_run

NUM_RANKS = 2
_NUM_MICROBATCHES = 4  # of a rank: 8 gathers and a sum, 3 times what a copy of a shard takes
_POLL_S = 0.02
_WITHIN_S = 900.0
_END = {"succeeded", "failed", "stopped"}


class Plan(BaseModel):
    """What is to be measured, and on which cluster.

    Attributes:
        address: of the head.
        node_pids: by a node's address, the process whose children it is.
        num_blocks: of either side.
        steps_a_block: of a side at a time.
        num_slow_steps: before a node is killed under copies that take too long; 0 leaves it out.
        slow_within_s: `snapshot.copy_within_s` there.
    """

    address: str
    node_pids: dict[str, int]
    num_blocks: int
    steps_a_block: int
    num_slow_steps: int
    slow_within_s: float


class Found(BaseModel):
    """What was found.

    Attributes:
        none_s: median step times of the blocks without copies.
        copies_s: of those with copies, pair by pair.
        cpu_s: seconds on a CPU of all processes of Ray and TrainFlow in a step, by side.
        lags: steps that copies are behind, of each step from the second block on.
        slow_lags: the same, where copies take too long.
        slow_step_s: median time of a step there.
        lost: steps that were done again after a node's end there.
    """

    none_s: list[float] = []
    copies_s: list[float] = []
    cpu_s: dict[str, float] = {}
    lags: list[int | None] = []
    slow_lags: list[int | None] = []
    slow_step_s: float = 0.0
    lost: int | None = None


def make_job(args: Args, max_steps: int, snapshot: SnapshotConfig, spares: int = 0) -> JobConfig:
    """Describe a run of two ranks that share a model."""
    return JobConfig.model_validate(
        {
            "name": f"bench-{args.system}",
            "entrypoint": "benchmarks.streaming_job:train",
            "args": args.model_dump(mode="json"),
            "training": {
                "max_steps": max_steps,
                "global_batch_size": NUM_RANKS * _NUM_MICROBATCHES,
                "microbatch_size": 1,
            },
            "parallel": {"mode": "fsdp"},
            "data": {"dataset": "benchmarks.recovery_job:open_dataset"},
            "workers": {"minimum": NUM_RANKS, "target": NUM_RANKS, "spares": spares},
            "snapshot": snapshot.model_dump(),
            "failures": {"hang_timeout_s": 120.0},
        }
    )


def measure_turns(plan: Plan, work_dir: Path, found: Found) -> None:
    """Let a run with copies and one without take turns."""
    max_steps = plan.num_blocks * plan.steps_a_block
    sides = {"none": 0, "copies": 1}
    runs: list[Run] = []
    for system, replicas in sides.items():
        args = Args(
            work_dir=work_dir,
            system=system,
            parity=replicas,
            steps_a_block=plan.steps_a_block,
        )
        runs.append(start_run(make_job(args, max_steps, SnapshotConfig(replicas=replicas))))
    cpu_s = _watch_turns(plan, runs, Turns(work_dir / "turns"))
    for run in runs:
        _wait(run, lambda status: status["state"] in _END)
    found.cpu_s = {side: sum(cpu_s[side]) / max_steps for side in sides}
    found.none_s, found.copies_s = (block_medians(work_dir, side)[1:] for side in sides)
    steps = runs[1].status()["steps"]
    found.lags = [step["copy_lag"] for step in steps if step["step"] > plan.steps_a_block]
    for run in runs:
        _let_go(run)


def _watch_turns(plan: Plan, runs: list[Run], turns: Turns) -> dict[str, list[float]]:
    """Return the CPU-seconds that all processes took in each side's turns, until the last ends."""
    spent_s: dict[str, list[float]] = {"none": [], "copies": []}
    num_turns = 2 * plan.num_blocks
    turn, began_s = 0, _cpu_s(plan)
    deadline_s = SYSTEM_CLOCK.monotonic_s() + _WITHIN_S
    while turn < num_turns:
        if any(run.status()["state"] == "failed" for run in runs):
            raise RuntimeError(f"a run failed: {[run.status()['ending'] for run in runs]}")
        if SYSTEM_CLOCK.monotonic_s() > deadline_s:
            raise TimeoutError(f"turn {turn} of {num_turns} is not over after {_WITHIN_S:.0f} s")
        _keep_off_ranks(plan)
        until_s = SYSTEM_CLOCK.monotonic_s() + 2.0
        while turns.block == turn and SYSTEM_CLOCK.monotonic_s() < until_s:
            SYSTEM_CLOCK.sleep(_POLL_S)
        if turns.block > turn:
            now_s = _cpu_s(plan)
            spent_s["none" if turn % 2 == 0 else "copies"].append(now_s - began_s)
            turn, began_s = turns.block, now_s
    return spent_s


def _processes(plan: Plan) -> list[psutil.Process]:
    """Return those of all nodes."""
    found: list[psutil.Process] = []
    for pid in plan.node_pids.values():
        with contextlib.suppress(psutil.Error):
            found += psutil.Process(pid).children(recursive=True)
    return found


def _cpu_s(plan: Plan) -> float:
    total_s = 0.0
    for process in _processes(plan):
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            total_s += times.user + times.system
    return total_s


def _keep_off_ranks(plan: Plan) -> None:
    """Have Keepers run where ranks don't, where there are cores enough."""
    others = [core for core in range(os.cpu_count() or 1) if core != RANKS_ON]
    for process in _processes(plan):
        with contextlib.suppress(psutil.Error):
            if others and "Keeper" in "".join(process.cmdline()):
                for thread in process.threads():
                    os.sched_setaffinity(thread.id, others)


def measure_slow(plan: Plan, work_dir: Path, found: Found) -> None:
    """Let copies take longer than a few steps, and kill a rank's node in the midst of it."""
    args = Args(work_dir=work_dir, system="slow", parity=None, steps_a_block=1)
    job = make_job(args, 10_000, SnapshotConfig(copy_within_s=plan.slow_within_s), spares=1)
    run = start_run(job)
    settled = plan.num_slow_steps
    _wait(run, lambda status: status["spares"] == 1 and status["step"] >= settled)
    steps = run.status()["steps"]
    found.slow_lags = [step["copy_lag"] for step in steps]
    times_s = [step["committed_at_s"] for step in steps]
    found.slow_step_s = median(b - a for a, b in pairwise(times_s))
    (host,) = {worker["host"] for worker in run.workers() if worker["rank"] == 1}
    node = psutil.Process(plan.node_pids[host])
    for process in [*node.children(recursive=True), node]:
        with contextlib.suppress(psutil.Error):
            process.kill()
    status = _wait(run, lambda status: _lost(status) is not None)
    found.lost = _lost(status)
    run.stop()
    _wait(run, lambda status: status["state"] in _END)
    _let_go(run)


def _let_go(run: Run) -> None:
    """Let a run's coordinator go; its cluster goes so soon that nobody else removes its memory."""
    run.retire()
    shutil.rmtree(names.stamp_directory(run.job_id, "any").parent, ignore_errors=True)


def _lost(status: dict[str, Any]) -> int | None:
    recovered = [e["data"] for e in status["events"] if e["kind"] == "recovered"]
    return recovered[0]["steps_lost"] if recovered else None


def _wait(run: Run, reached: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    deadline_s = SYSTEM_CLOCK.monotonic_s() + _WITHIN_S
    while not reached(status := run.status()):
        if status["state"] == "failed" or SYSTEM_CLOCK.monotonic_s() > deadline_s:
            raise TimeoutError(f"the run stands at {status['state']}: {status['ending']}")
        SYSTEM_CLOCK.sleep(0.2)
    return status


def main() -> None:
    """Measure, and print what was found as the last line."""
    plan = Plan.model_validate_json(sys.argv[1])
    found = Found()
    with tempfile.TemporaryDirectory(prefix="streaming-", ignore_cleanup_errors=True) as directory:
        os.environ["TRAINFLOW_HOME"] = f"{directory}/home"
        connect(plan.address)
        try:
            measure_turns(plan, Path(directory), found)
            if plan.num_slow_steps:
                measure_slow(plan, Path(directory), found)
        finally:
            disconnect()
    print(found.model_dump_json())


if __name__ == "__main__":
    main()
