"""Goodput while faults fall on TrainFlow, one every 20 s.

    make bench-chaos               # or: python -m benchmarks.chaos [--quick]

``trainflow`` bears the whole mix of `MIX`: processes killed, stopped and slowed, nodes lost, or cut
off, and back again, flipped bits, a full disk. ``trainflow_processes`` bears those of `PROCESSES`
alone. Four members with two spares, on three nodes of this machine; those of ``trainflow`` are
network namespaces, which takes root. Not in the mix: a wrong clock, as times are measured by it,
and a store that hangs, as hosts that can be cut off reach none. Beside stock Ray Train, under what
both can bear: `benchmarks.chaos_ray_train`.

Goodput is the steps that were done, times the median step undisturbed, over the time it took. A
machine may become slower or faster within a run: steps are measured before it and after it, and the
mean of both medians counts. The campaigns are those of ``trainflow chaos run``, with its
invariants: one that is broken fails the benchmark.

Process: the harness; one measured system at a time.
"""

import argparse
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

from benchmarks.peers.ray_train import NUM_STEPS_AFTER
from benchmarks.report import Row, publish
from trainflow.cli.stop_signals import ending_in_order
from trainflow.clock import SYSTEM_CLOCK
from trainflow.config.chaos_plan import ChaosPlan
from trainflow.config.job import JobConfig
from trainflow.coordination.chaos.campaign import Campaign, Report
from trainflow.coordination.chaos.figures import median_step_s
from trainflow.coordination.chaos.ground import Ground, open_ground
from trainflow.coordination.chaos.schedule import draw_faults

EVERY_S = 20.0
SEED = 2  # with which each entry of both mixes is drawn within ten minutes
HANG_TIMEOUT_S = 3.0
LEASE_S = 4.0
TIMEOUT_S = 3600.0
_NUM_CALIBRATING_STEPS = 40
_NUM_QUICK_STEPS = 24

PROCESSES: list[dict[str, Any]] = [
    {"kind": "kill", "target": "member", "weight": 5},
    {"kind": "kill", "target": "spare", "weight": 1},
    {"kind": "kill", "target": "keeper", "weight": 1},
    {"kind": "kill", "target": "coordinator", "weight": 1},
]
MIX: list[dict[str, Any]] = [
    *PROCESSES,
    {"kind": "stop", "target": "member", "weight": 1},
    {"kind": "stop", "target": "member", "resume_after_s": 1.0, "weight": 1},
    {"kind": "slow", "target": "member", "speed": 0.5, "last_s": 5.0, "weight": 1},
    {"kind": "drop_node", "back_after_s": 5.0, "weight": 1},
    {"kind": "partition", "last_s": 6.0, "weight": 1},
    {"kind": "flip", "weight": 1},
    {"kind": "fill_disk", "last_s": 5.0, "weight": 1},
]
MIXES: Mapping[str, list[dict[str, Any]]] = {"trainflow": MIX, "trainflow_processes": PROCESSES}
_STEPS_RATIO = {"trainflow": 0.88, "trainflow_processes": 0.95}
"""How many steps make a run with faults last as long as that, of those of a run without."""


def make_plan(mix: list[dict[str, Any]], for_s: float, seed: int) -> ChaosPlan:
    """Return the plan of one campaign."""
    plan = {"seed": seed, "for_s": for_s, "every_s": EVERY_S, "mix": mix, "cluster": {"nodes": 3}}
    return ChaosPlan.model_validate(plan)


def make_job(log_dir: Path, max_steps: int, *, members: int = 4, spares: int = 2) -> JobConfig:
    """Describe the run: the workload of the recovery benchmark, four sequences a member."""
    log_dir.mkdir(parents=True, exist_ok=True)
    return JobConfig.model_validate(
        {
            "name": "bench-chaos",
            "entrypoint": "benchmarks.recovery_job:train",
            "args": {"log_dir": str(log_dir)},
            "training": {
                "max_steps": max_steps,
                "global_batch_size": 4 * members,
                "microbatch_size": 4,
                "deterministic": True,
            },
            "data": {"dataset": "benchmarks.recovery_job:open_dataset"},
            "workers": {
                "minimum": 1,
                "target": members,
                "spares": spares,
                "preload": ["transformers.models.llama.modeling_llama"],
            },
            "failures": {
                "max_failures": None,
                "hang_timeout_s": HANG_TIMEOUT_S,
                "lease_s": LEASE_S,
            },
        }
    )


@dataclass(frozen=True)
class Measured:
    """A campaign, and the median step of a run without faults right after it."""

    report: Report
    step_after_s: float


def measure_trainflow(system: str, for_s: float, seed: int, work_dir: Path) -> Measured:
    """Carry a campaign out whose run takes about ``for_s`` seconds, and others without faults."""
    plan = make_plan(MIXES[system], 2 * for_s, seed)  # as long as the run may last
    short = make_job(work_dir / "events", _NUM_CALIBRATING_STEPS)
    with open_ground(make_folder(work_dir), plan, short, None) as ground:
        step_s = measure_step_s(ground, short)
        job = make_job(work_dir / "events", int(_STEPS_RATIO[system] * for_s / step_s))
        faults = draw_faults(plan)
        campaign = Campaign(ground, job, faults, SYSTEM_CLOCK, TIMEOUT_S, print)
        report = campaign.carry_out(compares=True)
        after = make_job(work_dir / "events", NUM_STEPS_AFTER)
        return Measured(report, measure_step_s(ground, after))


