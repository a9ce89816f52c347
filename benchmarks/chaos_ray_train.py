"""Time lost to the same kills, one every 20 s: TrainFlow, and stock Ray Train.

    make bench-chaos               # after benchmarks.chaos
    python -m benchmarks.chaos_ray_train [--quick]

Both bear one schedule: a member is killed every 20 s, at the same seconds. The faults of
`benchmarks.chaos` that Ray Train has no counterpart to fall on neither. Four members each,
TrainFlow with two spares. Goodput is as there; the undisturbed steps are those of runs before and
after, for Ray Train of the time before the first kill and after the last.

Process: the harness; one measured system at a time.
"""

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.chaos import (
    TIMEOUT_S,
    Measured,
    campaign_rows,
    conditions_of,
    make_folder,
    make_job,
    make_plan,
    measure_quickly,
    measure_step_s,
    read_arguments,
)
from benchmarks.peers import ray_train
from benchmarks.peers.ray_train import NUM_STEPS_AFTER, WorkerGroup
from benchmarks.peers.ray_train_worker import train_worker
from benchmarks.report import Row, publish
from trainflow.cli.stop_signals import ending_in_order
from trainflow.clock import SYSTEM_CLOCK
from trainflow.coordination.chaos.campaign import Campaign, Report
from trainflow.coordination.chaos.ground import open_ground
from trainflow.coordination.chaos.schedule import draw_faults

MEMBERS: list[dict[str, Any]] = [{"kind": "kill", "target": "member"}]
_OURS = "trainflow_members"
_STEPS_RATIO = 0.8
"""How many steps make a run with these kills last as long as that, of those of a run without."""


def measure_trainflow(for_s: float, seed: int, work_dir: Path) -> Measured:
    """Kill members in a run of about ``for_s`` seconds; without any before and after it."""
    plan = make_plan(MEMBERS, 2 * for_s, seed)  # as long as the run may last
    short = make_job(work_dir / "events", NUM_STEPS_AFTER)
    with open_ground(make_folder(work_dir), plan, short, None) as ground:
        step_s = measure_step_s(ground, short)
        job = make_job(work_dir / "events", int(_STEPS_RATIO * for_s / step_s))
        faults = draw_faults(plan)
        campaign = Campaign(ground, job, faults, SYSTEM_CLOCK, TIMEOUT_S, print)
        report = with_step(campaign.carry_out(compares=False), job.training.max_steps, step_s)
        return Measured(report, measure_step_s(ground, short))


def with_step(report: Report, num_steps: int, step_s: float) -> Report:
    """Return a report that knows the undisturbed step, and goodput if it did all of its steps."""
    figures = report.figures
    assert figures is not None, "no clock is wrong in this plan"
    is_measured = report.holds and figures.wall_s > 0
    goodput_ratio = (num_steps - 1) * step_s / figures.wall_s if is_measured else None
    return replace(report, figures=replace(figures, step_s=step_s, goodput_ratio=goodput_ratio))


def measure_ray_train(for_s: float, seed: int, work_dir: Path) -> ray_train.Goodput:
    """Kill Ray Train's workers at the seconds of the plan."""
    kills = draw_faults(make_plan(MEMBERS, for_s, seed))
    schedule = [(each.at_s, each.pick) for each in kills if each.at_s is not None]
    group = WorkerGroup(train_worker, num_workers=4, timeout_s=240.0)
    return ray_train.measure_goodput(schedule, for_s, work_dir, group)


def ray_rows(found: ray_train.Goodput, ours: Sequence[Row]) -> list[Row]:
    """Return Ray Train's figures, and its time lost as a ratio to TrainFlow's."""
    rows = [
        Row("ray_train", "goodput", found.goodput_ratio, "1"),
        Row("ray_train", "faults", found.num_kills, "faults"),
        Row("ray_train", "wall_s", found.wall_s, "s"),
        Row("ray_train", "step_s", found.step_s, "s"),
        Row("ray_train", "step_after_s", found.step_after_s, "s"),
    ]
    goodput = next((row.value for row in ours if row.metric == "goodput"), None)
    if goodput is not None and goodput < 1:
        ratio = (1 - found.goodput_ratio) / (1 - goodput)
        rows.append(Row("ray_train", "time_lost_to_trainflow_ratio", ratio, "1"))
    return rows


@ending_in_order()
def main() -> None:
    """Run the benchmark."""
    arguments = read_arguments(__doc__, quick="one kill, TrainFlow alone")
    work_dir = Path(tempfile.mkdtemp(prefix=f"{_OURS}-"))
    if arguments.quick:
        report = measure_quickly(work_dir, compares=False)
        rows = campaign_rows(_OURS, report)
    else:
        measured = measure_trainflow(arguments.seconds, arguments.seed, work_dir / "ours")
        report = measured.report
        rows = campaign_rows(_OURS, report, measured.step_after_s)
        print(*rows, sep="\n", flush=True)
        found = measure_ray_train(arguments.seconds, arguments.seed, work_dir / "ray_train")
        rows += ray_rows(found, rows)
    shutil.rmtree(work_dir, ignore_errors=True)
    conditions = conditions_of(arguments, {_OURS: report})
    conditions["mix"] = None if arguments.quick else MEMBERS
    conditions["left_out"] = ["ray_train"] if arguments.quick else []
    publish("chaos_ray_train", conditions, rows, quick=arguments.quick or not report.holds)
    if not report.holds:
        raise SystemExit("an invariant is broken; see the report above")


if __name__ == "__main__":
    main()
