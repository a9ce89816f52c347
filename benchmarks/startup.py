"""Where the time goes from a job's submission to its first step, and until a replacement is warm.

    make bench-startup             # or: python -m benchmarks.startup [--quick]

Runs of the shared workload start one after the other on one Ray cluster of their own; each
is a run's whole start, in processes of its own. ``trainflow`` sums without compression, and forks
its workers; ``preloaded`` forks them from a process that has imported the module of the job's
model too; in ``spawned`` each is a Python by itself. ``kernels_cached`` sums in int8 with the
kernels built before, ``kernels_built`` with none built. Once a run of the first three trains and
its spare is warm, that is killed: ``replacement``, ``replacement_preloaded`` or
``replacement_spawned`` is the next one's start, beside training. Phases are those of the run's own
events, medians over runs. ``imports`` is what a worker imports, in a process that does nothing
else: with Python's collector of cycles off meanwhile, as what imports has it, and on, by turns.

Process: the harness; one run at a time.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.report import Row, publish
from benchmarks.trainflow_recovery import (
    Ground,
    RunEvent,
    Scenario,
    make_job,
    own_ground,
    wait_for_status,
)
from trainflow.cli.stop_signals import ending_in_order
from trainflow.clock import SYSTEM_CLOCK
from trainflow.config.job import JobConfig
from trainflow.coordination.driver import Run

SCENARIO = Scenario(num_members=2, num_spares=1)
_REPLACED = {
    "trainflow": "replacement",
    "preloaded": "replacement_preloaded",
    "spawned": "replacement_spawned",
}
_WORKERS = {
    "preloaded": {"preload": ["transformers.models.llama.modeling_llama"]},
    "spawned": {"start_method": "spawn"},
}
_COMPRESSED = ("kernels_cached", "kernels_built")
_FULL_RUNS = dict.fromkeys((*_REPLACED, *_COMPRESSED), 5)
_QUICK_RUNS = {"trainflow": 1}
_SUBMISSION = "submission"
_IMPORTS = """
import time
from trainflow.config.importing import uncollected
began_s = time.monotonic()
{how}
    import trainflow.coordination.worker_runtime, {module}
print(time.monotonic() - began_s)
"""
_HOW = {"imports_uncollected": "with uncollected():", "imports_collected": "if True:"}


@dataclass(frozen=True)
class Start:
    """One start that was measured.

    Attributes:
        took_s: the whole.
        phases_s: what each phase took of it, as the event has them.
    """

    took_s: float
    phases_s: dict[str, float]

    @classmethod
    def of_run(cls, event: RunEvent, submission_s: float) -> "Start":
        """Read a run's event, and put before it what the coordinator's own start took."""
        data = event["data"]
        phases_s = {phase: share["took_s"] for phase, share in data["phases"].items()}
        return cls(submission_s + data["took_s"], {_SUBMISSION: submission_s} | phases_s)

    @classmethod
    def of_worker(cls, event: RunEvent) -> "Start":
        """Read the event of a spare that is warm."""
        return cls(event["data"]["took_s"], event["data"]["phases"])


def find_events(status: dict[str, Any], kind: str) -> list[RunEvent]:
    """Return a run's events of a kind, oldest first."""
    return [event for event in status["events"] if event["kind"] == kind]


def measure_run(ground: Ground, job: JobConfig, *, replaces: bool) -> dict[str, Start]:
    """Start a run and stop it; returns its start and, if wanted, that of a replacement.

    Raises:
        TimeoutError: it did not start in time.
    """
    asked_at_s = SYSTEM_CLOCK.unix_s()
    run = ground.start(job)
    status = wait_for_status(run, "start", lambda status: bool(find_events(status, "startup")))
    (submitted,) = find_events(status, "submitted")
    (event,) = find_events(status, "startup")
    found = {"run": Start.of_run(event, submitted["at_s"] - asked_at_s)}
    if replaces:
        found["replacement"] = Start.of_worker(_replace_spare(run))
    run.stop()
    _wait_ended(run)
    return found


def _replace_spare(run: Run) -> RunEvent:
    """Kill the spare once it is warm; returns the event of the one after it."""
    wait_for_status(run, "have a spare", lambda status: status["spares"] == SCENARIO.num_spares)
    (spare,) = [worker for worker in run.workers() if worker["state"] == "spare"]
    os.kill(spare["pid"], signal.SIGKILL)
    status = wait_for_status(
        run, "replace its spare", lambda status: len(find_events(status, "warm")) > 1
    )
    return find_events(status, "warm")[-1]