def measure_step_s(ground: Ground, job: JobConfig) -> float:
    """Return the median step of a run without faults."""
    campaign = Campaign(ground, job, (), SYSTEM_CLOCK, TIMEOUT_S, print)
    step_s = median_step_s(campaign.run_undisturbed().steps)
    assert step_s, "it has done some steps"
    return step_s


def measure_quickly(work_dir: Path, *, compares: bool) -> Report:
    """Carry a campaign of one kill out, on one node."""
    kill = {"kind": "kill", "rank": 1, "at_step": _NUM_QUICK_STEPS // 4}
    plan = ChaosPlan.model_validate({"schedule": [kill], "cluster": {"nodes": 1}})
    job = make_job(work_dir / "events", _NUM_QUICK_STEPS, members=2, spares=1)
    with open_ground(make_folder(work_dir), plan, job, None) as ground:
        campaign = Campaign(ground, job, draw_faults(plan), SYSTEM_CLOCK, TIMEOUT_S, print)
        return campaign.carry_out(compares=compares)


def make_folder(work_dir: Path) -> Path:
    """Make the folder of a campaign, in a home of its own."""
    os.environ["TRAINFLOW_HOME"] = str(work_dir / "home")
    folder = work_dir / "campaign"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def read_arguments(description: str | None, quick: str) -> argparse.Namespace:
    """Read what a benchmark of campaigns takes: ``quick``, ``seconds`` and ``seed``.

    Args:
        description: of the benchmark.
        quick: what its quick run does.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help=quick)
    parser.add_argument("--seconds", type=float, default=660.0, help="of each system, about")
    parser.add_argument("--seed", type=int, default=SEED)
    return parser.parse_args()


def conditions_of(arguments: argparse.Namespace, reports: Mapping[str, Report]) -> dict[str, Any]:
    """Return what the figures depend on, with the reports but for their folders, which are gone."""
    return {
        "seconds": None if arguments.quick else arguments.seconds,
        "every_s": EVERY_S,
        "seed": arguments.seed,
        "hang_timeout_s": HANG_TIMEOUT_S,
        "lease_s": LEASE_S,
        "reports": {
            system: {name: value for name, value in report.to_json().items() if name != "folder"}
            for system, report in reports.items()
        },
    }


def campaign_rows(system: str, report: Report, step_after_s: float | None = None) -> list[Row]:
    """Return the figures of a campaign; goodput by the step before it alone, without one after."""
    figures = report.figures
    assert figures is not None, "no clock is wrong in these plans"
    rows = [
        Row(system, "stalled_ratio", figures.stalled_ratio, "1"),
        Row(system, "steps_lost", figures.steps_lost, "steps"),
        Row(system, "faults", sum(each.victim is not None for each in report.faults), "faults"),
        Row(system, "recoveries", figures.recoveries, "recoveries"),
        Row(system, "wall_s", figures.wall_s, "s"),
        Row(system, "starting_cpu_s", figures.starting_cpu_s, "s"),
    ]
    if figures.goodput_ratio is not None and figures.step_s is not None:
        rows.append(Row(system, "step_s", figures.step_s, "s"))
        goodput_ratio = figures.goodput_ratio
        if step_after_s is not None:
            rows.append(Row(system, "step_after_s", step_after_s, "s"))
            goodput_ratio *= mean([figures.step_s, step_after_s]) / figures.step_s
        rows.insert(0, Row(system, "goodput", goodput_ratio, "1"))
    same = next(e for e in report.verdicts if e.invariant == "it ends as an undisturbed run")
    if same.holds is not None:
        rows.append(Row(system, "hash_equal", float(same.holds), "1"))
    return rows


def measure_all(for_s: float, seed: int) -> tuple[list[Row], dict[str, Report]]:
    """Measure each system in a folder of its own, which is removed."""
    rows: list[Row] = []
    reports: dict[str, Report] = {}
    for system in MIXES:
        work_dir = Path(tempfile.mkdtemp(prefix=f"{system}-"))
        measured = measure_trainflow(system, for_s, seed, work_dir)
        shutil.rmtree(work_dir, ignore_errors=True)
        reports[system] = measured.report
        found = campaign_rows(system, measured.report, measured.step_after_s)
        print(*found, sep="\n", flush=True)
        rows += found
    return rows, reports


@ending_in_order()
def main() -> None:
    """Run the benchmark."""
    arguments = read_arguments(__doc__, quick="one kill")
    if arguments.quick:
        work_dir = Path(tempfile.mkdtemp(prefix="trainflow-"))
        reports = {"trainflow": measure_quickly(work_dir, compares=True)}
        shutil.rmtree(work_dir, ignore_errors=True)
        rows = campaign_rows("trainflow", reports["trainflow"])
    else:
        rows, reports = measure_all(arguments.seconds, arguments.seed)
    conditions = conditions_of(arguments, reports)
    conditions["mixes"] = {} if arguments.quick else MIXES
    conditions["left_out"] = ["trainflow_processes"] if arguments.quick else []
    broken = [system for system, report in reports.items() if not report.holds]
    publish("chaos", conditions, rows, quick=arguments.quick or bool(broken))
    if broken:
        raise SystemExit(f"an invariant is broken: {', '.join(broken)}; see the reports above")


if __name__ == "__main__":
    main()
