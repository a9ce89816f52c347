"""Seconds from the SIGKILL of one rank of a sharded model to the next committed step of every rank.

    make bench-sharded-recovery    # or: python -m benchmarks.sharded_recovery [--quick]

Four ranks share 507 MB of state, parameters and AdamW's moments of all ranks together: what the
killed rank held, no other has. ``trainflow`` has one hot spare, which reads the lost shards from
its node's memory. ``ray_train`` is stock Ray Train with FSDP2, and restarts its worker group from
a DCP checkpoint. Members are killed at seeded random phases of their step. TrainFlow's job then
runs once more without a kill, and every rank's weights after every step are compared. So are
``trainflow_hsdp``, two groups of two ranks, and ``trainflow_zero1``, three ranks, whose layers stay
gathered. ``--quick`` has 31 MB of state, kills once, and measures ``trainflow`` alone.

Process: the harness; one measured system at a time.  Fails: exits with 1, after the figures, if
weights differ.
"""

import argparse
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import trainflow_sharded_recovery
from benchmarks.peers import ray_train
from benchmarks.peers.ray_train_fsdp_worker import SEQUENCES_PER_RANK, train_worker
from benchmarks.peers.ray_train_worker import CHECKPOINT_EVERY_STEPS
from benchmarks.peers.samples import RecoverySample, summarize
from benchmarks.recovery import to_raw, to_rows
from benchmarks.report import Row, publish
from benchmarks.trainflow_sharded_recovery import FSDP, HSDP, ZERO1, Layout, Outcome
from benchmarks.workload import LARGE, SMALL, Size, num_state_bytes
from trainflow.cli.stop_signals import ending_in_order


@dataclass(frozen=True)
class Plan:
    """What is measured; without kills of it a system is left out."""

    size: Size
    num_kills: int
    num_other_kills: int
    num_peer_kills: int


FULL = Plan(LARGE, num_kills=9, num_other_kills=5, num_peer_kills=3)
QUICK = Plan(SMALL, num_kills=1, num_other_kills=0, num_peer_kills=0)
# After a restart the steps since the last checkpoint are counted from zero: kills come early, in
# the middle and late between two checkpoints.
_PEER_SETTLED_STEPS = tuple(CHECKPOINT_EVERY_STEPS + more for more in (1, 4, 7))
_PEER_TIMEOUT_S = 300.0


def measure_trainflow(plan: Plan, seed: int) -> dict[str, Outcome]:
    """Measure TrainFlow in each layout, and compare with runs in which nothing dies."""
    kills = [
        (FSDP, plan.num_kills),
        (HSDP, plan.num_other_kills),
        (ZERO1, plan.num_other_kills),
    ]
    return {
        layout.name: _measure_layout(layout, num_kills, seed, plan.size)
        for layout, num_kills in kills
        if num_kills
    }


def _measure_layout(layout: Layout, num_kills: int, seed: int, size: Size) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="trainflow-", ignore_cleanup_errors=True) as directory:
        outcome = trainflow_sharded_recovery.measure(num_kills, seed, Path(directory), size, layout)
    print(summarize(layout.name, outcome.samples), flush=True)
    return outcome


def measure_peer(plan: Plan, seed: int) -> list[RecoverySample]:
    """Measure stock Ray Train."""
    group = ray_train.WorkerGroup(
        train_worker, FSDP.num_ranks, {"size": plan.size}, _PEER_SETTLED_STEPS, _PEER_TIMEOUT_S
    )
    with tempfile.TemporaryDirectory(prefix="ray_train-", ignore_cleanup_errors=True) as directory:
        samples = ray_train.measure(plan.num_peer_kills, seed, Path(directory), group)
    print(summarize("ray_train", samples), flush=True)
    return samples


def identity_rows(system: str, outcome: Outcome) -> list[Row]:
    """Say after how many steps the weights were compared, and after how many they differed."""
    num_differing = len(outcome.differing_steps)
    return [
        Row(system, "steps_compared", outcome.num_steps, "steps"),
        Row(system, "steps_with_other_weights", num_differing, "steps"),
    ]


@ending_in_order()
def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="TrainFlow alone, one kill, 31 MB")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    plan = QUICK if arguments.quick else FULL
    outcomes = measure_trainflow(plan, arguments.seed)
    found = {system: outcome.samples for system, outcome in outcomes.items()}
    if plan.num_peer_kills:
        found["ray_train"] = measure_peer(plan, arguments.seed)
    conditions = {**_describe(plan, found), "seed": arguments.seed, **to_raw(found)}
    rows = to_rows(found)
    for system, outcome in outcomes.items():
        rows += identity_rows(system, outcome)
    publish("sharded_recovery", conditions, rows, quick=arguments.quick)
    differing = {s: each.differing_steps for s, each in outcomes.items() if each.differing_steps}
    if differing:
        sys.exit(f"got other weights than undisturbed after steps {differing}")


def _describe(plan: Plan, found: dict[str, list[RecoverySample]]) -> dict[str, Any]:
    return {
        "state_bytes_of_all_ranks": num_state_bytes(plan.size),
        "state": "fp32 parameters and AdamW's two moments, over all ranks together",
        "ranks": {"trainflow_zero1": ZERO1.num_ranks, "others": FSDP.num_ranks},
        "spares": FSDP.scenario.num_spares,
        "nodes": max(1, FSDP.scenario.num_nodes),
        "sequences_per_rank": SEQUENCES_PER_RANK,
        "ray_train_checkpoint_every_steps": CHECKPOINT_EVERY_STEPS,
        "left_out": sorted({"ray_train"} - found.keys()),
        "kills": {system: len(samples) for system, samples in found.items()},
        "killed_at_ratio_of_step": {system: _ratios(samples) for system, samples in found.items()},
    }


def _ratios(samples: Sequence[RecoverySample]) -> list[float]:
    return [round(sample.phase_in_step_ratio, 2) for sample in samples]


if __name__ == "__main__":
    main()