def _wait_ended(run: Run) -> None:
    while run.status()["ending"] is None:
        SYSTEM_CLOCK.sleep(0.1)
    run.retire()


def measure_all(num_runs: dict[str, int], work_dir: Path) -> dict[str, list[Start]]:
    """Measure each system's starts, by turns, after one run that doesn't count."""
    kernels = work_dir / "cache"
    os.environ["XDG_CACHE_HOME"] = str(kernels)  # before the cluster, whose workers inherit it
    found: dict[str, list[Start]] = {system: [] for system in num_runs}
    found |= {replacement: [] for system, replacement in _REPLACED.items() if system in num_runs}
    with own_ground(work_dir / "home", SCENARIO) as ground:
        jobs = {system: _make_job(system, work_dir) for system in num_runs}
        for system in (*num_runs,) if len(num_runs) > 1 else ():
            measure_run(ground, jobs[system], replaces=False)  # files come into the page cache
        for turn in range(max(num_runs.values())):
            for system in [each for each, count in num_runs.items() if turn < count]:
                if system == "kernels_built":
                    shutil.rmtree(kernels, ignore_errors=True)
                replacement = _REPLACED.get(system, "")
                measured = measure_run(ground, jobs[system], replaces=bool(replacement))
                found[system].append(measured.pop("run"))
                if replacement:
                    found[replacement] += measured.values()
                print(f"{system}: {found[system][-1]} {measured}", flush=True)
    return found


def measure_imports(num_turns: int) -> dict[str, list[Start]]:
    """Time the imports of a worker and its job in processes of their own, by turns."""
    found: dict[str, list[Start]] = {system: [] for system in _HOW}
    for _ in range(num_turns):
        for system, how in _HOW.items():
            source = _IMPORTS.format(how=how, module="benchmarks.recovery_job")
            done = subprocess.run(
                [sys.executable, "-c", source], capture_output=True, text=True, check=True
            )
            found[system].append(Start(float(done.stdout), {}))
    return found


def _make_job(system: str, work_dir: Path) -> JobConfig:
    log_dir = work_dir / "events"
    log_dir.mkdir(parents=True, exist_ok=True)
    job = make_job(log_dir, SCENARIO)
    compression = "int8" if system in _COMPRESSED else "none"
    communication = job.communication.model_copy(update={"compression": compression})
    workers = job.workers.model_copy(update=_WORKERS.get(system, {}))
    return job.model_copy(update={"communication": communication, "workers": workers})


def to_rows(found: dict[str, list[Start]]) -> list[Row]:
    """Reduce starts to medians, and the worst of the whole."""
    return [row for system, starts in found.items() for row in _rows_of(system, starts)]


def _rows_of(system: str, starts: Sequence[Start]) -> list[Row]:
    took_s = [start.took_s for start in starts]
    phases = dict.fromkeys(phase for start in starts for phase in start.phases_s)
    return [
        Row(system, "took_s", median(took_s), "s"),
        Row(system, "took_max_s", max(took_s), "s"),
        *(
            Row(
                system,
                f"{phase}_s",
                median(start.phases_s.get(phase, 0.0) for start in starts),
                "s",
            )
            for phase in phases
        ),
    ]


@ending_in_order()
def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="one run, without compression; no imports"
    )
    parser.add_argument("--runs", type=int, help="of each system; else as many as are planned")
    arguments = parser.parse_args()
    runs: int | None = arguments.runs
    num_runs = _QUICK_RUNS if arguments.quick else _FULL_RUNS
    if runs is not None:
        num_runs = dict.fromkeys(num_runs, runs)
    work_dir = Path(tempfile.mkdtemp(prefix="trainflow-startup-"))
    try:
        found = measure_all(num_runs, work_dir)
        if not arguments.quick:
            found |= measure_imports(max(num_runs.values()))
    finally:
        shutil.rmtree(work_dir, ignore_errors=True)
    conditions: dict[str, Any] = {
        "members": SCENARIO.num_members,
        "spares": SCENARIO.num_spares,
        "runs": num_runs,
        "raw_took_s": {
            system: [round(start.took_s, 3) for start in starts] for system, starts in found.items()
        },
    }
    publish("startup", conditions, to_rows(found), quick=arguments.quick)


if __name__ == "__main__":
    main()
