"""Seconds from SIGKILL to the next committed step of every rank: TrainFlow, Ray Train, torchft.

    make bench-recovery            # or: python -m benchmarks.recovery [--quick]

The same model, steps and machine for all, one after the other in one run; members are killed at
seeded random phases of their step. ``trainflow`` has two hot spares, ``trainflow_no_spare`` none
(the world shrinks, and grows back before the next kill), ``trainflow_node`` loses the victim's
whole node, of three, with as many members as there are spares elsewhere, or fewer; Ray's health
settings are its defaults. ``trainflow_hang`` stops a member's process (SIGSTOP) instead of
killing it. ``ray_train`` restarts its worker group, ``torchft`` runs FIXED_WITH_SPARES. Figures are
medians; the raw samples are printed above the result. ``--quick`` leaves out all but ``trainflow``;
a full run's time goes mostly into starting replacements between the kills.

Process: the harness; one measured system at a time.
"""

import argparse
import shutil
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks import trainflow_recovery
from benchmarks.peers import ray_train, torchft_ddp
from benchmarks.peers.samples import RecoverySample, summarize
from benchmarks.report import Row, publish
from trainflow.cli.stop_signals import ending_in_order

Measure = Callable[[int, int, Path], list[RecoverySample]]

FULL_KILLS = {
    "trainflow": 15,
    "trainflow_no_spare": 9,
    "trainflow_node": 9,
    "trainflow_hang": 9,
    "torchft": 9,
    "ray_train": 9,
}
QUICK_KILLS = {"trainflow": 1}
SYSTEMS: dict[str, Measure] = {
    "trainflow": trainflow_recovery.measure,
    "trainflow_no_spare": partial(
        trainflow_recovery.measure, scenario=trainflow_recovery.WITHOUT_SPARES
    ),
    "trainflow_node": partial(trainflow_recovery.measure, scenario=trainflow_recovery.NODE_LOSS),
    "trainflow_hang": partial(trainflow_recovery.measure, scenario=trainflow_recovery.HANG),
    "torchft": torchft_ddp.measure,
    "ray_train": ray_train.measure,
}


def measure_all(num_kills: dict[str, int], seed: int) -> dict[str, list[RecoverySample]]:
    """Measure each system in a folder of its own, which is removed."""
    found: dict[str, list[RecoverySample]] = {}
    for system, count in num_kills.items():
        work_dir = Path(tempfile.mkdtemp(prefix=f"{system}-"))
        found[system] = SYSTEMS[system](count, seed, work_dir)
        shutil.rmtree(work_dir, ignore_errors=True)
        print(summarize(system, found[system]), flush=True)
    return found


def to_rows(found: dict[str, list[RecoverySample]]) -> list[Row]:
    """Reduce samples to medians, and to each peer's ratio to TrainFlow."""
    rows = [row for system, samples in found.items() for row in _system_rows(system, samples)]
    ours = median(_beyond_step_s(found["trainflow"]))
    rows += [
        Row(peer, "slower_than_trainflow_ratio", median(_beyond_step_s(found[peer])) / ours, "1")
        for peer in ("ray_train", "torchft")
        if peer in found
    ]
    return rows


def to_raw(found: dict[str, list[RecoverySample]]) -> dict[str, dict[str, list[float]]]:
    """Return of each system's kills what the figures are made from."""
    return {
        "raw_recovery_s": {
            system: [round(sample.recovery_s, 4) for sample in samples]
            for system, samples in found.items()
        },
        "raw_detect_s": {
            system: [round(sample.detect_s, 4) for sample in samples if sample.detect_s is not None]
            for system, samples in found.items()
            if samples[0].detect_s is not None
        },
    }


def _beyond_step_s(samples: Sequence[RecoverySample]) -> list[float]:
    return [sample.recovery_s - sample.step_s for sample in samples]


def _system_rows(system: str, samples: Sequence[RecoverySample]) -> list[Row]:
    beyond_step_s = _beyond_step_s(samples)
    rows = [
        Row(system, "recovery_beyond_step_s", median(beyond_step_s), "s"),
        Row(system, "recovery_beyond_step_max_s", max(beyond_step_s), "s"),
        Row(system, "recovery_s", median(sample.recovery_s for sample in samples), "s"),
        Row(system, "recovery_max_s", max(sample.recovery_s for sample in samples), "s"),
        Row(system, "step_s", median(sample.step_s for sample in samples), "s"),
        Row(system, "steps_lost", max(sample.steps_lost for sample in samples), "steps"),
        Row(system, "kills", len(samples), "kills"),
    ]
    rows += [
        Row(system, f"phase_{phase}_s", median(sample.phases[phase] for sample in samples), "s")
        for phase in samples[0].phases
    ]
    return rows + _hang_rows(system, samples)


def _hang_rows(system: str, samples: Sequence[RecoverySample]) -> list[Row]:
    """Say how far the verdict, and the recovery, came after the hang timeout; [] after kills."""
    detect_s = [sample.detect_s for sample in samples if sample.detect_s is not None]
    if not detect_s:
        return []
    timeout_s = trainflow_recovery.HANG_TIMEOUT_S
    recovery_s = [sample.recovery_s for sample in samples]
    return [
        Row(system, "detect_beyond_timeout_s", median(detect_s) - timeout_s, "s"),
        Row(system, "detect_beyond_timeout_max_s", max(detect_s) - timeout_s, "s"),
        Row(system, "recovery_beyond_timeout_s", median(recovery_s) - timeout_s, "s"),
        Row(system, "recovery_beyond_timeout_max_s", max(recovery_s) - timeout_s, "s"),
    ]


@ending_in_order()
def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="TrainFlow alone, one kill")
    parser.add_argument("--kills", type=int, help="of each system; else as many as are planned")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    kills: int | None = arguments.kills
    num_kills = QUICK_KILLS if arguments.quick else FULL_KILLS
    if kills is not None:
        num_kills = dict.fromkeys(num_kills, kills)
    found = measure_all(num_kills, arguments.seed)
    conditions: dict[str, Any] = {
        "members": trainflow_recovery.NUM_MEMBERS,
        "kills": num_kills,
        "seed": arguments.seed,
        "left_out": sorted(SYSTEMS.keys() - num_kills.keys()),
        "hang_timeout_s": trainflow_recovery.HANG_TIMEOUT_S,
        "torchft_mode": "FIXED_WITH_SPARES",
        **to_raw(found),
    }
    publish("recovery", conditions, to_rows(found), quick=arguments.quick)


if __name__ == "__main__":
    main()
