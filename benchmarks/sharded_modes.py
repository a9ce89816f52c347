"""What the modes of `parallel.mode` make of the same run: its losses, and each rank's memory.

    make bench-sharded-modes       # or: python -m benchmarks.sharded_modes [--quick]

Four ranks train the same model from the same seed over the same samples, once in each mode. Losses
are compared with those of ``ddp``, step by step: they differ by the order of sums alone. Memory is
what the process has resident beyond what it had before there was a model, at its peak after the
first step; activations, and what the allocator keeps, are in it. Beside it stands what theory asks
for: parameters as they are held, and this rank's parts of parameters, gradients and both moments.

Process: the harness; one run after the other, on a Ray cluster of its own.
"""

import argparse
import json
import os
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.report import Row, publish
from benchmarks.trainflow_recovery import Ground, Scenario, own_ground, wait_for_status
from benchmarks.workload import LARGE, SMALL, Size, num_state_bytes
from trainflow.cli.stop_signals import ending_in_order
from trainflow.config.job import JobConfig

MODES = ("ddp", "zero1", "zero2", "fsdp", "hsdp")
NUM_RANKS = 4
_SHARD = 2  # ranks in a group of hsdp
_STATES = 4  # parameters, gradients and two moments, of equal size
_TIMEOUT_S = 900.0


@dataclass(frozen=True)
class Plan:
    """What is run: for losses, and for memory."""

    num_loss_steps: int
    num_memory_steps: int
    memory_size: Size
    modes: Sequence[str] = MODES


FULL = Plan(num_loss_steps=200, num_memory_steps=5, memory_size=LARGE)
QUICK = Plan(8, 4, memory_size=SMALL, modes=("ddp", "fsdp"))


def make_job(log_dir: Path, mode: str, size: Size, num_steps: int) -> JobConfig:
    """Describe one run."""
    shard = {"shard": _SHARD} if mode == "hsdp" else {}
    return JobConfig.model_validate(
        {
            "name": "bench-sharded-modes",
            "entrypoint": "benchmarks.sharded_modes_job:train",
            "args": {"log_dir": str(log_dir), "size": asdict(size)},
            "training": {
                "max_steps": num_steps,
                "global_batch_size": NUM_RANKS,
                "microbatch_size": 1,
                "deterministic": True,
            },
            "parallel": {"mode": mode, **shard},
            "data": {"dataset": "benchmarks.recovery_job:open_dataset"},
            "workers": {"minimum": NUM_RANKS, "target": NUM_RANKS},
        }
    )


def run(ground: Ground, job: JobConfig, log_dir: Path) -> list[dict[str, Any]]:
    """Train to the end; returns what each rank has found, by rank.

    Raises:
        TimeoutError: it did not end as it should.
    """
    started = ground.start(job)
    wait_for_status(
        started, "end", lambda status: status["state"] == "succeeded", timeout_s=_TIMEOUT_S
    )
    started.retire()
    return [json.loads((log_dir / f"rank-{rank}.json").read_text()) for rank in range(NUM_RANKS)]


def theory_bytes(mode: str, size: Size) -> int:
    """Return what a rank must hold at once: see above."""
    parameters = num_state_bytes(size) // (_STATES - 1)
    if mode == "ddp":
        return _STATES * parameters
    gathered = parameters if mode in {"zero1", "zero2"} else 0
    return gathered + _STATES * parameters // (_SHARD if mode == "hsdp" else NUM_RANKS)


def measure(plan: Plan) -> list[Row]:
    """Run every mode, for losses and for memory."""
    rows: list[Row] = []
    reference: list[float] = []
    scenario = Scenario(num_spares=0, num_members=NUM_RANKS)
    with (
        tempfile.TemporaryDirectory(prefix="modes-", ignore_cleanup_errors=True) as directory,
        own_ground(Path(directory, "home"), scenario) as ground,
    ):
        for mode in plan.modes:
            log_dir = Path(directory, mode)
            log_dir.mkdir()
            job = make_job(log_dir, mode, SMALL, plan.num_loss_steps)
            losses: list[float] = run(ground, job, log_dir)[0]["losses"]
            reference = reference or losses
            furthest = max(abs(a - b) for a, b in zip(losses, reference, strict=True))
            job = make_job(log_dir, mode, plan.memory_size, plan.num_memory_steps)
            peak = max(each["peak_bytes"] for each in run(ground, job, log_dir))
            rows += [
                Row(mode, "last_loss", losses[-1], "nats a token"),
                Row(mode, "furthest_from_ddp", furthest * 1e6, "millionths of a nat a token"),
                Row(mode, "peak_bytes", peak, "bytes, of the rank with most"),
                Row(mode, "theory_bytes", theory_bytes(mode, plan.memory_size), "bytes"),
            ]
            print(f"{mode}: {losses[-1]:.5f}, {furthest:.1e} from ddp, {peak / 1e6:.0f} MB")
    return rows


@ending_in_order()
def main() -> None:
    """Measure and report."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="two modes, few steps, a small model")
    quick: bool = parser.parse_args().quick
    os.environ["MALLOC_MMAP_THRESHOLD_"] = "65536"  # what is freed goes back, and is not counted
    plan = QUICK if quick else FULL
    rows = measure(plan)
    conditions = {
        "ranks": NUM_RANKS,
        "loss_steps": plan.num_loss_steps,
        "memory_parameters_bytes": num_state_bytes(plan.memory_size) // (_STATES - 1),
        "hsdp_shard": _SHARD,
    }
    publish("sharded_modes", conditions, rows, quick=quick)


if __name__ == "__main__":
    main()
